"""Ends a run whose time is over: an interrupt for its handler, and for nothing before or after."""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Callable
from typing import Any

from django_pgqueue.errors import HandlerTimeout
from django_pgqueue.worker.running import Clock, Running, Stage

__all__ = ["canceller", "guarded", "interrupt"]


def guarded(running: Running, run: Callable[[Running], Any]) -> tuple[Any, BaseException | None]:
    """Run a handler; returns what it returned and what it raised.

    SystemExit and MemoryError too: a handler ends its message, not its consumer. An interrupt may
    come at any step, here as well, so an error is assumed until there is none.
    """
    returned: Any = None
    error: BaseException | None = HandlerTimeout()
    try:
        try:
            running.stage = Stage.RUNNING
            if running.overdue:
                raise HandlerTimeout
            returned = run(running)
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
            if running.overdue:
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
