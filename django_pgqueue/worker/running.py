"""One run of a handler, and the interrupt after its timeout, which hits only the handler."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from django_pgqueue.acks import Outcome
from django_pgqueue.errors import HandlerTimeout
from django_pgqueue.models import Message
from django_pgqueue.types import Receipt

_GENERATORS = (Generator, AsyncGenerator)
_CLOSABLE = (Coroutine, Generator)
#: Types of values that need no look: a look takes longer than an empty handler.
_FINISHED = frozenset({type(None), bool, int, float, str, list, dict, tuple})


class Stage(Enum):
    """A run's stages in order; a second try returns to CREATED. Only the run's thread writes it."""

    CREATED = auto()  # the handler has not started
    RUNNING = auto()  # inside the handler: an interrupt may hit it
    ENDED = auto()  # the handler has returned or raised
    CONCLUDED = auto()  # its outcomes were passed on


class Clock(Enum):
    """The state of a run's timeout, in this order. The lease loop and the shutdown write it."""

    IN_TIME = auto()
    OVERDUE = auto()  # the interrupt is about to be sent, or an async handler was cancelled
    INTERRUPTED = auto()  # the interrupt was sent
    ABANDONED = auto()  # the handler can no longer settle its messages


@dataclass(frozen=True)
class Result:
    """A handler's return value or error, and how its transaction ended, if it had one."""

    returned: Any = None
    error: BaseException | None = None
    #: False when the handler was not called, because there was no connection.
    ran: bool = True
    #: Whether the handler's transaction writes the outcomes, so that the settler need not.
    settled: bool = False
    #: Receipts of lost leases, because of which the transaction was rolled back.
    lost: Sequence[Receipt | int] = ()
    #: What a hook of on_commit raised after the handler's transaction had committed.
    hook_error: BaseException | None = None


@dataclass(eq=False)
class Running:
    """A run of a handler on one message, or on a batch.

    ``stage`` and ``clock`` have one writer each, so they need no lock. A lock decides whether
    :meth:`conclude` or :meth:`abandon` comes first.
    """

    messages: list[Message]
    thread: int | None = None
    #: The arguments of the handler, or of the middleware around it.
    arguments: tuple[Any, ...] = ()
    started: float = field(default_factory=time.monotonic)
    #: The outcomes that the handler set with message.ack() and the like, by message id.
    explicit: dict[int, Outcome] = field(default_factory=dict)
    #: Writes an explicit outcome at once. None: it is written in the handler's transaction.
    on_explicit: Callable[[Running, Message, Outcome], None] | None = None
    #: Cancels the task of an async handler.
    cancel: Callable[[], object] | None = None
    #: The connections of the run's thread, if the handler may have a timeout.
    connections: Sequence[Any] = ()
    stage: Stage = Stage.CREATED
    clock: Clock = Clock.IN_TIME
    result: Result = Result()
    #: Whether all messages of the run were cancelled. Only the lease loop writes it.
    cancelled: bool = False
    _ending: threading.Lock = field(default_factory=threading.Lock)

    @property
    def unsettled(self) -> list[Message]:
        """The messages that the handler has not settled itself."""
        settled = self.explicit if self.on_explicit is not None else {}
        return [message for message in self.messages if message.id not in settled]

    @property
    def overdue(self) -> bool:
        """Whether the timeout has expired."""
        return self.clock is not Clock.IN_TIME

    @property
    def abandoned(self) -> bool:
        """Whether the consumer has given up this run."""
        return self.clock is Clock.ABANDONED

    def set_outcome(self, message: Message, outcome: Outcome) -> None:
        """Record the outcome that the handler set for a message. Later ones are ignored."""
        if message.id not in self.explicit:
            self.explicit[message.id] = outcome
            if self.on_explicit is not None:
                self.on_explicit(self, message, outcome)

    def conclude(self, result: Result) -> bool:
        """Record the result. Returns False if the run was abandoned before."""
        with self._ending:
            if self.clock is Clock.ABANDONED:
                return False
            self.result, self.stage = result, Stage.CONCLUDED
            return True

    def forget(self) -> None:
        """Drop the messages once their outcomes were passed on.

        Messages refer to their run, and only the garbage collector frees a cycle.
        """
        self.messages, self.arguments = [], ()

    def abandon(self) -> bool:
        """Give up the run. Returns False if it was concluded before."""
        with self._ending:
            if self.stage is Stage.CONCLUDED:
                return False
            self.clock = Clock.ABANDONED
            return True


def guarded(running: Running, call: Callable[..., Any]) -> tuple[Any, BaseException | None]:
    """Run a handler. Returns its return value and its exception.

    Catches SystemExit and MemoryError too: a handler ends its message, not its consumer. An
    interrupt may come at any step, even here, so ``error`` is a HandlerTimeout until the call
    returns.
    """
    returned: Any = None
    error: BaseException | None = HandlerTimeout()
    try:
        try:
            running.stage = Stage.RUNNING
            if running.clock is not Clock.IN_TIME:
                raise HandlerTimeout
            returned = call(*running.arguments)
            if returned is not None:  # saves a call
                refuse_unfinished(returned)
            error = None
        except BaseException as raised:
            returned, error = None, raised
        _disarm(running)
    except HandlerTimeout:
        _disarm(running)
    return returned, error


def refuse_unfinished(returned: Any) -> None:
    """Raise TypeError for a coroutine, another awaitable or a generator: its work has not run."""
    if type(returned) in _FINISHED:
        return
    kind = type(returned).__name__
    if isinstance(returned, _GENERATORS):
        advice = "return a value, or a list, and do not use yield"
    elif inspect.isawaitable(returned):
        advice = (
            "write async def for the handler and for each decorator and middleware around it, or "
            "await the result. In a plain function call it by async_to_sync of asgiref.sync"
        )
    else:
        return
    if isinstance(returned, _CLOSABLE):
        with contextlib.suppress(Exception):
            returned.close()
    raise TypeError(f"the handler returned a {kind}, whose work has not run: {advice}")


def interrupt(running: Running) -> None:
    """Raise HandlerTimeout in the run's thread, at the handler's next Python instruction."""
    running.clock = Clock.OVERDUE
    if running.stage is Stage.RUNNING:
        _raise_in(running.thread, HandlerTimeout)
    running.clock = Clock.INTERRUPTED


def _disarm(running: Running) -> None:
    """End the stage RUNNING, and discard an interrupt that was sent but not raised yet.

    This function writes the stage and then reads the clock; :func:`interrupt` writes the clock and
    then reads the stage. So either this thread sees that the run is overdue, or the lease loop sees
    that the handler has ended.
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
