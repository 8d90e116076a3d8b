"""Handles signals: in this process only, or after a block that they must not end half-way."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

#: The signals that ask a process to end.
ENDING = (signal.SIGINT, signal.SIGTERM)


def handle(
    handler: Callable[[int, FrameType | None], None], numbers: Sequence[int] = ENDING
) -> Callable[[], None]:
    """Handle signals in this process. Returns a function that restores the handlers before.

    A forked child gets the handlers before: it has none of the threads that a stop needs, so it
    could not be terminated.

    Raises ValueError outside of the main thread.
    """
    before = {number: signal.signal(number, handler) for number in numbers}

    def restore() -> None:
        for number, old in before.items():
            if signal.getsignal(number) is handler:
                signal.signal(number, signal.SIG_DFL if old is None else old)

    os.register_at_fork(after_in_child=restore)
    return restore


@contextmanager
def interrupts_held(numbers: Sequence[int] = ENDING) -> Iterator[None]:
    """Delay these signals to the end of the block, then raise KeyboardInterrupt.

    A second signal raises KeyboardInterrupt at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def hold(number: int, frame: object) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    before = {number: signal.signal(number, hold) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt
