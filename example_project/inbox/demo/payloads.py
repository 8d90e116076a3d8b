"""Loads payloads to send: JSON lines ``{"event": name, "payload": body}``, plain or gzipped."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

SHIPPED = Path(__file__).resolve().parent.parent / "payloads" / "deliveries.jsonl"


def load(path: Path = SHIPPED) -> list[tuple[str, bytes]]:
    """The name and body of each event in *path*; the body as the bytes that GitHub would send."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines if line.strip()]
    return [(record["event"], json.dumps(record["payload"]).encode()) for record in records]


def repeat(payloads: list[tuple[str, bytes]], count: int) -> Iterator[tuple[str, bytes]]:
    """The first *count* payloads of an endless repetition of *payloads*."""
    return islice(cycle(payloads), count)
