"""factory-boy factories for queues, messages and schedules.

>>> MessageFactory(queue__name="orders", body={"order": 7})
<Message: message 1>
>>> MessageFactory(archived=True)
<Message: message 2>
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, TypeVar

from django.db.models import Model

from django_pgqueue.models import Message, Queue, Schedule

try:
    from factory.declarations import Maybe, PostGeneration, Sequence, SubFactory
    from factory.django import DjangoModelFactory
except ImportError as error:
    raise ImportError(
        "django_pgqueue.testing.factories needs factory-boy: pip install factory-boy"
    ) from error


M = TypeVar("M", bound=Model)


class _Factory(DjangoModelFactory[M]):
    """A factory of which type checkers know what a call returns."""

    if TYPE_CHECKING:

        def __new__(cls, **values: Any) -> M: ...  # type: ignore[misc]

    class Meta:
        abstract = True


class QueueFactory(_Factory[Queue]):
    """A queue with its tables. Returns an existing queue of the same name."""

    name = Sequence(lambda n: f"queue-{n}")

    class Meta:
        model = Queue
        django_get_or_create = ("name",)


def archive(message: Message, create: bool, extracted: bool, **kwargs: Any) -> None:
    if create and extracted:
        Message.objects.archive(message.queue, message.pk)


class MessageFactory(_Factory[Message]):
    """A message. Saving it sends it; ``archived=True`` also archives it."""

    queue = SubFactory(QueueFactory)
    body = Sequence(lambda n: {"number": n})
    archived = PostGeneration(archive)

    class Meta:
        model = Message
        skip_postgeneration_save = True

    @classmethod
    def sent(cls, count: int, **kwargs: Any) -> list[Message]:
        """Send ``count`` messages with bulk_create."""
        return Message.objects.bulk_create(cls.build_batch(count, **kwargs))


class ScheduleFactory(_Factory[Schedule]):
    """A schedule. Its interval is an hour unless ``cron`` or ``interval`` is given."""

    name = Sequence(lambda n: f"schedule-{n}")
    queue = SubFactory(QueueFactory)
    interval = Maybe("cron", None, dt.timedelta(hours=1))
    cron = ""

    class Meta:
        model = Schedule
