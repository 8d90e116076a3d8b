"""Reading: lease messages, look at them, or take them for good."""

from __future__ import annotations

import datetime as dt
import time
import zoneinfo
from collections.abc import Callable
from typing import Any

from django.db import connections

from django_pgqueue import arguments, ddl, queries, signals
from django_pgqueue.errors import InvalidArgument, TransactionRefused
from django_pgqueue.models.operations.base import Ahead, MessageT, twin
from django_pgqueue.models.operations.claims import claim_on
from django_pgqueue.models.operations.outcomes import Outcomes
from django_pgqueue.models.queue import Queue
from django_pgqueue.types import Batch, Receipt
from django_pgqueue.wake import THROTTLE, Listening

__all__ = ["Reading"]


EXHAUSTED = "given out as often as allowed, and never settled"

# What a read returns besides messages when groups want to be put in order, or when leases of whole
# batches ran out.
RECHECK, BLOCKED, ENDED = 0, -1, -2
# From so many on the messages of one read are leased together: fewer cost as much one by one.
BATCH_FROM = 16
# How many rechecks or messages to set back one statement takes on.
TIDY_BATCH = 1000


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

        def read() -> list[MessageT]:
            return self.lease(found, vt=vt, qty=qty, conditional=conditional)

        return self._poll(found, "read_with_poll", read, qty, max_poll_seconds, poll_interval_ms)

    def _poll(
        self,
        queue: Queue,
        operation: str,
        read: Callable[[], list[MessageT]],
        qty: int | None,
        max_poll_seconds: float,
        poll_interval_ms: float,
    ) -> list[MessageT]:
        self._refuse_transaction(queue.alias, operation)
        deadline = time.monotonic() + _seconds(max_poll_seconds, "max_poll_seconds")
        interval = max(_seconds(poll_interval_ms, "poll_interval_ms") / 1000, 0.001)
        messages = read()
        if messages or qty == 0 or time.monotonic() >= deadline:
            return messages
        with Listening(connections[queue.alias]) as listening:
            wait = THROTTLE
            while not (messages := read()):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                notified = listening.wait(min(remaining, interval, wait, self.next_due(queue)))
                wait = THROTTLE if notified else 2 * wait
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

        def pop(queue: Queue, qty: int | None, heed: bool) -> tuple[Queue, list[tuple[Any, ...]]]:
            params = {"qty": qty, "heed": heed, "max_deliveries": queue.max_deliveries}
            return self._run("pop", queue, None, params)

        return self._gather(self.resolve(queue, using), qty, pop)

    def lease(
        self,
        queue: Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        conditional: dict[str, Any] | None = None,
        max_deliveries: int | None = None,
        worker: int | None = None,
        batched: bool = True,
        ahead: Ahead | None = None,
    ) -> list[MessageT]:
        """The read itself, for those who know what transaction they are in.

        ``max_deliveries`` stands in for the queue's own; ``worker`` is the consumer process that
        will hold the leases; ``batched=False`` gives each message a lease of its own, for those who
        settle them in transactions of their own; ``ahead`` is to be done in the same commit.
        Messages whose deliveries have run out are dead-lettered on the way instead of being given
        out.
        """
        qty = arguments.quantity(qty)
        condition = _condition(conditional)
        lease = None if vt is None else arguments.duration(vt)

        def read(queue: Queue, qty: int | None, heed: bool) -> tuple[Queue, list[tuple[Any, ...]]]:
            params = {
                "vt": dt.timedelta(seconds=queue.visibility_timeout) if lease is None else lease,
                "qty": qty,
                "heed": heed,
                "conditional": condition,
                "worker": worker,
                "max_deliveries": max_deliveries or queue.max_deliveries,
            }
            if condition is None and heed:
                return self._claim(queue, qty, params, batched, ahead)
            return self._read(queue, params, ahead)

        return self._gather(queue, qty, read)

    def _claim(
        self,
        queue: Queue,
        qty: int | None,
        params: dict[str, Any],
        batched: bool,
        ahead: Ahead | None,
    ) -> tuple[Queue, list[tuple[Any, ...]]]:
        """Read what comes after the last claim, and only if that is not enough look everywhere."""
        connection = connections[queue.alias]
        # What a rollback gives back may stand before the bound; and all there is has none.
        if qty is None or connection.in_atomic_block:
            return self._read(queue, params, ahead)
        claim = claim_on(queue)
        rows: list[tuple[Any, ...]] = []
        if bounds := claim.bounds():
            began = time.monotonic()
            batched = batched and qty >= BATCH_FROM and not claim.grouped
            queue, found = self._read_ready(queue, {**params, **bounds}, batched, ahead)
            rows = _fresh(found, params["vt"], connection)
            if batched:
                rows = _in_batches(rows, began + params["vt"].total_seconds())
            claim.advance(bounds, qty, rows, began)
            if len(rows) == qty:
                return queue, rows
        left = {**params, "qty": qty - len(rows)}
        queue, others = self._read(queue, left, ahead)
        claim.begin(left["qty"], others)
        return queue, rows + others

    def _read(
        self, queue: Queue, params: dict[str, Any], ahead: Ahead | None
    ) -> tuple[Queue, list[tuple[Any, ...]]]:
        # Said in the text and not by a value, so that most reads are planned without the condition.
        any_body = "true" if params["conditional"] is None else "false"
        return self._run("read", queue, None, params, {"any_body": any_body}, ahead)

    def _read_ready(
        self, queue: Queue, params: dict[str, Any], batched: bool, ahead: Ahead | None = None
    ) -> tuple[Queue, list[tuple[Any, ...]]]:
        params = {**params, "batched": batched}
        leased = queries.Part("lease_batch" if batched else "lease_each")
        return self._run("read_ready", queue, None, params, {"leased": leased}, ahead)

    def _gather(
        self,
        queue: Queue,
        qty: int | None,
        take: Callable[[Queue, int | None, bool], tuple[Queue, list[tuple[Any, ...]]]],
    ) -> list[MessageT]:
        """Take messages, dead-letter those that are exhausted, and put groups in order.

        Where that may have brought up more and ``qty`` is not reached, take again.
        """
        messages: list[MessageT] = []
        heed, rechecks_left = True, False
        while True:
            queue, rows = take(queue, None if qty is None else qty - len(messages), heed)
            messages += self._messages(queue, [row for row in rows if row[8] is not None])
            others = [row for row in rows if row[8] is None]
            again = self._put_right(queue, others)
            told = {row[0] for row in others}
            if ENDED in told:
                # When others have them locked, they unfold them.
                heed, again = self._unfold_due(queue, qty) > 0, True
            elif RECHECK in told:
                rechecks_left = self._promote(queue, qty)
                # What cannot be settled now must not hold up the rest.
                heed, again = False, True
            elif not again and rechecks_left:
                heed, again, rechecks_left = True, True, False
            if not again or (qty is not None and len(messages) >= qty):
                break
        return sorted(messages, key=_order)

    def _put_right(self, queue: Queue, rows: list[tuple[Any, ...]]) -> bool:
        """Dead-letter and set back what a read named; whether another one may find more."""
        exhausted = {Receipt(row[0], row[6]): EXHAUSTED for row in rows if row[0] > 0}
        if exhausted:
            self.fail(queue, exhausted, reason="max_deliveries", ran=False)
            signals.messages_exhausted.send_robust(queue.name, receipts=list(exhausted))
        back: list[Any] = []
        if any(row[0] == BLOCKED for row in rows):
            _, back = self._run("set_back", queue, None, {"batch": TIDY_BATCH})
        return bool(exhausted or back)

    def _promote(self, queue: Queue, qty: int | None) -> bool:
        """Take up rechecks; whether there may be more of them."""
        # Inside a longer transaction the locks would be kept: only what is needed then.
        alone = not connections[queue.alias].in_atomic_block
        groups = TIDY_BATCH if alone or qty is None else qty
        params = {"batch": TIDY_BATCH, "groups": groups, "alone": alone}
        _, [(_heads, rechecked)] = self._run("promote", queue, None, params)
        return bool(rechecked == TIDY_BATCH)

    def _messages(self, queue: Queue, rows: list[tuple[Any, ...]]) -> list[MessageT]:
        model: Any = self.model
        return model.from_read(rows, queue)

    def next_due(self, queue: Queue) -> float:
        """Seconds until the next deferred message is due; infinity when none waits."""
        _, [(seconds,)] = self._run("next_due", queue, queue.alias, {})
        return float("inf") if seconds is None else max(seconds, 0.001)

    @staticmethod
    def _refuse_transaction(alias: str, operation: str) -> None:
        connection: Any = connections[alias]
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


def _fresh(
    rows: list[tuple[Any, ...]], lease: dt.timedelta, connection: Any
) -> list[tuple[Any, ...]]:
    """Rows of read_ready.sql as read.sql has them: delivered for the first time, at one moment.

    That comes as a number: Django takes its time over each date.
    """
    if not rows:
        return []
    read_at = _moment(rows[0][6], connection)
    once = (1, 0, read_at + lease, read_at)
    return [row[:6] + once for row in rows]


def _in_batches(rows: list[tuple[Any, ...]], ends: float) -> list[tuple[Any, ...]]:
    """The rows, each with its batch: those of one priority were leased together."""
    batches = {}
    for priority in {row[4] for row in rows}:
        ids = [row[0] for row in rows if row[4] == priority]
        batches[priority] = Batch(min(ids), len(ids), ends)
    return [(*row, batches[row[4]]) for row in rows]


def _moment(microseconds: int, connection: Any) -> dt.datetime:
    """That long after 1970, in the zone in which Django reads dates from this connection."""
    moment = ddl.moment(microseconds)
    if connection.timezone is None:  # USE_TZ = False
        return moment.astimezone(zoneinfo.ZoneInfo(connection.timezone_name)).replace(tzinfo=None)
    return moment.astimezone(connection.timezone)


def _order(message: Any) -> tuple[int, int]:
    return -message.priority, message.id
