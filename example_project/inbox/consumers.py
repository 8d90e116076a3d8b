"""What happens to a webhook after GitHub has its answer: it becomes a line of the feed."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from django_pgqueue import consumer
from django_pgqueue.models import Message
from example_project.inbox.activities import summarize
from example_project.inbox.models import Activity, Delivery, Repository


@consumer("github")
def record_activity(message: Message) -> None:
    """Record what *message* tells, once, however often it is delivered."""
    delivery = Delivery.objects.get(guid=message.headers["delivery"])
    summary = summarize(message.headers["event"], message.body)
    happened_at = summary.happened_at or delivery.received_at

    with transaction.atomic():
        repository = Repository.objects.of(message.body)
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
            repository.take_numbers(message.body["repository"], as_of=delivery.received_at)
        Delivery.objects.filter(pk=delivery.pk).update(processed_at=timezone.now())
