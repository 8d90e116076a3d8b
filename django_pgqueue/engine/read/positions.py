"""Where this process's next read of a queue begins: behind the last ready row that it took.

So the read does not scan the dead rows of earlier messages, which vacuum cannot remove while a long
transaction is open. The search for rechecks of groups begins behind the processed ones.

A message may become ready in front of that position, because its transaction committed late or
another process gave it back. A *sweep*, a read from the start, finds it. A sweep follows each read
that found too few messages. Otherwise it runs every second; less often, but at least every five
seconds, if sweeps would take more than a twentieth of the time.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Hashable, Sequence
from typing import Any

from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.rows import Delivery

__all__ = ["Position", "position_in"]

#: Seconds between sweeps: minimum, multiple of the last sweep's time, maximum.
SWEEP_INTERVAL = 1.0
SWEEP_SHARE = 20
SWEEP_LIMIT = 5.0

# The position before all rows: no priority is higher than 100.
_START: dict[str, Any] = {"rank": -101, "after": 0, "due_after": 0, "rechecked": 0}


class Position:
    """Where the next read of a queue begins. Threads may share it: a read may begin anywhere."""

    __slots__ = ("_bounds", "_swept_at", "_took", "grouped")

    def __init__(self) -> None:
        #: None if the last read found too few messages: the next read then runs read.sql.
        self._bounds: dict[str, Any] | None = None
        self._swept_at = float("-inf")
        self._took = 0.0
        #: Whether a read has found messages of groups: each of them needs its own lease row.
        self.grouped = False

    def bounds(self) -> dict[str, Any] | None:
        """Return the parameters of read_ready.sql, or None if the next read has to run read.sql."""
        bounds = self._bounds
        rest = min(max(SWEEP_INTERVAL, SWEEP_SHARE * self._took), SWEEP_LIMIT)
        if bounds is not None and time.monotonic() - self._swept_at >= rest:
            return _START
        return bounds

    def advance(
        self,
        bounds: dict[str, Any],
        qty: int,
        found: Sequence[Delivery],
        began: float,
        rechecked: int | None = None,
    ) -> None:
        """Advance past the messages that read_ready.sql found.

        Arguments:
            began: when the read started.
            rechecked: the id up to which all rechecks are processed; None if the read found none.
        """
        if not self._is_full(qty, found):
            return
        if bounds is _START:
            self._swept_at, self._took = began, time.monotonic() - began
        self.grouped = self.grouped or any(d.group_key is not None for d in found)
        rank, after = max((-delivery.priority, delivery.turn) for delivery in found)
        if rechecked is None:
            # A recheck gets a later id than the messages that were sent before.
            rechecked = max(bounds["rechecked"], *(delivery.turn >> 20 for delivery in found))
        self._bounds = {
            "rank": rank,
            "after": after,
            "due_after": found[0].read_at,
            "rechecked": rechecked,
        }

    def begin(self, qty: int, found: Sequence[Delivery]) -> None:
        """Begin at the start if read.sql found ``qty`` messages: there may be more."""
        self.grouped = self.grouped or any(d.group_key is not None for d in found)
        if self._is_full(qty, found):
            self._bounds, self._swept_at = _START, float("-inf")

    def _is_full(self, qty: int, found: Sequence[Delivery]) -> bool:
        full = len(found) == qty > 0 and all(delivery.note is None for delivery in found)
        if not full:
            self._bounds = None
        return full


# Keyed by creation time: a queue that was dropped and made again does not inherit the position.
_positions: dict[tuple[Hashable, int, dt.datetime], Position] = {}


def position_in(queue: OpenQueue) -> Position:
    """Return this process's position in a queue."""
    key = queue.runner.database, queue.id, queue.created_at
    position = _positions.get(key)
    if position is None:
        position = _positions.setdefault(key, Position())
    return position
