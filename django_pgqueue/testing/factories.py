"""Factories of factory-boy for queues, messages and schedules.

>>> MessageFactory(queue__name="orders", body={"order": 7})
<Message: Message object (1)>
>>> MessageFactory(archived=True)
<Message: Message object (2)>
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from django_pgqueue.models import Message, Queue, Schedule

try:
    import factory
    from factory.django import DjangoModelFactory
except ImportError as error:
    raise ImportError(
        "django_pgqueue.testing.factories needs factory-boy: pip install factory-boy"
    ) from error

__all__ = ["MessageFactory", "QueueFactory", "ScheduleFactory"]


class QueueFactory(DjangoModelFactory[Queue]):
    """A queue with its tables; one of that name is used again."""

    name = factory.Sequence(lambda n: f"queue-{n}")

    class Meta:
        model = Queue
        django_get_or_create = ("name",)


class MessageFactory(DjangoModelFactory[Message]):
    """A message, saved by the ORM, which is a send."""

    queue = factory.SubFactory(QueueFactory)
    body = factory.Sequence(lambda n: {"number": n})

    class Meta:
        model = Message
        skip_postgeneration_save = True

    @factory.post_generation
    def archived(self: Any, create: bool, extracted: bool, **kwargs: Any) -> None:
        """``archived=True``: it is done, and in the archive."""
        if create and extracted:
            Message.objects.archive(self.queue, self.pk)

    @classmethod
    def sent(cls, count: int, **kwargs: Any) -> list[Message]:
        """Many at once, by bulk_create."""
        return Message.objects.bulk_create(cls.build_batch(count, **kwargs))


class ScheduleFactory(DjangoModelFactory[Schedule]):
    """A schedule, of an hour unless ``cron`` or another ``interval`` is given."""

    name = factory.Sequence(lambda n: f"schedule-{n}")
    queue = factory.SubFactory(QueueFactory)
    interval = factory.Maybe("cron", None, dt.timedelta(hours=1))
    cron = ""

    class Meta:
        model = Schedule
