"""One run of a handler: its stage, and the interrupt after its timeout.

The interrupt hits the handler, and nothing before or after it.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from django_pgqueue.acks import Outcome
from django_pgqueue.errors import HandlerTimeout
from django_pgqueue.models import Message
from django_pgqueue.types import Receipt


class Stage(Enum):
    """The stage of a run: BEGUN, RUNNING, ENDED, CONCLUDED, in that order.

    Written by the thread of the run alone. A run in a transaction that is tried again goes back
    to BEGUN.
    """

    BEGUN = auto()  # the handler has not started
    RUNNING = auto()  # inside the handler: an interrupt may hit it
    ENDED = auto()  # the handler has returned or raised
    CONCLUDED = auto()  # its outcomes are handed on


class Clock(Enum):
    """The state of a run's timeout: IN_TIME, OVERDUE, INTERRUPTED, ABANDONED, in that order.

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
    #: False when the handler was not called, because there was no connection.
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
    #: What the handler, or the middleware around it, is called with.
    arguments: tuple[Any, ...] = ()
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
    def unsettled(self) -> list[Message]:
        """The messages without an outcome of the handler that is written at once."""
        said = self.said if self.on_said is not None else {}
        return [message for message in self.messages if message.id not in said]

    @property
    def overdue(self) -> bool:
        """Whether its time is over."""
        return self.clock is not Clock.IN_TIME

    @property
    def abandoned(self) -> bool:
        """Whether it was given up, and another thread has taken its place."""
        return self.clock is Clock.ABANDONED

    def say(self, message: Message, outcome: Outcome) -> None:
        """Record the outcome that the handler set for a message. Only the first one counts."""
        if message.id not in self.said:
            self.said[message.id] = outcome
            if self.on_said is not None:
                self.on_said(self, message, outcome)

    def conclude(self, result: Result) -> bool:
        """Record the result. Returns False if the run was abandoned before."""
        with self._ending:
            if self.clock is Clock.ABANDONED:
                return False
            self.result, self.stage = result, Stage.CONCLUDED
            return True

    def abandon(self) -> bool:
        """Give up the run. Returns False if it was concluded before."""
        with self._ending:
            if self.stage is Stage.CONCLUDED:
                return False
            self.clock = Clock.ABANDONED
            return True


def guarded(running: Running, call: Callable[..., Any]) -> tuple[Any, BaseException | None]:
    """Run a handler; returns what it returned and what it raised.

    SystemExit and MemoryError too: a handler ends its message, not its consumer. An interrupt may
    come at any step, here as well, so an error is assumed until there is none.
    """
    returned: Any = None
    error: BaseException | None = HandlerTimeout()
    try:
        try:
            running.stage = Stage.RUNNING
            if running.clock is not Clock.IN_TIME:
                raise HandlerTimeout
            returned = call(*running.arguments)
            error = None
        except BaseException as raised:
            error = raised
        _disarm(running)
    except HandlerTimeout:
        _disarm(running)
    return returned, error


def canceller() -> Callable[[], None]:
    """Returns a function that cancels the present task from another thread."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def cancel() -> None:
        if task is not None:
            loop.call_soon_threadsafe(task.cancel)

    return cancel


def interrupt(running: Running) -> None:
    """Have HandlerTimeout raised in the thread of a run, at its next step in Python.

    Only the handler is interrupted, not the code before it starts or after it ends.
    """
    running.clock = Clock.OVERDUE
    if running.stage is Stage.RUNNING:
        _raise_in(running.thread, HandlerTimeout)
    running.clock = Clock.INTERRUPTED


def _disarm(running: Running) -> None:
    """End the handler: no interrupt hits this thread any more, one that is on its way included.

    Stage and clock are written and read crosswise, here and in :func:`interrupt`: either this
    thread sees that the run is overdue, or the other one sees that the handler has ended.
    """
    while True:
        try:
            running.stage = Stage.ENDED
            if running.clock is not Clock.IN_TIME:
                while running.clock is Clock.OVERDUE:
                    time.sleep(0)
                _raise_in(running.thread, None)
            return
        except HandlerTimeout:
            continue


def _raise_in(thread: int | None, error: type[BaseException] | None) -> None:
    if thread is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread), ctypes.py_object(error) if error else None
        )
