"""Samples every queue: its depth, its largest age, and the messages sent since the last sample."""

from __future__ import annotations

import json

from django.db import connections

from django_pgqueue import ddl
from django_pgqueue.django_runner import runner
from django_pgqueue.engine.metrics import measuring
from django_pgqueue.history.lock import run_alone

__all__ = ["sample", "seconds_until_due"]


def seconds_until_due(alias: str) -> float:
    """Return the seconds until the next sample, in the middle of a minute of the server's clock."""
    with connections[alias].cursor() as cursor:
        at = ddl.server_time(cursor)
    return 60 - (at.second + at.microsecond / 1e6 + 30) % 60


def sample(alias: str) -> None:
    """Write depth, largest age and sent messages to the current minute of each queue."""
    rows = [
        {"name": m.queue_name, "depth": m.length, "oldest": m.oldest_age, "total": m.total}
        for m in measuring.metrics_of_all(runner(alias))
    ]
    run_alone(alias, "sample", rows=json.dumps(rows))
