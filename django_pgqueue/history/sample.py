"""Notes what every queue holds, and how many messages came since the last sample."""

from __future__ import annotations

import json

from django_pgqueue.engine.metrics import measuring
from django_pgqueue.history.lock import run_alone
from django_pgqueue.runner import runner

__all__ = ["sample"]


def sample(alias: str) -> None:
    """Add the depth, the longest wait and the sent messages to each queue's present minute."""
    rows = [
        {
            "name": each.queue_name,
            "depth": each.length,
            "oldest": each.oldest_age,
            "total": each.total,
        }
        for each in measuring.metrics_of_all(runner(alias))
    ]
    run_alone(alias, "sample", rows=json.dumps(rows))
