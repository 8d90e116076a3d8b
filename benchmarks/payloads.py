"""Bodies to send: one small body, or real webhooks from a file."""

from __future__ import annotations

import gzip
import json
import statistics
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

__all__ = ["BODY", "Payload", "small", "webhooks"]

SMALL = "200 B"
#: A JSON body of 200 bytes.
BODY = {"x": "y" * 192}


@dataclass
class Payload:
    """Bodies, sent in an endless cycle."""

    name: str
    bodies: list[Any]

    def __post_init__(self) -> None:
        self._cycle = cycle(self.bodies)

    def take(self, count: int) -> list[Any]:
        return list(islice(self._cycle, count))

    @property
    def is_small(self) -> bool:
        """Whether this is the small body, not webhooks."""
        return self.name == SMALL

    @property
    def median_bytes(self) -> int:
        sizes = [len(json.dumps(body, separators=(",", ":")).encode()) for body in self.bodies]
        return round(statistics.median(sizes))


def small() -> Payload:
    return Payload(SMALL, [BODY])


def webhooks(path: Path) -> Payload:
    """Load JSON lines ``{"event": name, "payload": body}``, plain or gzipped."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        return Payload("webhooks", [json.loads(line)["payload"] for line in lines if line.strip()])
