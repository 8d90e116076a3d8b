"""``queue("orders")``: the operations on one queue."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import models, transaction

from django_pgqueue.engine import arguments
from django_pgqueue.engine.read import polling, reading
from django_pgqueue.engine.subscriptions.reading import refuse_groups
from django_pgqueue.queues.batch import OPEN_FOR, Batch
from django_pgqueue.queues.decorators import documented, twin_of
from django_pgqueue.queues.message import Message
from django_pgqueue.queues.operations import Operations
from django_pgqueue.queues.unsent import OPTIONS, UnsentMessage, unsent
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

    def message(
        self,
        /,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        delay: float | dt.timedelta | None = 0,
        expires: float | dt.timedelta | None = None,
        priority: int = 0,
        group: str | None = None,
    ) -> UnsentMessage:
        """Return a message that is not sent yet, for ``batch(then=...)``. Makes no query.

        Arguments:
            body, headers, priority, group: as for :meth:`send`.
            delay, expires: seconds or a timedelta, from the send on.

        >>> queue("reports").message({"report": "mails"}, delay=60).body
        {'report': 'mails'}

        Raises InvalidMessage and InvalidArgument.
        """
        options = {name: value for name, value in locals().items() if name in OPTIONS}
        return unsent(self.name, self.using, body, options)

    @contextmanager
    def batch(self, *, then: UnsentMessage | None = None, name: str = "") -> Iterator[Batch]:
        """Send messages as a batch, whose callback is sent when all of them have ended.

        The block is a transaction, or a savepoint of the caller's one: its members and the batch
        are committed together, and an error in the block leaves nothing. At its end the batch is
        sealed. For members from several transactions use :meth:`open_batch`.

        Arguments:
            then: the callback, from ``queue("reports").message({...})`` or ``message_of(task)``.
                It is sent exactly once, in the transaction that marks the batch as done.
            name: a text for the admin and for the header of the callback.

        >>> with queue("mails").batch(then=queue("reports").message({"report": "mails"})) as batch:
        ...     ids = batch.send_batch([{"user": 7}, {"user": 8}])

        Raises QueueNotFound, InvalidArgument.
        """
        with transaction.atomic(using=self._open().alias):
            batch = self._begin(then, name, None)
            with batch._block():
                yield batch

    def open_batch(
        self,
        *,
        then: UnsentMessage | None = None,
        name: str = "",
        open_for: float | dt.timedelta = OPEN_FOR,
    ) -> Batch:
        """Begin a batch that stays open for members, from any process, until ``seal()``.

        Arguments:
            then, name: as for :meth:`batch`.
            open_for: seconds or a timedelta. If nothing has sealed the batch by then, it is sealed
                with the members that it has, and ends as ``abandoned``, with an alert.

        >>> batch = queue("mails").open_batch(then=queue("reports").message({"report": "mails"}))
        >>> batch.send({"user": 7})
        1
        >>> batch.seal()
        True

        Raises QueueNotFound, InvalidArgument.
        """
        with transaction.atomic(using=self._open().alias):
            return self._begin(then, name, arguments.duration(open_for, "open_for", least=1))

    @twin_of(open_batch)
    def aopen_batch(self, *args, **kwargs):
        return self.open_batch(*args, **kwargs)

    def batches(self) -> models.QuerySet[Batch]:
        """Return the batches of this queue, the latest first, as a queryset.

        >>> [batch.progress for batch in queue("mails").batches().filter(done_at=None)]
        [0.25]
        """
        opened = self._open()
        return Batch.objects.using(opened.alias).filter(queue_id=opened.id)

    def _begin(self, then: Any, name: str, open_for: dt.timedelta | None) -> Batch:
        return Batch.objects.begin(self._open().source, then, name, open_for)

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
