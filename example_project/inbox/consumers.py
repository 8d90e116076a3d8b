"""What happens to a webhook after GitHub has its answer: it becomes a line of the feed."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from django_pgqueue import consumer
from django_pgqueue.models import Message
from django_pgqueue.retries import Exponential
from example_project.inbox.activities import summarize
from example_project.inbox.models import Activity, Delivery, Repository

# A payload of a shape we do not know will not get better by waiting; a database that is away will.
RETRY = Exponential(
    first=1, max_attempts=5, jitter=True, reject_on=(LookupError, TypeError, AttributeError)
)


@consumer("github", retry=RETRY)
def record_activity(message: Message) -> None:
    """Record what *message* tells, once, however often it is delivered."""
    headers, payload = message.headers or {}, message.body or {}
    delivery = Delivery.objects.get(guid=headers["delivery"])
    summary = summarize(headers["event"], payload)
    happened_at = summary.happened_at or delivery.received_at

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
                "happened_at": happened_at,
            },
        )
        if not is_new:
            return
        if repository:
            repository.count_activity(happened_at)
            repository.take_numbers(payload["repository"], as_of=delivery.received_at)
        Delivery.objects.filter(pk=delivery.pk).update(processed_at=timezone.now())
