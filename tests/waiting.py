"""Waits for conditions, not for a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

__all__ = ["process_state", "until"]

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


def process_state(pid: int) -> str:
    """The state of a process in Linux's letters: T is stopped, Z has ended.

    Raises FileNotFoundError if there is no such process.
    """
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
