"""Ports for the servers of tests."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

__all__ = ["free_port"]


def free_port() -> int:
    """The first of two that are free, below those that systems give to any connection."""
    for port in random.sample(range(20_000, 32_000, 2), 100):
        with suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind(("", port))
            second.bind(("", port + 1))
            return port
    raise AssertionError("no two free ports")
