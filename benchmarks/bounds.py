"""Whether handlers kept a cap and a rate. All moments are whole microseconds."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

__all__ = ["SECOND", "over_cap", "over_rate"]

SECOND = 1_000_000


def over_cap(runs: Iterable[tuple[int, int | None]], cap: int) -> tuple[int, int]:
    """The most runs at once, and the number of starts while ``cap`` others ran.

    A run is a start and an end; without an end, it still runs.

    >>> over_cap([(0, 10), (5, 15), (10, None)], cap=1)
    (2, 2)
    """
    ends: list[float] = []
    most = over = 0
    for started, ended in sorted(runs, key=lambda run: run[0]):
        while ends and ends[0] <= started:
            heapq.heappop(ends)
        heapq.heappush(ends, math.inf if ended is None else ended)
        most = max(most, len(ends))
        over += len(ends) > cap
    return most, over


def over_rate(starts: Sequence[int], rate: int, burst: int) -> tuple[float, int]:
    """The worst excess over ``rate`` a second, in starts, and the number of starts to remove.

    The excess of a window of T seconds is its starts minus rate x T + burst. A start is removed if
    an excess reaches a whole start by it: smaller ones come from the delay between the limiter and
    the handler.

    >>> over_rate([0, 0, SECOND], rate=1, burst=1)
    (1.0, 1)
    """
    # Two leaky buckets, in millionths of a start. The second one leaves out the removed starts.
    level = kept = worst = over = 0
    for before, now in pairwise([*starts[:1], *starts]):
        leaked = (now - before) * rate
        level = max(level - leaked, 0) + SECOND
        worst = max(worst, level)
        kept = max(kept - leaked, 0)
        if kept >= burst * SECOND:
            over += 1
        else:
            kept += SECOND
    return (worst - burst * SECOND) / SECOND, over
