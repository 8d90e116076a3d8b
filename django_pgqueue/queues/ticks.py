"""What became of a schedule's latest ticks. The schedule's row stores them as JSON arrays."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple

from django_pgqueue.engine.times import EPOCH, moment

__all__ = ["KEPT", "Outcome", "Tick", "tick_at"]

#: How many ticks of a schedule are kept.
KEPT = 30


class Outcome(str, Enum):
    """What became of a tick."""

    SENT = "sent"
    HELD = "held"  # A message held the schedule's unique key, so none was sent.
    MISSED = "missed"  # No consumer sent it in time: it was skipped, or is part of another tick.
    FAILED = "failed"  # This package refused the message.


class Tick(NamedTuple):
    """A past tick of a schedule: see :attr:`Schedule.latest_ticks`."""

    microseconds: int  # Since 1970.
    outcome: Outcome
    late: int = 0  # The seconds from the tick to its send.
    #: The message that was sent, or that held the key.
    message_id: int | None = None

    @classmethod
    def of(cls, stored: list[Any]) -> Tick:
        """Return the tick that was stored as a JSON array."""
        microseconds, outcome, *more = stored
        return cls(microseconds, Outcome(outcome), *more)

    @classmethod
    def at_moment(cls, at: dt.datetime, outcome: Outcome, *more: Any) -> Tick:
        return cls((at - EPOCH) // dt.timedelta(microseconds=1), outcome, *more)

    @property
    def at(self) -> dt.datetime:
        """The time of the tick, in UTC."""
        return moment(self.microseconds)

    @property
    def is_missed(self) -> bool:
        """Whether no message was sent for the tick, and :meth:`Schedule.run_missed` can send it."""
        return self.outcome in (Outcome.MISSED, Outcome.FAILED)


def tick_at(ticks: Iterable[Tick], microseconds: int) -> Tick | None:
    """Return the tick of a time, in microseconds since 1970; None if it is not among them."""
    return next((each for each in ticks if each.microseconds == microseconds), None)
