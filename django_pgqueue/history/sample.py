"""Samples every queue: what it holds, and how many messages were sent since the last sample."""

from __future__ import annotations

import json

from django_pgqueue.engine.metrics import measuring
from django_pgqueue.history.lock import run_alone
from django_pgqueue.runner import runner

__all__ = ["sample"]


def sample(alias: str) -> None:
    """Write depth, largest age and sent messages to the current minute of each queue."""
    rows = [
        {"name": m.queue_name, "depth": m.length, "oldest": m.oldest_age, "total": m.total}
        for m in measuring.metrics_of_all(runner(alias))
    ]
    run_alone(alias, "sample", rows=json.dumps(rows))
