"""Read, peek and pop."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Sequence
from typing import Any

from django_pgqueue.engine import arguments
from django_pgqueue.engine.groups.heads import promote, set_back
from django_pgqueue.engine.leases.batches import BATCH_FROM, in_batches, open_ended
from django_pgqueue.engine.open_queue import ROUND, OpenQueue
from django_pgqueue.engine.read.positions import Position, position_in
from django_pgqueue.engine.rows import (
    BLOCKED,
    EXHAUSTED,
    EXPIRED,
    RECHECK,
    Deliveries,
    Delivery,
    deliveries,
)
from django_pgqueue.engine.settle.outcomes import end_exhausted, end_expired, end_next_expired
from django_pgqueue.engine.settle.settling import delete
from django_pgqueue.engine.statements import Part
from django_pgqueue.engine.subscriptions import reading as source
from django_pgqueue.engine.wake import NOW
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.types import Wait

__all__ = [
    "BATCHED",
    "EACH",
    "WITH_GROUPS",
    "drained",
    "fall_asleep",
    "lease",
    "limit_names",
    "next_due",
    "peek",
    "pop",
    "read",
    "take_in_time",
    "terms",
    "why",
]

#: No recheck has a higher id than this.
NO_RECHECK = 2**63 - 1

# The parts of read_ready.sql. A process that knows of no groups in the queue leaves out what only
# groups need: of a read of one message this is a tenth of the server's time.
EACH: dict[str, Any] = {"leased": Part("read/lease_each")}
BATCHED: dict[str, Any] = {
    "leased": Part("read/lease_batch"),
    "has_groups": Part("read/has_groups"),
}
WITH_GROUPS: dict[str, Any] = {**EACH, "rechecks": Part("read/recheck")}


def read(
    queue: OpenQueue,
    *,
    vt: float | dt.timedelta | None = None,
    qty: int | None = 1,
    conditional: dict[str, Any] | None = None,
    in_transaction: bool = False,
) -> Deliveries:
    """Lease up to ``qty`` messages, each hidden from other readers for ``vt``.

    Messages that are due again (their lease expired or their delay is over) are taken first, then
    new ones. The list is in order of priority, highest first, then id. Only the head of a FIFO
    group is taken. A message without deliveries left is dead-lettered instead, and one that has
    expired is archived as EXPIRED.

    A lease only holds once it is committed, so a read inside the caller's ``atomic()`` is refused.
    ``in_transaction=True`` allows it: the message stays locked while this transaction processes it,
    and after a rollback it is in the queue as before.

    Arguments:
        vt: the visibility timeout, seconds or a timedelta; by default the queue's.
        qty: the most messages to take; None takes all, until the first lease ends.
        conditional: takes only messages whose body contains this JSON (jsonb's ``@>``).

    >>> [message] = queue("orders").read(vt=60)
    >>> message.body, message.read_ct
    ({'order': 7}, 1)

    Raises QueueNotFound, InvalidArgument, TransactionRefused.
    """
    if not in_transaction:
        queue.refuse_transaction("read")
    return _Read(queue, terms(queue, vt, qty, conditional)).run()


def lease(
    queue: OpenQueue,
    *,
    vt: float | dt.timedelta | None = None,
    qty: int | None = 1,
    conditional: dict[str, Any] | None = None,
    max_deliveries: int | None = None,
    process_id: int | None = None,
    batched: bool = True,
    **names: Any,
) -> Deliveries:
    """Lease messages as :func:`read` does, inside any transaction or none.

    Arguments:
        vt, qty, conditional: as for :func:`read`.
        max_deliveries: replaces the queue's own.
        process_id: the id of the row of the consumer process that will hold the leases.
        batched: False gives each message a lease of its own, for a caller that settles each in a
            transaction of its own.
        names: values of placeholders in the statement's text, such as ``read_columns=``.

    In the result, ``exhausted`` has the receipts of messages that were dead-lettered instead, and
    ``expired`` has the ids of messages that were archived as EXPIRED.

    Raises InvalidArgument.
    """
    params = terms(queue, vt, qty, conditional, max_deliveries, process_id)
    return _Read(queue, params, batched=batched, **names).run()


def terms(
    queue: OpenQueue,
    vt: float | dt.timedelta | None,
    qty: int | None,
    conditional: dict[str, Any] | None = None,
    max_deliveries: int | None = None,
    process_id: int | None = None,
) -> dict[str, Any]:
    """Return the parameters of a statement that leases. None means the queue's own setting."""
    if max_deliveries is None:
        max_deliveries = queue.max_deliveries
    else:
        max_deliveries = arguments.count(max_deliveries, "max_deliveries")
    return {
        "vt": arguments.duration(queue.visibility_timeout if vt is None else vt, least=0),
        "qty": arguments.quantity(qty),
        "conditional": arguments.condition(conditional),
        "process_id": arguments.process(process_id),
        "max_deliveries": max_deliveries,
    }


class _Read:
    """One read: what it was asked for, what it has taken, and what its next statement heeds.

    Made before the transaction, if the operation begins one of its own.
    """

    #: None if the read begins at the start.
    position: Position | None = None
    #: Whether the next statement returns a recheck instead of the ready messages after it.
    heeds_rechecks = True
    rechecks_left = False

    def __init__(
        self, queue: OpenQueue, params: dict[str, Any], *, batched: bool = True, **names: Any
    ) -> None:
        if queue.source_id is not None:
            source.refuse(queue, params["conditional"])
        self.queue, self.params, self.qty = queue, params, params["qty"]
        self.batched, self.names = batched, names
        #: Whether no transaction of the caller's is open.
        self.alone = queue.runner.alone
        self.limits = _limits(queue)
        self.taken = Deliveries()
        self.began = time.monotonic()
        #: How many groups the next call of promote may give a head, in the caller's transaction.
        self.heads = self.qty

    def run(self) -> Deliveries:
        """Read behind the last message that this process took, and if too few are left, from the
        start."""
        queue, qty, taken = self.queue, self.qty, self.taken
        if queue.source_id is not None:
            return self._read_source()
        # No position in a transaction: its rollback may bring back earlier messages.
        fast = queue.runner.alone and not queue.reads_must_commit
        if fast and qty and not self.params["conditional"]:
            self.position = position = position_in(queue)
            if (bounds := position.bounds()) is not None:
                self._read_ready(position, bounds)
        self._read_from_start()
        taken.sort(key=lambda delivery: (-delivery.priority, delivery.id))
        return taken

    def _read_source(self) -> Deliveries:
        """Read a subscription: the source's next messages, and its own at times."""
        queue, qty, taken, params = self.queue, self.qty, self.taken, self.params
        # A transaction of the operation's own ends at once, so its rounds end as without one.
        names = {**self.names, **ROUND[True]} if self.alone else self.names
        if source.own_are_due(queue):
            source.is_behind(queue)  # raises before anything is leased
            self._read_own()
        more = own_are_due = True
        while more and (qty is None or len(taken) < qty) and not self._is_late():
            asked = source.PAGE if qty is None else qty - len(taken)
            values = {**params, "qty": asked}
            found, more, own_are_due = source.read_next(
                queue, values, self.limits, batched=self.batched, **names
            )
            taken += found
            more = more or (qty is None and len(found) == asked)
        if own_are_due and (qty is None or len(taken) < qty):
            self._read_own()
        return taken

    def _read_own(self) -> None:
        """Take due and ready messages of the subscription's own."""
        open_ended(self.queue)
        before = len(self.taken)
        self._read_from_start()
        self.taken[before:] = sorted(self.taken[before:], key=lambda delivery: delivery.id)

    def _read_from_start(self) -> None:
        """Take due and ready messages, until there are enough or no more."""
        more = True
        while more and (self.qty is None or len(self.taken) < self.qty):
            more = self._read_all() and not self._is_late()

    def _read_ready(self, position: Position, bounds: dict[str, Any]) -> None:
        """Take ready messages behind the position, and advance it."""
        queue, qty = self.queue, self.qty
        batched = self.batched and qty >= BATCH_FROM and not position.grouped
        parts = WITH_GROUPS if position.grouped else BATCHED if batched else EACH
        text = queue.text("read/read_ready", **parts, **self.names)
        values = {**self.params, **bounds}
        rows = queue.runner.run(text, values)
        rechecked = None
        if rows and rows[0][0] == RECHECK:
            _, rechecked = promote(queue, qty, alone=self.alone, rechecked=bounds["rechecked"])
            # Ignores the remaining rechecks, so that ready messages are read despite locked groups.
            rows = queue.runner.run(text, {**values, "rechecked": NO_RECHECK})
        found = in_batches(rows) if batched else deliveries(rows)
        position.advance(bounds, qty, found, self.began, rechecked)
        take_in_time(queue, self.taken, found)

    def _read_all(self) -> bool:
        """Take due and ready messages, from the start. Returns whether there may be more."""
        queue, taken = self.queue, self.taken
        if not taken:
            self.began = time.monotonic()
        left = None if self.qty is None else self.qty - len(taken)
        any_body = "true" if self.params["conditional"] is None else "false"
        text = queue.text("read/read", any_body=any_body, **self.limits, **self.names)
        values = {**self.params, "qty": left, "heed": self.heeds_rechecks}
        found = deliveries(queue.runner.run(text, values))
        if self.position is not None and left is not None:
            self.position.begin(left, found)
        removed = self._take(found)
        if any(delivery.note == RECHECK for delivery in found):
            # The next statement ignores the remaining rechecks, so that it reads ready messages
            # though groups are locked.
            self.rechecks_left, _ = promote(queue, self.heads, alone=self.alone)
            self.heeds_rechecks = False
            # More the next time: these heads may be delayed.
            self.heads = self.heads and 10 * self.heads
        elif not removed and self.rechecks_left:
            self.rechecks_left, self.heeds_rechecks = False, True
        else:
            return removed
        return True

    def _take(self, found: Sequence[Delivery]) -> bool:
        """Take the deliveries, and remove the messages that could not be delivered.

        Returns whether there were any of the latter: others may be behind them.
        """
        queue, taken = self.queue, self.taken
        late = take_in_time(queue, taken, found)
        if late and late == len(found):
            taken.expired += end_next_expired(queue, self.params["max_deliveries"])
        ended = [delivery.receipt for delivery in found if delivery.note == EXHAUSTED]
        if ended:
            # Another reader may have ended some, and pgqueue_admitted may have ended their leases.
            lost = end_exhausted(queue, ended).lost
            taken.exhausted += [receipt for receipt in ended if receipt not in lost]
        moved = any(delivery.note == BLOCKED for delivery in found) and set_back(queue)
        return bool(late or ended or moved)

    def _is_late(self) -> bool:
        """Whether the first leases have ended: a read would take their messages again."""
        ran = time.monotonic() - self.began
        return bool(self.taken) and ran >= self.params["vt"].total_seconds()


def _limits(queue: OpenQueue) -> dict[str, Any]:
    """Return the values of the placeholders by which read.sql heeds the queue's limits.

    Raises InvalidArgument in the caller's transaction if the queue has a limit or a rate, or its
    groups have a rate.
    """
    if not queue.is_limited:
        return {}
    if queue.reads_must_commit and not queue.runner.may_lease:
        why = (
            "a rollback would undo the count of started messages"
            if queue.rate or queue.group_rate
            else "other reads of the queue would wait until your transaction ends"
        )
        raise InvalidArgument(
            f"queue {queue.name!r} has a limit, a rate or a group_rate, so it cannot be read in "
            f"your transaction: {why}. Read outside atomic(), without in_transaction=True or "
            f"locked=True"
        )
    return limit_names(
        whole=bool(queue.limit or queue.rate),
        slots=queue.has_slots and queue.source_id is None,  # a subscription keeps no groups
        rate=bool(queue.group_rate),
    )


def limit_names(*, whole: bool, slots: bool, rate: bool) -> dict[str, Any]:
    """Return the values of read.sql's placeholders for a queue with limits.

    Arguments:
        whole: whether the queue has a limit or a rate.
        slots: whether its groups have slots.
        rate: whether its groups have a rate.
    """
    names: dict[str, Any] = {}
    if whole:
        names["admit"] = Part("read/admit")
        names["most"] = "number FROM admit"
        names["admitted"] = Part("read/admitted")
    if slots or rate:
        names["read/blocked"] = Part("read/not_yet")
    if rate:
        names["may_start"] = Part("read/may_start")
        names["started"] = Part("read/started")
    return names


def take_in_time(queue: OpenQueue, taken: Deliveries, found: Sequence[Delivery]) -> int:
    """Append the deliveries in ``found`` to ``taken``, and archive the expired messages.

    Returns how many had expired.
    """
    taken += [delivery for delivery in found if delivery.note is None]
    late = [delivery.receipt for delivery in found if delivery.note == EXPIRED]
    if late:
        taken.expired += end_expired(queue, late)
    return len(late)


def peek(
    queue: OpenQueue,
    *,
    qty: int | None = 1,
    conditional: dict[str, Any] | None = None,
    blocked: bool = False,
) -> list[Delivery]:
    """Return the messages that a read would find. Nothing is leased or counted.

    The list includes expired messages, which the next read will archive: compare ``expires_at``.
    A subscription's own messages come before the source's next ones.

    Arguments:
        qty, conditional: as for :func:`read`.
        blocked: returns instead the messages that are not delivered now, each with its ``wait``, as
            :func:`why` returns it. Messages in flight are left out. First come those that only the
            queue holds back, in the order of reads; then those that their groups hold back, the
            first of each group first; then the delayed ones, by time.

    >>> queue("orders").peek()[0].read_ct
    0
    >>> queue("orders").peek(blocked=True)[0].wait
    Wait(reason='group_limit', until=None)

    Raises QueueNotFound, InvalidArgument.
    """
    condition = arguments.condition(conditional)
    params = {"qty": arguments.quantity(qty), "conditional": condition}
    names = {} if queue.source_id is None else source.IN_LEASES
    if blocked:
        rows = queue.run("read/peek_blocked", params, **names)
        return [
            Delivery(*row, wait=Wait(reason, until))  # type: ignore[misc]
            for *row, reason, until in rows
        ]
    found = deliveries(queue.run("read/peek", params, **names))
    if queue.source_id is not None and (qty is None or len(found) < qty):
        left = None if qty is None else qty - len(found)
        found += source.peek_next(queue, left, condition)
    return found


def pop(queue: OpenQueue, qty: int | None = 1) -> Deliveries:
    """Read up to ``qty`` messages and delete them: each is delivered at most once.

    They are not archived. ``qty=None`` takes all. The read and the delete are one transaction, the
    caller's if there is one.

    >>> queue("orders").pop()[0].body
    {'order': 7}

    Raises QueueNotFound, InvalidArgument.
    """
    leasing = _Read(queue, terms(queue, None, qty))
    with queue.transaction():
        taken = leasing.run()
        delete(queue, [delivery.receipt for delivery in taken])
    # A popped message's read_ct counts only the deliveries before this one.
    taken[:] = [
        d._replace(read_ct=d.read_ct - 1, first_read_at=d.first_read_at if d.read_ct > 1 else None)
        for d in taken
    ]
    return taken


def why(queue: OpenQueue, message_id: int) -> Wait | None:
    """Why a message in the queue is not delivered now. None if it is not in the queue.

    >>> queue("orders").why(7)
    Wait(reason='group_limit', until=None)

    Raises QueueNotFound, InvalidArgument.
    """
    [number] = arguments.ids([message_id])
    statement = "read/why" if queue.source_id is None else "read/why_reader"
    for reason, until, *_ in queue.run(statement, {"id": number}):
        return Wait(reason, until)
    return None


def next_due(queue: OpenQueue) -> float:
    """Seconds until the next delayed or leased message is due; infinity if there is none.

    If the queue's rate admits the next message earlier, returns the seconds until then. For a
    subscription with unread messages in the source, returns the shortest wait.

    >>> queue("orders").next_due()
    4.2

    Raises QueueNotFound.
    """
    if queue.source_id is not None and source.is_behind(queue):
        return NOW
    [(seconds,)] = queue.run("read/next_due")
    return float("inf") if seconds is None else max(seconds, NOW)


def fall_asleep(
    queue: OpenQueue, *, heard: Iterable[int] | None, doubt: int | None
) -> tuple[float, int | None]:
    """Let the next send notify. For a reader that found too few messages and listens.

    Returns the seconds until the next message is due, zero or less if one is ready or due now; and
    a doubt, if a message may still come without a notification. Poll soon then.

    Arguments:
        heard: the process ids of the sessions whose notifications have come since the last call.
            None at the first call, and if notifications may have been missed.
        doubt: what the last call returned; 0 at the first.
    """
    sessions = None if heard is None else arguments.array(pid & 0xFFFF for pid in heard)
    statement = "read/fall_asleep" if queue.source_id is None else "read/fall_asleep_reader"
    [(due, doubt)] = queue.run(statement, {"heard": sessions, "doubt": doubt})
    return float("inf") if due is None else due, doubt


def drained(queue: OpenQueue) -> bool:
    """Whether nothing is ready, due or waiting for its next attempt.

    Messages that are scheduled or in flight do not count. A subscription is not drained while its
    source has messages that it has not read.

    >>> queue("orders").drained()
    True

    Raises QueueNotFound.
    """
    if queue.source_id is not None and source.is_behind(queue):
        return False
    [(nothing_left,)] = queue.run("read/drained")
    return bool(nothing_left)
