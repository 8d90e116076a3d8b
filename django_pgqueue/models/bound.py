"""Operations on one queue: ``queue("orders").send(…)``."""

from __future__ import annotations

from typing import Any

from django_pgqueue import arguments
from django_pgqueue.models.message import Message
from django_pgqueue.models.methods import QueueOperations
from django_pgqueue.models.queue import Queue

__all__ = ["BoundQueue", "queue"]


class BoundQueue(QueueOperations):
    """A queue's name and database, with all operations on it as methods.

    >>> orders = queue("orders")
    >>> orders.send({"order": 7})
    1
    >>> [message] = orders.read()
    >>> orders.archive(message)
    [1]
    """

    model: type[Message] = Message

    def __init__(self, name: str | Queue, *, using: str | None = None) -> None:
        if isinstance(name, Queue):
            using = using or name.alias
            name = name.name
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


def queue(name: str | Queue, *, using: str | None = None) -> BoundQueue:
    """The operations on a queue, in the database ``using`` or the one that the routers choose.

    ``name`` may be a :class:`~django_pgqueue.models.Queue`, which implies its database. Makes no
    query: if the queue does not exist, the first operation raises QueueNotFound.

    >>> queue("orders").send({"order": 7}, delay=60)
    1

    Raises InvalidQueueName.
    """
    return BoundQueue(name, using=using)
