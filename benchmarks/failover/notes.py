"""Records each process's events as JSON lines, with a clock shared by all processes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Event", "note", "notes"]


class Event(NamedTuple):
    what: str
    op: str
    at: float
    pid: int


def note(what: str, op: str) -> None:
    """Append an event to this process's file in FAILOVER_NOTES."""
    event = Event(what, op, time.monotonic(), os.getpid())
    path = Path(os.environ["FAILOVER_NOTES"]) / f"{event.pid}.jsonl"
    with path.open("a") as file:
        file.write(json.dumps(event) + "\n")


def notes(folder: Path) -> list[Event]:
    """The events of all processes, in chronological order."""

    def of(path: Path) -> Iterator[Any]:
        for line in path.read_text().splitlines():
            yield json.loads(line)

    events = [Event(*event) for path in folder.glob("*.jsonl") for event in of(path)]
    return sorted(events, key=lambda event: event.at)
