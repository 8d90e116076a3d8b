"""Reads the history of the last hour for the admin, for many queues in one statement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from django.db import connections

from django_pgqueue.history.counters import ENDED, FAILED, SUCCEEDED, statement
from django_pgqueue.history.histograms import quantile

#: Time slots in an hour: the last one is the current minute, the others have two minutes each.
SLOTS = 31
#: The recent period: in seconds for wait and run times, in slots for counts.
LATELY, LATELY_SLOTS = 600, 6
#: The number of two-minute slots from which rates per minute are computed.
RATE = 3


class Counts(NamedTuple):
    """Messages sent and attempts ended in a span of time."""

    sent: int = 0
    ended: int = 0  # Messages that left the queue.
    completed: int = 0
    failed: int = 0
    dead_lettered: int = 0
    retried: int = 0

    @classmethod
    def of(cls, row: Mapping[str, int]) -> Counts:
        """Return the counts in a row of the history."""
        ended, completed, failed = (
            sum(row[name] for name in names) for names in (ENDED, SUCCEEDED, FAILED)
        )
        return cls(row["sent"], ended, completed, failed, row["dead_lettered"], row["retried"])

    @property
    def bad(self) -> int:
        """The number of failed attempts, including those of messages that will be retried."""
        return self.retried + self.failed + self.dead_lettered

    @property
    def share(self) -> float:
        """The share of all attempts that failed.

        >>> Counts(completed=9, retried=1).share
        0.1
        """
        return self.bad / self.attempts if self.attempts else 0.0

    @property
    def attempts(self) -> int:
        """The number of attempts that ended, successful or not."""
        return self.completed + self.bad


def total(counts: Iterable[Counts]) -> Counts:
    """Return the sum of these counts."""
    return Counts(*map(sum, zip(*counts, strict=True)))


@dataclass
class Recent:
    """The last hour of one or more queues: counts by time slot, the oldest first."""

    slots: list[Counts] = field(default_factory=lambda: [Counts()] * SLOTS)

    @classmethod
    def sum(cls, every: Iterable[Recent]) -> Recent:
        """Return the sum of several queues' counts, slot by slot."""
        every = list(every)
        if len(every) == 1:
            return every[0]
        slots = [total(slots) for slots in zip(*(each.slots for each in every), strict=True)]
        return cls(slots) if slots else cls()

    @cached_property
    def hour(self) -> Counts:
        return total(self.slots)

    @property
    def over(self) -> list[Counts]:
        """The complete time slots: all but the last, which is the current minute."""
        return self.slots[:-1]

    @property
    def lately(self) -> Counts:
        """The counts of the last ten minutes."""
        return total(self.slots[-LATELY_SLOTS:])

    def add(self, minutes: int, counts: Counts) -> None:
        """Add the counts of a minute that began ``minutes`` before the current one."""
        slot = -1 - min((minutes + 1) // 2, SLOTS - 1)
        self.slots[slot] = total([self.slots[slot], counts])

    def per_minute(self, second: int) -> tuple[float, float]:
        """Return messages sent and ended per minute, averaged over the last six minutes.

        The current minute began ``second`` seconds ago. It counts for ended messages only: sends
        are sampled once a minute, so its count of sends is not complete.
        """
        counts, minutes = total(self.over[-RATE:]), 2 * RATE
        ended = counts.ended + self.slots[-1].ended
        return counts.sent / minutes, ended / (minutes + second / 60)


class Times(NamedTuple):
    """The 95th percentiles of wait time and run time, in seconds."""

    wait: float | None = None
    run: float | None = None

    @classmethod
    def of(cls, counts: Mapping[str, Mapping[str, int]]) -> Times:
        """Compute the percentiles from the histograms ``waits`` and ``runs``."""
        return cls(*(quantile(counts[kind], 0.95) for kind in ("waits", "runs")))


def recent(alias: str, queues: Sequence[int]) -> dict[int, Recent]:
    """Return the last hour of these queues by id. Queues without history rows are left out."""
    found: dict[int, Recent] = defaultdict(Recent)
    with connections[alias].cursor() as cursor:
        cursor.execute(statement("recent"), {"queues": list(queues)})
        for queue_id, slot, *counts in cursor.fetchall():
            if 0 <= slot < SLOTS:  # outside if a clock was set back
                found[queue_id].slots[-1 - slot] = Counts(*counts)
    return dict(found)


def times(alias: str, queues: Sequence[int]) -> dict[int, Times]:
    """Return the wait and run times of these queues in the last ten minutes, by queue id."""
    counts: dict[int, dict[str, dict[str, int]]] = defaultdict(lambda: {"waits": {}, "runs": {}})
    with connections[alias].cursor() as cursor:
        cursor.execute(statement("times"), {"queues": list(queues), "lately": LATELY})
        for queue_id, kind, key, number in cursor.fetchall():
            counts[queue_id][kind][key] = number
    return {queue_id: Times.of(kinds) for queue_id, kinds in counts.items()}
