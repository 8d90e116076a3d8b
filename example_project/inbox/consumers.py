"""The consumer: turns a webhook into a line of the feed, after GitHub got its answer."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from django_pgqueue import consumer
from django_pgqueue.models import Message
from django_pgqueue.retries import Exponential
from example_project.inbox.activities import summarize
from example_project.inbox.demo.faults import inject
from example_project.inbox.models import Activity, Delivery, Repository

# A payload of an unknown shape is not retried: it becomes a dead letter at once.
RETRY = Exponential(
    first=1, max_attempts=5, jitter=True, reject_on=(LookupError, TypeError, AttributeError)
)


@consumer("github", retry=RETRY, middleware=[inject])
def record_activity(message: Message) -> None:
    """Record the activity that *message* describes. Repeated deliveries record it once."""
    headers, payload = message.headers or {}, message.body or {}
    delivery = Delivery.objects.get(guid=headers["delivery"])
    summary = summarize(headers["event"], payload)

    with transaction.atomic():
        repository = Repository.objects.of(payload)
        _, is_new = Activity.objects.get_or_create(
            delivery=delivery,
            defaults={
                "repository": repository,
                "kind": summary.kind,
                "actor": summary.actor,
                "title": summary.title,
                "url": summary.url,
            },
        )
        if not is_new:
            return
        if repository:
            repository.count_activity(delivery.received_at)
            repository.take_numbers(payload["repository"], as_of=delivery.received_at)
        Delivery.objects.filter(pk=delivery.pk).update(processed_at=timezone.now())
