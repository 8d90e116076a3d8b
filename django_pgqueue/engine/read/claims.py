"""How far this process has claimed what is ready in a queue: where its next read begins.

While a transaction keeps an old snapshot, the rows of messages that were read stay, dead, at the
head of every index, and a read from the start passes over all of them: 112 ms with 1,300,000 of
them. A read that begins behind the last row this process took passes over none (0.2 ms).

Rows that land before that bound are not lost: messages whose transaction committed late, or that
were sent back from elsewhere, are found by a read from the start. There is one as soon as a read
comes back short, and at least every second; less often where it takes so long that it would be more
than a twentieth of the work, but every five seconds.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Hashable, Sequence
from typing import Any

from django_pgqueue.engine.queue import OpenQueue
from django_pgqueue.engine.rows import Delivery

__all__ = ["Claim", "claim_on"]

#: Seconds between two reads from the start: at the least, as a multiple of how long one took, and
#: at the most.
SWEEP_INTERVAL = 1.0
SWEEP_SHARE = 20
SWEEP_LIMIT = 5.0

# Before everything: no priority is higher than 100.
_START: dict[str, Any] = {"rank": -101, "after": 0, "due_after": 0}


class Claim:
    """Where the next read of one queue begins. Threads may share it: a bound is never wrong."""

    __slots__ = ("_bounds", "_swept_at", "_took", "grouped")

    def __init__(self) -> None:
        #: None: the last read came back short, and the next one looks everywhere.
        self._bounds: dict[str, Any] | None = None
        self._swept_at = float("-inf")
        self._took = 0.0
        #: Whether the last read found messages of groups: their heads are leased one by one.
        self.grouped = False

    def bounds(self) -> dict[str, Any] | None:
        """The parameters of read_ready.sql; None when the next read is one of read.sql."""
        bounds = self._bounds
        rest = min(max(SWEEP_INTERVAL, SWEEP_SHARE * self._took), SWEEP_LIMIT)
        if bounds is not None and time.monotonic() - self._swept_at >= rest:
            return _START
        return bounds

    def advance(
        self, bounds: dict[str, Any], qty: int, found: Sequence[Delivery], began: float
    ) -> None:
        """Note the result of read_ready.sql for these bounds, and when it began."""
        if not self._is_full(qty, found):
            return
        if bounds is _START:
            self._swept_at, self._took = began, time.monotonic() - began
        if any(delivery.group_key is not None for delivery in found):
            # The heads of groups come up in any order, so that for them there is no bound.
            self.grouped, self._bounds = True, _START
            return
        rank, after = max((-delivery.priority, delivery.id) for delivery in found)
        self._bounds = {"rank": rank, "after": after, "due_after": found[0].read_at}

    def begin(self, qty: int, found: Sequence[Delivery]) -> None:
        """Note the result of read.sql: when that is all it was asked for, there may be more."""
        self.grouped = self.grouped or any(d.group_key is not None for d in found)
        if self._is_full(qty, found):
            self._bounds, self._swept_at = _START, float("-inf")

    def _is_full(self, qty: int, found: Sequence[Delivery]) -> bool:
        full = len(found) == qty > 0 and all(delivery.note is None for delivery in found)
        if not full:
            self._bounds = None
        return full


# By what tells a queue from another that was made in its place, where ids begin anew.
_claims: dict[tuple[Hashable, int, dt.datetime], Claim] = {}


def claim_on(queue: OpenQueue) -> Claim:
    """This process's claim on a queue."""
    key = queue.runner.database, queue.id, queue.created_at
    claim = _claims.get(key)
    if claim is None:
        claim = _claims.setdefault(key, Claim())
    return claim
