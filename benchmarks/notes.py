"""How late handlers were called: written by workers of every kind, read by the benchmark."""

from __future__ import annotations

import os
import time
from pathlib import Path

VARIABLE = "BENCHMARK_NOTES"


def note(sent: float) -> None:
    """Now is when the handler of a message runs that was sent then, on the machine's clock."""
    late = time.monotonic() - sent
    descriptor = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{late * 1000:.3f}\n".encode())
    finally:
        os.close(descriptor)


def read(path: Path) -> list[float]:
    """Every delay noted so far, in milliseconds."""
    return [float(line) for line in path.read_text().splitlines()] if path.exists() else []
