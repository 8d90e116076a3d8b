"""The figures of a roll-up, as they come from the database and from a lake, put together."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = [
    "FIRST_LINE",
    "LONGEST_LIST",
    "PERCENTS",
    "POISONOUS",
    "Figures",
    "Key",
    "Removed",
    "bucket_of",
    "moment",
]

LONGEST_LIST = 5
POISONOUS = 3
PERCENTS = (50, 95, 99)
#: Characters. The first line of an error says what went wrong; its traceback comes after it.
FIRST_LINE = 200

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)

Key = tuple[str, int]  # a queue, and a bucket as seconds since 1970


def moment(bucket: int) -> dt.datetime:
    """When a bucket begins.

    >>> moment(3600).isoformat()
    '1970-01-01T01:00:00+00:00'
    """
    return _EPOCH + dt.timedelta(seconds=bucket)


def bucket_of(at: float, seconds: int) -> int:
    """The bucket of ``seconds`` in which a time lies, that in seconds since 1970.

    >>> bucket_of(3700.5, 3600)
    3600
    """
    return int(at // seconds) * seconds


class Removed(NamedTuple):
    """A queue of which messages were removed, by retention or with the queue."""

    queue: str
    #: When the first ended that is left, in seconds since 1970; of a dropped queue, the drop.
    first: float
    is_dropped: bool


class Figures:
    """Counts by queue and bucket. Those of sent messages may come from several sources and add up;
    those of messages that ended in a bucket come from one."""

    def __init__(self, seconds: int, start: int, end: int) -> None:
        self.seconds, self.start, self.end = seconds, start, end
        self.rows: dict[Key, dict[str, Any]] = defaultdict(dict)
        self.sent: dict[Key, int] = defaultdict(int)
        self.ended: dict[Key, int] = defaultdict(int)
        self.dead: dict[Key, int] = defaultdict(int)
        #: Of queues from which messages were removed, the first span that is whole.
        self.whole: dict[str, int] = {}
        #: Those of them that are still there: a lake may have what was removed.
        self.pruned: set[str] = set()

    def leave_out(self, removed: Sequence[Removed], reached: int) -> None:
        """Keep the roll-ups of spans out of which messages were removed.

        Those from ``reached`` on, which no run has computed to their end, are computed anyway.
        """
        for each in removed:
            whole = min(self._after(each.first), reached)
            self.whole[each.queue] = max(self.whole.get(each.queue, 0), whole)
        dropped = {each.queue for each in removed if each.is_dropped}
        self.pruned = {each.queue for each in removed} - dropped

    def take_from_lake(self, queue: str, first: float) -> None:
        """A lake has what was removed from a queue; ``first`` is as in Removed."""
        if queue in self.pruned:
            self.whole[queue] = min(self.whole[queue], self._after(first))

    def _after(self, at: float) -> int:
        """The first span that begins after that time."""
        return bucket_of(at, self.seconds) + self.seconds

    def add(self, queue: str, bucket: int, kind: str, told: Any) -> None:
        """One figure: ``kind`` says which, ``told`` is its value as JSON has it."""
        if kind == "sent":
            self.sent[queue, bucket] += int(told)
            return
        row = self.rows[queue, bucket]
        if kind == "ended":
            self.ended[queue, bucket] += told["count"]
            for name in ("completed", "failed", "retried", "busy_seconds"):
                row[name] = told[name]
            for name in ("wait", "run"):
                # NULL where none of the messages has that time.
                values = told[f"{name}s"] or [None] * len(PERCENTS)
                for percent, value in zip(PERCENTS, values, strict=True):
                    row[f"{name}_p{percent}"] = value
        elif kind == "top_group":
            row["groups"] = told["groups"]
            row["top_group"] = {"group": told["group"], "count": told["count"]}
        else:
            row[kind] = told

    def all(self) -> dict[Key, dict[str, Any]]:
        """Every span in which something happened, or something waited."""
        for key, count in self.dead.items():
            if self._is_inside(key):
                self.rows[key]["dead_lettered"] = count
        self._backlog()
        return {key: row for key, row in self.rows.items() if self._is_inside(key)}

    def _is_inside(self, key: Key) -> bool:
        return max(self.start, self.whole.get(key[0], 0)) <= key[1] < self.end

    def _backlog(self) -> None:
        """Sent before a span's end and not ended by then; spans in between have one too."""
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
