"""Ends a run whose time is over: an interrupt for its thread, and for nothing that comes after."""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Callable
from typing import Any

from django_pgqueue.errors import HandlerTimeout
from django_pgqueue.worker.subscription import Running

__all__ = ["canceller", "guarded", "interrupt"]


def guarded(running: Running, run: Callable[[Running], Any]) -> tuple[Any, BaseException | None]:
    """What a run returned, and what it raised.

    SystemExit and MemoryError too: a handler ends its message, not its consumer. An interrupt
    may come at any step, here as well, so an error is assumed until there is none.
    """
    returned: Any = None
    error: BaseException | None = HandlerTimeout()
    try:
        try:
            running.armed = True
            if running.timed_out:
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
    """What cancels the present task from another thread."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def cancel() -> None:
        if task is not None:
            loop.call_soon_threadsafe(task.cancel)

    return cancel


def interrupt(running: Running) -> None:
    """Have HandlerTimeout raised in the thread of a run, at its next step in Python.

    Nothing but the handler is interrupted: not what is done before it starts or after it ends.
    """
    running.timed_out = True
    if running.armed and not running.finished:
        _raise_in(running.thread, HandlerTimeout)
    running.interrupted = True


def _disarm(running: Running) -> None:
    """From here on no interrupt hits this thread: one that is on its way is taken back.

    The flags are read and written crosswise, here and at the start: either this thread sees that
    it timed out, or :func:`interrupt` sees that it is not, or no more, armed.
    """
    while True:
        try:
            running.finished = True
            if running.timed_out:
                while not running.interrupted:
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
