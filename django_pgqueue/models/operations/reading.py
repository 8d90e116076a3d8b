"""Reading: lease messages, look at them, or take them for good."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

from django.db import connections, transaction

from django_pgqueue import arguments, signals
from django_pgqueue.errors import InvalidArgument, TransactionRefused
from django_pgqueue.models.operations.base import MessageT, twin
from django_pgqueue.models.operations.outcomes import Outcomes
from django_pgqueue.models.queue import Queue
from django_pgqueue.types import Receipt
from django_pgqueue.wake import Listening

__all__ = ["Reading"]


EXHAUSTED = "given out as often as allowed, and never settled"


class Reading(Outcomes[MessageT]):
    """Read, peek and pop."""

    def read(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        conditional: dict[str, Any] | None = None,
        in_transaction: bool = False,
        using: str | None = None,
    ) -> list[MessageT]:
        """Lease up to ``qty`` messages, each hidden from other readers for ``vt``.

        Messages that are due again (their lease or delay ran out) are taken first, then fresh
        ones; the list is in order of priority, highest first, then id. ``vt`` is in seconds or a
        timedelta, by default the queue's; ``qty=None`` takes all there are. ``conditional``
        takes only messages whose body contains it, as jsonb's ``@>`` does.

        A lease is only one once it is committed, so a read inside the caller's ``atomic()`` is
        refused. With ``in_transaction=True`` it is meant: the message stays locked while it is
        processed in this transaction, and a rollback gives it back uncounted.

        >>> [message] = Message.objects.read("orders", vt=60)
        >>> message.body, message.read_ct
        ({'order': 7}, 1)

        Raises QueueNotFound, InvalidArgument, TransactionRefused.
        """
        found = self.resolve(queue, using)
        if not in_transaction:
            self._refuse_transaction(found.alias, "read")
        return self.lease(found, vt=vt, qty=qty, conditional=conditional)

    def read_with_poll(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
        conditional: dict[str, Any] | None = None,
        using: str | None = None,
    ) -> list[MessageT]:
        """Read, and when there is nothing wait for it, up to ``max_poll_seconds``.

        Returns at the first messages, without waiting for ``qty`` of them. The wait holds no
        transaction: a notification ends it, or the moment the next message is due, or
        ``poll_interval_ms``, whichever comes first. Zero seconds tries once.

        >>> Message.objects.read_with_poll("orders", max_poll_seconds=0)
        []

        Raises what :meth:`read` raises.
        """
        found = self.resolve(queue, using)
        self._refuse_transaction(found.alias, "read_with_poll")
        deadline = time.monotonic() + _seconds(max_poll_seconds, "max_poll_seconds")
        interval = max(_seconds(poll_interval_ms, "poll_interval_ms") / 1000, 0.001)
        messages = self.lease(found, vt=vt, qty=qty, conditional=conditional)
        if messages or qty == 0 or time.monotonic() >= deadline:
            return messages
        with Listening(connections[found.alias]) as listening:
            while not messages:
                messages = self.lease(found, vt=vt, qty=qty, conditional=conditional)
                remaining = deadline - time.monotonic()
                if messages or remaining <= 0:
                    break
                listening.wait(min(remaining, interval, self.next_due(found)))
        return messages

    def peek(
        self,
        queue: str | Queue,
        *,
        qty: int | None = 1,
        conditional: dict[str, Any] | None = None,
        using: str | None = None,
    ) -> list[MessageT]:
        """What a read would find, without leasing or counting anything.

        >>> Message.objects.peek("orders")[0].read_ct
        0

        Raises QueueNotFound, InvalidArgument.
        """
        params = {
            "qty": arguments.quantity(qty),
            "conditional": _condition(conditional),
        }
        found, rows = self._run("peek", queue, using, params)
        return self._messages(found, rows)

    def pop(
        self, queue: str | Queue, qty: int | None = 1, *, using: str | None = None
    ) -> list[MessageT]:
        """Take up to ``qty`` messages and delete them at once: delivered at most once.

        No delivery is counted, and nothing goes to the archive.

        >>> Message.objects.pop("orders")[0].body
        {'order': 7}

        Raises QueueNotFound, InvalidArgument.
        """
        qty = arguments.quantity(qty)
        found, rows = self._run(
            "pop", queue, using, lambda q: {"qty": qty, "max_deliveries": q.max_deliveries}
        )
        return self._messages(found, rows)

    def lease(
        self,
        queue: Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        conditional: dict[str, Any] | None = None,
        max_deliveries: int | None = None,
        worker: int | None = None,
    ) -> list[MessageT]:
        """The read itself, for those who know what transaction they are in.

        ``max_deliveries`` stands in for the queue's own; ``worker`` is the consumer process that
        will hold the leases. Messages whose deliveries have run out are dead-lettered on the
        way instead of being given out.
        """
        qty = arguments.quantity(qty)
        condition = _condition(conditional)
        lease = None if vt is None else arguments.duration(vt)

        def params(queue: Queue) -> dict[str, Any]:
            return {
                "vt": dt.timedelta(seconds=queue.visibility_timeout) if lease is None else lease,
                "qty": qty,
                "conditional": condition,
                "worker": worker,
                "max_deliveries": max_deliveries or queue.max_deliveries,
            }

        found, rows = self._run("read", queue, queue.alias, params)
        exhausted = {Receipt(row[0], row[6]): EXHAUSTED for row in rows if row[8] is None}
        if exhausted:
            self.fail(found, exhausted, reason="max_deliveries", ran=False)
            signals.messages_exhausted.send_robust(found.name, receipts=list(exhausted))
            rows = [row for row in rows if row[8] is not None]
        return self._messages(found, rows)

    def _messages(self, queue: Queue, rows: list[tuple[Any, ...]]) -> list[MessageT]:
        model: Any = self.model
        return [model.from_read(row, queue) for row in rows]

    def next_due(self, queue: Queue) -> float:
        """Seconds until the next deferred message is due; infinity when none waits."""
        _, rows = self._run("next_due", queue, queue.alias, {})
        return max(rows[0][0], 0.001) if rows else float("inf")

    @staticmethod
    def _refuse_transaction(alias: str, operation: str) -> None:
        connection = transaction.get_connection(alias)
        # The transaction that TestCase wraps around each test does not count, as for
        # atomic(durable=True).
        in_test_only = len(connection.atomic_blocks) > 0 and all(
            block._from_testcase for block in connection.atomic_blocks
        )
        if (connection.in_atomic_block and not in_test_only) or not (
            connection.in_atomic_block or connection.get_autocommit()
        ):
            raise TransactionRefused(operation)

    aread = twin(read)
    aread_with_poll = twin(read_with_poll)
    apeek = twin(peek)
    apop = twin(pop)


def _condition(conditional: Any) -> str | None:
    """The JSON text of a condition; None and {} are none."""
    if conditional is None or conditional == {}:
        return None
    return arguments.json_text(conditional, "conditional")


def _seconds(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise InvalidArgument(f"{name} must be zero or more, not {value!r}")
    return float(value)
