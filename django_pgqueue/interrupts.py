"""Delays signals, so that they do not end work half-way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def interrupts_held(numbers: Sequence[int] = (signal.SIGINT, signal.SIGTERM)) -> Iterator[None]:
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
