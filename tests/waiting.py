"""Waits for conditions, not for a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["until"]

T = TypeVar("T")


def until(condition: Callable[[], T], seconds: float = 15.0) -> T:
    """Wait until ``condition()`` is true, and return its result. Raises AssertionError after a
    timeout.
    """
    deadline = time.monotonic() + seconds
    pause = 0.002
    while not (found := condition()):
        assert time.monotonic() < deadline, f"still not so after {seconds:g} seconds"
        time.sleep(pause)
        pause = min(pause * 1.2, 0.05)
    return found
