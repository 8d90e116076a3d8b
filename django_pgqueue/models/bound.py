"""A queue by name, for daily use: ``queue("orders").send(…)``."""

from __future__ import annotations

from typing import Any

from django_pgqueue import arguments
from django_pgqueue.models.message import Message
from django_pgqueue.models.methods import QueueOperations

__all__ = ["BoundQueue", "queue"]


class BoundQueue(QueueOperations):
    """The operations on one queue.

    >>> orders = queue("orders")
    >>> orders.send({"order": 7})
    1
    >>> [message] = orders.read()
    >>> orders.archive(message)
    [1]
    """

    model: type[Message] = Message

    def __init__(self, name: str, *, using: str | None = None) -> None:
        self.name: str = arguments.queue_name(name)
        self.using = using

    def __repr__(self) -> str:
        using = f", using={self.using!r}" if self.using else ""
        return f"queue({self.name!r}{using})"

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, BoundQueue) and (self.name.lower(), self.using) == (
            other.name.lower(),
            other.using,
        )

    def __hash__(self) -> int:
        return hash((self.name.lower(), self.using))

    @property
    def _using(self) -> str | None:
        return self.using

    def _queue(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, tuple[Any, ...]]:
        return self.name, args

    def _name_of_queue(self) -> tuple[str, ...]:
        return (self.name,)


def queue(name: str, *, using: str | None = None) -> BoundQueue:
    """The queue of that name, in the database ``using`` or the one the routers choose.

    Makes no query: whether the queue exists shows at the first operation.

    >>> queue("orders").send({"order": 7}, delay=60)
    1

    Raises InvalidQueueName.
    """
    return BoundQueue(name, using=using)
