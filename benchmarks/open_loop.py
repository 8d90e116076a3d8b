"""Open-loop load: messages sent at fixed times, however late earlier ones are handled.

A sender that waits for an answer before the next send omits the load that would have come
meanwhile, and so the worst delays ("coordinated omission", Gil Tene). Here each delay counts from
the time at which the message was due to be sent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

from benchmarks import peers

__all__ = ["delays", "moments", "percentile", "sender"]


def moments(start: float, rate: float, count: int, senders: int) -> list[list[float]]:
    """The times at which each sender sends, for a total of ``rate`` per second.

    >>> moments(0, rate=10, count=5, senders=2)
    [[0.0, 0.2, 0.4], [0.1, 0.3]]
    """
    return [[start + n / rate for n in range(place, count, senders)] for place in range(senders)]


def delays(sent: Iterable[float], handled: dict[float, float], ended: float) -> list[float]:
    """The delay of each message; for an unhandled one, its wait so far."""
    return [handled.get(moment, ended - moment) for moment in sent]


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that at least ``percent`` of all values do not exceed (nearest rank).

    >>> percentile([1, 2, 3, 4], 50), percentile([1, 2, 3, 4], 99.9)
    (2, 4)
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    # Rounded, since 99.9 percent of 1,000 is not exactly 999 in binary.
    rank = math.ceil(round(percent * len(ordered) / 100, 9))
    return ordered[max(rank, 1) - 1]


def sender(
    label: str, is_tuned: bool, mode: str, due: list[list[float]], place: int
) -> Callable[[], int]:
    """A client's step: wait until the next message is due, and send it. Returns 0 after the last
    one.

    A late sender does not wait. The message contains the time at which it was due.
    """
    worker = _worker(label, is_tuned)
    left = iter(due[place])

    def step() -> int:
        if (moment := next(left, None)) is None:
            return 0
        if (wait := moment - time.monotonic()) > 0:
            time.sleep(wait)
        worker.enqueue({"sent": moment}, mode)
        return 1

    return step


_workers: dict[tuple[str, bool], peers.Worker] = {}


def _worker(label: str, is_tuned: bool) -> peers.Worker:
    if (label, is_tuned) not in _workers:
        _workers[label, is_tuned] = peers.open_worker(label, is_tuned=is_tuned)
    return _workers[label, is_tuned]
