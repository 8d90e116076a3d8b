"""How far this process has claimed what is ready in a queue: where its next read begins.

While somebody keeps an old snapshot, the rows of messages that were read stay, dead, at the head
of every index, and a read from the start goes over all of them. Whoever begins behind the last row
that he took himself does not see them. What comes to stand before that bound is not lost:
messages whose transaction committed late, or that were sent back from elsewhere, are found by a
read from the start. There is one as soon as a read comes back short, and at least every second;
or less often where it takes so long that it would be more than a twentieth of the work.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Sequence
from typing import Any

from django_pgqueue.models.queue import Queue, database_key

__all__ = ["Claim", "claim_on"]

#: Seconds between two reads from the start, at the least.
SWEEP_INTERVAL = 1.0
#: And how many times as long as such a read took.
SWEEP_SHARE = 20

# Before everything: no priority is higher than 100.
_START: dict[str, Any] = {"rank": -101, "after": 0, "due_after": "-infinity"}


class Claim:
    """Where the next read of one queue begins. Threads may share it: a bound is never wrong."""

    __slots__ = ("_bounds", "_swept_at", "_took", "grouped")

    def __init__(self) -> None:
        #: None: the last read came back short, and the next one looks everywhere.
        self._bounds: dict[str, Any] | None = None
        self._swept_at = float("-inf")
        self._took = 0.0
        #: Whether there were messages of groups, whose heads are leased one by one.
        self.grouped = False

    def bounds(self) -> dict[str, Any] | None:
        """The parameters of read_ready.sql; None when read.sql is called for."""
        bounds = self._bounds
        rest = max(SWEEP_INTERVAL, SWEEP_SHARE * self._took)
        if bounds is not None and time.monotonic() - self._swept_at >= rest:
            return _START
        return bounds

    def advance(
        self, bounds: dict[str, Any], qty: int, rows: Sequence[Sequence[Any]], began: float
    ) -> None:
        """Note what read_ready.sql brought for these bounds, and when it was asked to."""
        if not self._go_on(qty, rows):
            return
        if bounds is _START:
            self._swept_at, self._took = began, time.monotonic() - began
        if any(row[5] is not None for row in rows):
            # The heads of groups come up in any order, so that for them there is no bound.
            self.grouped, self._bounds = True, _START
            return
        lowest = min([row[4] for row in rows])
        after = max([row[0] for row in rows if row[4] == lowest])
        read_at: dt.datetime = rows[0][9]
        self._bounds = {"rank": -lowest, "after": after, "due_after": read_at}

    def begin(self, qty: int, rows: Sequence[Sequence[Any]]) -> None:
        """Note what read.sql brought: when that is all it was asked for, there may be more."""
        self.grouped = self.grouped or any(row[5] is not None for row in rows)
        if self._go_on(qty, rows):
            self._bounds, self._swept_at = _START, float("-inf")

    def _go_on(self, qty: int, rows: Sequence[Sequence[Any]]) -> bool:
        # Rows without a timeout are no messages, but what has to be put right first.
        on = len(rows) == qty > 0 and all(row[8] is not None for row in rows)
        if not on:
            self._bounds = None
        return on


# By what tells a queue from another that was made in its place, where ids begin anew.
_claims: dict[tuple[str, str, int, dt.datetime], Claim] = {}


def claim_on(queue: Queue) -> Claim:
    """This process's claim on a queue."""
    key = *database_key(queue.alias), queue.id, queue.created_at
    claim = _claims.get(key)
    if claim is None:
        claim = _claims.setdefault(key, Claim())
    return claim
