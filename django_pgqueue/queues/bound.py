"""``queue("orders")``: the operations on one queue."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django_pgqueue.engine.read import polling, reading
from django_pgqueue.engine.subscriptions.reading import refuse_groups
from django_pgqueue.queues.decorators import documented, twin_of
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

    @property
    def pgmq(self) -> PGMQQueue:
        """The same queue, with the rest of PGMQ's names for reads as methods, too."""
        return PGMQQueue._of(self._target, self.using)


class PGMQQueue(BoundQueue):
    """A queue with more of PGMQ's names for reads: ``queue("orders").pgmq``.

    >>> queue("orders").pgmq.read_grouped_head(qty=10)
    []
    """

    @documented(reading.read)
    def read_grouped_head(
        self,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        conditional: dict[str, Any] | None = None,
        in_transaction: bool = False,
    ) -> list[Message]:
        """``read``, which leases only the heads of groups."""
        refuse_groups(self._open(), "read_grouped_head")
        return self._messages(
            reading.read, vt=vt, qty=qty, conditional=conditional, in_transaction=in_transaction
        )

    @twin_of(read_grouped_head)
    def aread_grouped_head(self, *args, **kwargs):
        return self.read_grouped_head(*args, **kwargs)

    @documented(polling.read_with_poll)
    def read_grouped_head_with_poll(
        self,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
        conditional: dict[str, Any] | None = None,
    ) -> list[Message]:
        """``read_with_poll``, which leases only the heads of groups."""
        refuse_groups(self._open(), "read_grouped_head_with_poll")
        return self._messages(
            polling.read_with_poll,
            vt=vt,
            qty=qty,
            max_poll_seconds=max_poll_seconds,
            poll_interval_ms=poll_interval_ms,
            conditional=conditional,
        )

    @twin_of(read_grouped_head_with_poll)
    def aread_grouped_head_with_poll(self, *args, **kwargs):
        return self.read_grouped_head_with_poll(*args, **kwargs)

    @documented(polling.read_grouped_with_poll)
    def read_grouped_with_poll(
        self,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
    ) -> list[Message]:
        """``read_grouped``; if there are no messages, wait as ``read_with_poll`` does."""
        return self._messages(
            polling.read_grouped_with_poll,
            vt=vt,
            qty=qty,
            max_poll_seconds=max_poll_seconds,
            poll_interval_ms=poll_interval_ms,
        )

    @twin_of(read_grouped_with_poll)
    def aread_grouped_with_poll(self, *args, **kwargs):
        return self.read_grouped_with_poll(*args, **kwargs)

    @documented(polling.read_grouped_rr_with_poll)
    def read_grouped_rr_with_poll(
        self,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
    ) -> list[Message]:
        """``read_grouped_rr``; if there are no messages, wait as ``read_with_poll`` does."""
        return self._messages(
            polling.read_grouped_rr_with_poll,
            vt=vt,
            qty=qty,
            max_poll_seconds=max_poll_seconds,
            poll_interval_ms=poll_interval_ms,
        )

    @twin_of(read_grouped_rr_with_poll)
    def aread_grouped_rr_with_poll(self, *args, **kwargs):
        return self.read_grouped_rr_with_poll(*args, **kwargs)


def bound_to(target: Queue) -> BoundQueue:
    """Return a BoundQueue that uses a given Queue as it is, without looking up its name."""
    return BoundQueue._of(target, None)


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
