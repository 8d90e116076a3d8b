"""``queue("orders")``: the operations on one queue."""

from __future__ import annotations

from django_pgqueue.queues.message import Message
from django_pgqueue.queues.operations import Operations
from django_pgqueue.tables.queue import Queue


class BoundQueue(Operations[Message]):
    """A queue's name and database, with all operations on it as methods.

    >>> orders = queue("orders")
    >>> orders.send({"order": 7})
    1
    >>> [message] = orders.read()
    >>> orders.archive(message)
    [1]
    """

    _model = Message


def bound_to(target: Queue) -> BoundQueue:
    """Return a BoundQueue that uses a given Queue as it is, without looking up its name."""
    bound = BoundQueue(target)
    bound._target = target
    return bound


def queue(name: str | Queue, *, using: str | None = None) -> BoundQueue:
    """Return the operations on a queue. ``using`` is the alias of its database.

    Without ``using``, the database is that of ``PGQUEUE["DATABASE"]``, or else the routers' choice.
    ``name`` may be a :class:`~django_pgqueue.models.Queue`, which implies its database. Makes no
    query: if the queue does not exist, the first operation raises QueueNotFound.

    >>> queue("orders").send({"order": 7}, delay=60)
    1

    Raises InvalidQueueName.
    """
    return BoundQueue(name, using=using)
