"""Free ports for the tests' servers."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

__all__ = ["free_port"]


def free_port() -> int:
    """A free port whose successor is free too, below the range of ephemeral ports."""
    for port in random.sample(range(20_000, 32_000, 2), 100):
        with suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind(("", port))
            second.bind(("", port + 1))
            return port
    raise AssertionError("no two free ports")
