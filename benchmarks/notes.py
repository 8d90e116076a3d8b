"""How late handlers were called: written by workers of every kind, read by the benchmark."""

from __future__ import annotations

import os
import time
from pathlib import Path

VARIABLE = "BENCHMARK_NOTES"


def note(sent: float) -> None:
    """Now is when the handler runs whose message was to be sent then, on the machine's clock."""
    late = time.monotonic() - sent
    descriptor = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{sent!r} {late!r}\n".encode())
    finally:
        os.close(descriptor)


def read(path: Path) -> dict[float, float]:
    """The delay of each message by the moment it was to be sent, in seconds; the first run's."""
    found: dict[float, float] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            sent, late = map(float, line.split())
            found.setdefault(sent, late)
    return found
