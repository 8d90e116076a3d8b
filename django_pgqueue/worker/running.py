"""One run of a handler, and how far it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from django_pgqueue.acks import Outcome
from django_pgqueue.models import Message
from django_pgqueue.types import Receipt

__all__ = ["Clock", "Result", "Running", "Stage"]


class Stage(Enum):
    """How far a run is: BEGUN, RUNNING, ENDED, CONCLUDED, in that order.

    Written by the thread of the run alone. A run in a transaction that is tried again goes back
    to BEGUN.
    """

    BEGUN = auto()  # the handler has not started
    RUNNING = auto()  # inside the handler: an interrupt may hit it
    ENDED = auto()  # the handler has returned or raised
    CONCLUDED = auto()  # its outcomes are handed on


class Clock(Enum):
    """The timeout's part in a run: IN_TIME, OVERDUE, INTERRUPTED, ABANDONED, in that order.

    Written by the lease loop alone.
    """

    IN_TIME = auto()
    OVERDUE = auto()  # an interrupt is about to be sent, or a cancellation was
    INTERRUPTED = auto()  # the interrupt was sent
    ABANDONED = auto()  # given up: whatever the handler still does comes too late


@dataclass(frozen=True)
class Result:
    """A run's return value or error, and the fate of its transaction if it had one."""

    returned: Any = None
    error: BaseException | None = None
    #: False when the handler was never called, for want of a connection.
    ran: bool = True
    #: The outcomes are committed already, with the handler's work.
    settled: bool = False
    #: Receipts that were lost when the run was to be settled in its own transaction.
    lost: Sequence[Receipt | int] = ()


@dataclass(eq=False)
class Running:
    """A run of a handler on one message, or on a batch.

    ``stage`` and ``clock`` have one writer each, so that neither needs a lock; which of
    :meth:`conclude` and :meth:`abandon` comes first is decided under one.
    """

    messages: list[Message]
    thread: int | None = None
    started: float = field(default_factory=time.monotonic)
    #: The outcomes the handler set by message.ack() and the like, by message id.
    said: dict[int, Outcome] = field(default_factory=dict)
    on_said: Callable[[Running, Message, Outcome], None] | None = None
    #: Cancels its task, on an event loop.
    cancel: Callable[[], None] | None = None
    #: The connections of its thread, if its time is limited.
    connections: Sequence[Any] = ()
    stage: Stage = Stage.BEGUN
    clock: Clock = Clock.IN_TIME
    result: Result = Result()
    #: All of its messages were cancelled. Written by the lease loop alone.
    cancelled: bool = False
    _ending: threading.Lock = field(default_factory=threading.Lock)

    @property
    def failed(self) -> bool:
        """Whether the handler raised, or could not be run."""
        return self.result.error is not None

    @property
    def overdue(self) -> bool:
        """Whether its time is over."""
        return self.clock is not Clock.IN_TIME

    @property
    def abandoned(self) -> bool:
        """Whether it was given up, and another thread has taken its place."""
        return self.clock is Clock.ABANDONED

    def say(self, message: Message, outcome: Outcome) -> None:
        """Take what the handler says of a message; the first word counts."""
        if message.id not in self.said:
            self.said[message.id] = outcome
            if self.on_said is not None:
                self.on_said(self, message, outcome)

    def conclude(self, result: Result) -> bool:
        """Note the result; False when the run was abandoned before."""
        with self._ending:
            if self.clock is Clock.ABANDONED:
                return False
            self.result, self.stage = result, Stage.CONCLUDED
            return True

    def abandon(self) -> bool:
        """Give the run up; False when it was concluded before."""
        with self._ending:
            if self.stage is Stage.CONCLUDED:
                return False
            self.clock = Clock.ABANDONED
            return True
