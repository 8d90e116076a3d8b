"""Handlers' delays, written by workers of every kind and read by the benchmark."""

from __future__ import annotations

import os
import time
from pathlib import Path

VARIABLE = "BENCHMARK_NOTES"


def note(sent: float) -> None:
    """Record a handler's delay since ``sent``, the time at which its message was due to be sent."""
    late = time.monotonic() - sent
    descriptor = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{sent!r} {late!r}\n".encode())
    finally:
        os.close(descriptor)


def read(path: Path) -> dict[float, float]:
    """Each message's delay in seconds, by its due time; for repeated messages, the first delay."""
    found: dict[float, float] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            sent, late = map(float, line.split())
            found.setdefault(sent, late)
    return found
