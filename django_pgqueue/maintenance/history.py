"""Keeps the history of queues small: a look at each, minutes to hours, old hours away.

With 10,000 queues that are busy all the time the table has two million rows at most.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Collection
from typing import Any

from django.db import connections, transaction

from django_pgqueue import ddl
from django_pgqueue.engine.metrics import measuring
from django_pgqueue.engine.statements import load

__all__ = ["keep_history"]

MINUTE, HOUR = 60, 3600
#: Consumers write to a minute for two minutes from its start at most.
SETTLED = dt.timedelta(minutes=3)
#: Minutes that were missed are folded with their hour.
MISSED = dt.timedelta(minutes=15)
#: For how long minutes are kept at least, and hours; hours of many queues for less.
MINUTES_KEPT, HOURS_KEPT = dt.timedelta(hours=1), dt.timedelta(days=14)
MOST_HOURS = 1_000_000
#: Queues of which one statement folds an hour; minutes are smaller.
BATCH = 200


def keep_history(alias: str, storage: Collection[bool]) -> None:
    """Do what is due once a minute, each step a transaction of its own.

    Of two processes that do it at once one leaves it to the other.

    Arguments:
        storage: for each queue of the database whether it is unlogged.
    """
    rows = [
        {
            "name": each.queue_name,
            "depth": each.length,
            "oldest": each.oldest_age,
            "total": each.total,
        }
        for each in measuring.metrics_of_all(alias, storage)
    ]
    _run(alias, "sample", rows=json.dumps(rows))
    with connections[alias].cursor() as cursor:
        now = ddl.server_time(cursor)
    hour = now.replace(minute=0, second=0, microsecond=0)
    _fold(alias, MINUTE, now - MISSED, now - SETTLED, BATCH * 50)
    _fold(alias, HOUR, now - HOURS_KEPT, hour - MINUTES_KEPT, BATCH)
    kept = min(HOURS_KEPT, dt.timedelta(hours=MOST_HOURS / max(len(storage), 1)))
    for seconds, before in ((HOUR, now - kept), (MINUTE, now - HOURS_KEPT)):
        while _run(alias, "forget", seconds=seconds, before=before, batch=BATCH * 50):
            pass


def _fold(alias: str, span: int, first: dt.datetime, until: dt.datetime, batch: int) -> None:
    while _run(alias, "fold", span=span, first=first, until=until, batch=batch) == batch:
        pass


def _run(alias: str, name: str, **params: Any) -> int:
    """Run ``<name>.sql`` alone; the number of rows that it says, or changed."""
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(hashtextextended('pgqueue.history', 0))")
        if not cursor.fetchone()[0]:
            return 0
        cursor.execute(load(name, __package__), params)
        return int(cursor.fetchone()[0] if cursor.description else cursor.rowcount)
