"""Wait for a condition, not for a clock."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["until"]


def until(condition: Callable[[], object], seconds: float = 15.0) -> None:
    """Wait until something is so. Raises AssertionError when it takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {seconds:g} seconds"
        time.sleep(0.005)
