"""Finds the time at which a queue's attempts began to fail.

A single earlier failure does not count. The last hour is cut into stretches where the share of
failed attempts changed by more than chance explains. The onset is the start of the first stretch
with a high share, of those that last until now.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from django.db import connections

from django_pgqueue.history.counters import statement
from django_pgqueue.history.recent import LATELY

#: A cut must make the counts this much likelier, as a natural logarithm.
GAIN = 5.0
#: Failures this many times rarer than those that followed were usual before.
USUAL = 10
#: Consumers count a failure up to this long after it happened.
LATE = dt.timedelta(seconds=15)
_MINUTE, _HOUR = dt.timedelta(minutes=1), dt.timedelta(hours=1)
#: Maximum number of failed attempts per queue in which the second of the onset is looked for.
_MOST = 1000

#: The start of a minute, its attempts, and those that failed.
Minute = tuple[dt.datetime, int, int]
#: SQL for a queue ``q``: three arrays, which make its minutes of the last hour.
MINUTES = statement("onset/minutes")


class Onset(NamedTuple):
    """The time at which attempts began to fail."""

    at: dt.datetime
    #: Whether they were failing already when the history of minutes begins.
    is_earlier: bool


def onsets(
    alias: str, minutes: Mapping[int, Sequence[Minute]], share: float, at: dt.datetime
) -> dict[int, Onset]:
    """Return when the attempts of queues began to fail, by queue id.

    Leaves out queues whose failures ended before the last ten minutes.

    Arguments:
        minutes: the minutes of each queue, the oldest first: see ``MINUTES``.
        share: the share of failed attempts from which a queue is failing.
        at: the present.
    """
    found = {pk: start for pk, each in minutes.items() if (start := _start(each, share, at))}
    if not found:
        return {}
    params: dict[str, Any] = {
        "queues": list(found),
        "first": [start - LATE for start in found.values()],
        "until": [start + _MINUTE + LATE for start in found.values()],
        "most": _MOST,
    }
    with connections[alias].cursor() as cursor:
        cursor.execute(statement("onset/failures"), params)
        failures = cursor.fetchall()
    seconds = {pk: _rise([found[pk] - LATE, *times]) for pk, times in failures}
    return {
        pk: Onset(seconds.get(pk, start), start - 2 * _MINUTE < at - _HOUR)
        for pk, start in found.items()
    }


def _start(minutes: Sequence[Minute], share: float, at: dt.datetime) -> dt.datetime | None:
    """Return the minute in which the latest failures began; None if they ended long ago."""
    start = None
    for first, end in reversed(list(_stretches(minutes))):
        attempts, failed = _sums(minutes[first:end])
        if failed >= share * attempts:
            start, share = minutes[first][0], max(share, failed / attempts / USUAL)
        elif start is not None or minutes[first][0] < at - dt.timedelta(seconds=LATELY):
            break
    return start


def _stretches(minutes: Sequence[Minute]) -> Iterator[tuple[int, int]]:
    """Yield the stretches with a constant share of failures, as pairs of first and end index."""
    waiting = [(0, len(minutes))]
    while waiting:
        first, end = waiting.pop()
        attempts, failed = _sums(minutes[first:end])
        whole = _likelihood(attempts, failed)
        gain, cut = 0.0, first
        before, failed_before = 0, 0
        for place in range(first + 1, end):
            before += minutes[place - 1][1]
            failed_before += minutes[place - 1][2]
            parts = _likelihood(before, failed_before)
            parts += _likelihood(attempts - before, failed - failed_before)
            if parts - whole > gain:
                gain, cut = parts - whole, place
        if gain > GAIN:
            waiting += [(cut, end), (first, cut)]
        else:
            yield first, end


def _sums(minutes: Sequence[Minute]) -> tuple[int, int]:
    return sum(each[1] for each in minutes), sum(each[2] for each in minutes)


def _likelihood(attempts: int, failed: int) -> float:
    """Return the logarithm of how likely so many failures are, at their own share."""
    return sum(n * math.log(n / attempts) for n in (failed, attempts - failed) if n)


def _rise(times: Sequence[dt.datetime]) -> dt.datetime:
    """Return the time after which failures are more frequent; the first time is not a failure.

    It is the failure before which their number is furthest behind an even distribution (CUSUM).
    """
    start, *failures = times
    length = (failures[-1] - start).total_seconds()

    def ahead(number: int) -> float:
        return number - len(failures) * (failures[number] - start).total_seconds() / length

    return failures[min(range(len(failures)), key=ahead)]
