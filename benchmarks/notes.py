"""What handlers and senders record, in a file that the benchmark reads."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

VARIABLE = "BENCHMARK_NOTES"


def note(*fields: Any) -> None:
    """Append a line with the JSON of the fields."""
    descriptor = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{json.dumps(fields)}\n".encode())
    finally:
        os.close(descriptor)


def read(path: Path) -> list[list[Any]]:
    """The fields of every line."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def note_delay(sent: float) -> None:
    """Record a handler's delay since ``sent``, the time at which its message was due to be sent."""
    note(sent, time.monotonic() - sent)


def delays(path: Path) -> dict[float, float]:
    """Each message's delay in seconds, by its due time; for repeated messages, the first delay."""
    found: dict[float, float] = {}
    for sent, late in read(path):
        found.setdefault(sent, late)
    return found
