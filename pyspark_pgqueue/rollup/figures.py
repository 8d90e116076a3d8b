"""Merges the figures of a roll-up into rows, one for each queue and span."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from pyspark_pgqueue.rollup.statistics import FREQUENT, PERCENTS, TIMES, WORST

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)

Key = tuple[str, int]  # a queue, and a bucket as seconds since 1970


def moment(bucket: int) -> dt.datetime:
    """The time at which a bucket begins.

    >>> moment(3600).isoformat()
    '1970-01-01T01:00:00+00:00'
    """
    return _EPOCH + dt.timedelta(seconds=bucket)


def bucket_of(at: float, seconds: int) -> int:
    """Return the start of the bucket that contains the time ``at``.

    Buckets are ``seconds`` long. Both times are in seconds since 1970.

    >>> bucket_of(3700.5, 3600)
    3600
    """
    return int(at // seconds) * seconds


class Removed(NamedTuple):
    """A queue from which messages were removed, by retention or with the whole queue."""

    queue: str
    #: When the first remaining message ended, in seconds since 1970. If none remains: when messages
    #: were last removed.
    first: float


class Figures:
    """Figures by queue and bucket. Counts of sent messages, live and archived, are added."""

    def __init__(self, seconds: int, start: int, end: int) -> None:
        self.seconds, self.start, self.end = seconds, start, end
        self.rows: dict[Key, dict[str, Any]] = defaultdict(dict)
        self.sent: dict[Key, int] = defaultdict(int)
        self.ended: dict[Key, int] = defaultdict(int)
        self.dead: dict[Key, int] = defaultdict(int)
        #: For queues with removed messages: their first complete span.
        self.whole: dict[str, int] = {}

    def leave_out(self, removed: Sequence[Removed], reached: int) -> None:
        """Keep the existing roll-ups of spans from which messages were removed.

        Spans from ``reached`` on are computed anyway, since no earlier run has completed them.
        """
        for each in removed:
            whole = min(self._after(each.first), reached)
            self.whole[each.queue] = max(self.whole.get(each.queue, 0), whole)

    def _after(self, at: float) -> int:
        """The first span that begins after a time."""
        return bucket_of(at, self.seconds) + self.seconds

    def add(self, queue: str, bucket: int, kind: str, told: Any) -> None:
        """Add a figure: ``kind`` names it, ``told`` is its value as JSON."""
        if kind in {"sent", "dead"}:
            counts = self.sent if kind == "sent" else self.dead
            counts[queue, bucket] += int(told)
            return
        row = self.rows[queue, bucket]
        if kind == "ended":
            self.ended[queue, bucket] += told.pop("count")
            for name in TIMES:
                # NULL if no message has this time.
                values = told.pop(name) or [None] * len(PERCENTS)
                for percent, value in zip(PERCENTS, values, strict=True):
                    row[f"{name}_p{percent}"] = value
            row |= told
        elif kind in FREQUENT:
            row |= FREQUENT[kind].columns(*told)
        elif kind in WORST:
            names = WORST[kind].columns
            row[kind] = [dict(zip(names, values, strict=True)) for values in told]
        else:
            row[kind] = told

    def all(self) -> dict[Key, dict[str, Any]]:
        """The rows of every span with an event or a backlog."""
        for key, count in self.dead.items():
            if self._is_inside(key):
                self.rows[key]["dead_lettered"] = count
        self._backlog()
        return {key: row for key, row in self.rows.items() if self._is_inside(key)}

    def _is_inside(self, key: Key) -> bool:
        return max(self.start, self.whole.get(key[0], 0)) <= key[1] < self.end

    def _backlog(self) -> None:
        """Add each span's ``sent`` and ``backlog``: all sent by its end, minus all ended."""
        change: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for (queue, bucket), count in self.sent.items():
            change[queue][bucket] += count
            if self._is_inside((queue, bucket)):
                self.rows[queue, bucket]["sent"] = count
        for (queue, bucket), count in self.ended.items():
            change[queue][bucket] -= count
        for queue, changes in change.items():
            backlog = 0
            places = sorted(changes)
            for place, following in zip(places, [*places[1:], self.end], strict=True):
                backlog += changes[place]
                first = max(place, self.start)
                for bucket in range(first, min(following, self.end), self.seconds):
                    if backlog or (queue, bucket) in self.rows:
                        self.rows[queue, bucket]["backlog"] = backlog
