"""Read the source's next messages, behind a subscription's position, or look at them."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Hashable
from typing import Any
from weakref import ref

from django_pgqueue.engine.leases.batches import in_batches, unfold
from django_pgqueue.engine.open_queue import OpenQueue, looking
from django_pgqueue.engine.rows import AGAIN, EARLY, FOREIGN, OWN, Delivery
from django_pgqueue.engine.sqlstates import SERIALIZATION_FAILURE, sqlstate
from django_pgqueue.engine.statements import Part
from django_pgqueue.errors import InvalidArgument, PositionLost
from django_pgqueue.types import Batch

__all__ = [
    "IN_LEASES",
    "is_behind",
    "own_are_due",
    "peek_next",
    "position_lost",
    "read_next",
    "refuse",
    "refuse_groups",
]

#: The most messages of one statement, if the caller asked for all.
PAGE = 1000
#: Seconds between two looks at the subscription's own messages, while the source has more.
OWN_INTERVAL = 1.0

_KEPT = {"leased": Part("subscriptions/lease_kept"), "admitted": Part("subscriptions/admitted")}
_BATCHED = {"leased": Part("read/lease_batch")}
_EACH = {"leased": Part("subscriptions/lease_each")}

#: Placeholders of statements that look up messages in leases: the source has them.
IN_LEASES = {
    "read/bodies": Part("subscriptions/bodies"),
    "read/contains": Part("subscriptions/contains"),
}
#: How many messages a first look goes through. Each further one goes through ten times as many.
_FIRST_LOOK = 100
# Reads between a failed try to go on with a round, since others read too, and the next.
_ROUNDS_OFF = 8


class _Memory:
    """What this process remembers of one subscription."""

    __slots__ = ("looked_at", "number", "rest", "session")

    def __init__(self) -> None:
        #: When it last looked at the subscription's own messages.
        self.looked_at = float("-inf")
        #: The number of the position that its last read left within a round; 0: none.
        self.number = 0
        #: The connection of that read: another one may lead to another server.
        self.session: ref[Any] | None = None
        #: How many reads do not try to go on there.
        self.rest = 0


_memories: dict[tuple[Hashable, int, dt.datetime], _Memory] = {}


def _memory_of(queue: OpenQueue) -> _Memory:
    # Keyed by creation time: a subscription that was made again does not inherit it.
    key = queue.runner.database, queue.id, queue.created_at
    memory = _memories.get(key)
    return _memories.setdefault(key, _Memory()) if memory is None else memory


def refuse(queue: OpenQueue, conditional: object) -> None:
    """Raise InvalidArgument for a read that a subscription cannot do."""
    if conditional is not None:
        raise InvalidArgument(
            f"queue {queue.name!r} is a subscription, which reads its source in order: it cannot "
            f"take only messages that match a condition. Read them all, and acknowledge the others"
        )
    if not queue.runner.may_lease:
        raise InvalidArgument(
            f"queue {queue.name!r} is a subscription, so it cannot be read in your transaction: "
            f"its other readers would wait until it ends. Read outside atomic(), without "
            f"in_transaction=True or locked=True"
        )


def refuse_groups(queue: OpenQueue, operation: str) -> None:
    """Raise InvalidArgument for a read of FIFO groups, if the queue is a subscription."""
    queue.refuse_subscription(
        f"it does not keep FIFO groups in order, so there is no {operation}(). Call read()"
    )


def own_are_due(queue: OpenQueue) -> bool:
    """Whether this process looks at the subscription's own messages before the source's next.

    These are the retried, delayed and redriven ones.
    """
    memory, now = _memory_of(queue), time.monotonic()
    if now - memory.looked_at < OWN_INTERVAL:
        return False
    memory.looked_at = now
    memory.number = 0  # behind a pooler, the same connection may lead to another server
    return True


def read_next(
    queue: OpenQueue,
    params: dict[str, Any],
    limits: dict[str, Any],
    *,
    batched: bool,
    **names: Any,
) -> tuple[list[Delivery], bool, bool]:
    """Lease the source's next messages.

    Returns them; whether to call again at once; and whether own messages are due.

    Arguments:
        params: the parameters of a read.
        limits: placeholders by which a statement heeds the queue's limits.
        batched: False gives each message a lease of its own.

    Raises PositionLost if the position does not belong to this database system.
    """
    parts = {**limits, **_KEPT} if limits else _BATCHED if batched else _EACH
    memory = _memory_of(queue)
    number, memory.number = memory.number, 0
    goes_on = bool(number and not limits and queue.runner.alone and memory.rest == 0)
    if goes_on and (memory.session is None or memory.session() is not queue.runner.session):
        goes_on = False
    memory.rest -= memory.rest > 0
    statement = "subscriptions/read_rest" if goes_on else "subscriptions/read_next"
    text = queue.text(statement, **parts, **names)
    try:
        rows = queue.runner.run(text, {**params, "number": number} if goes_on else params)
    except Exception as error:
        # Above READ COMMITTED, a position that another read has moved is an error.
        if queue.runner.alone and sqlstate(error) == SERIALIZATION_FAILURE:
            return [], True, False
        raise
    note = rows.pop()[0] if rows and rows[-1][0] in (AGAIN, OWN, FOREIGN) else None
    if note == FOREIGN:
        raise position_lost(queue)
    if rows:
        memory.number = rows[-1][-1]
        if memory.number:
            memory.session = ref(queue.runner.session)
    elif goes_on:
        memory.rest = _ROUNDS_OFF
    early = [row[1] for row in rows if row[0] == EARLY]
    if limits:
        found = [Delivery(*row) for row in rows]
    elif batched:
        found = in_batches(rows)
    else:
        found = [Delivery._make((*row, Batch(row[1], 1), None)) for row in rows]
    if early:
        unfold(queue, early)
        found = [delivery for delivery in found if delivery.note is None]
    again = note == AGAIN or len(rows) == params["qty"] > len(found)
    return found, again, note == OWN


def position_lost(queue: OpenQueue) -> PositionLost:
    """Return the error of a position that is missing or comes from another system."""
    last = next((pk for (pk,) in queue.run("subscriptions/resume")), None)
    return PositionLost(queue.name, last)


def peek_next(queue: OpenQueue, qty: int | None, conditional: str | None) -> list[Delivery]:
    """Return up to ``qty`` of the source's next messages, which a read would take. None: all.

    Raises PositionLost.
    """
    most = None if qty is None else max(qty, _FIRST_LOOK)
    text = queue.text("subscriptions/peek", **looking(queue.runner), most="%(most)s::bigint")
    while True:
        rows = queue.runner.run(text, {"qty": qty, "most": most, "conditional": conditional})
        note = rows.pop() if rows and rows[-1][0] is not None else None
        if note is None:
            return [Delivery(*row) for row in rows]
        if note[0] == FOREIGN:
            raise position_lost(queue)
        most = 10 * most  # type: ignore[operator]


def is_behind(queue: OpenQueue) -> bool:
    """Whether the source has messages that the subscription has not read. Raises PositionLost."""
    [(found,)] = queue.run("subscriptions/behind", **looking(queue.runner), most="1")
    if found is None:
        raise position_lost(queue)
    return bool(found)
