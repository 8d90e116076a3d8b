"""Objects for tests, with what a test does not care about filled in."""

from __future__ import annotations

from typing import Any

import factory
from factory.django import DjangoModelFactory

from django_pgqueue.models import Message, Queue
from tests.app.models import Order

__all__ = ["MessageFactory", "OrderFactory", "QueueFactory"]


class QueueFactory(DjangoModelFactory[Queue]):
    """A queue with its tables."""

    name = factory.Sequence(lambda n: f"queue-{n}")

    class Meta:
        model = Queue


class MessageFactory(DjangoModelFactory[Message]):
    """A message, saved by the ORM, which is a send."""

    queue = factory.SubFactory(QueueFactory)
    body = factory.Sequence(lambda n: {"number": n})

    class Meta:
        model = Message

    @classmethod
    def sent(cls, count: int, **kwargs: Any) -> list[Message]:
        """Many at once, by bulk_create."""
        return Message.objects.bulk_create(cls.build_batch(count, **kwargs))


class OrderFactory(DjangoModelFactory[Order]):
    number = factory.Sequence(lambda n: f"order {n}")

    class Meta:
        model = Order
