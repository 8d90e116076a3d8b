"""Keeps the history: samples the queues, merges old rows, and deletes the oldest ones.

With 10,000 queues that are busy all the time the table has two million rows at most.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from typing import Any

from django.db import connections, transaction

from django_pgqueue.conf import settings
from django_pgqueue.database.runner import runner
from django_pgqueue.engine.metrics import measuring
from django_pgqueue.engine.times import server_time
from django_pgqueue.history.counters import statement

#: The rows of a minute are folded at this age. Consumers write to them for up to two minutes.
SETTLED = dt.timedelta(minutes=3)
#: Minutes older than this are no longer folded one by one, only as part of their hour.
MISSED = dt.timedelta(minutes=15)
#: Rows of minutes are kept at least this long before they are folded into hours.
MINUTES_KEPT = dt.timedelta(hours=1)
#: How many pairs of a queue and an hour one statement folds. Minutes have fewer rows, so it folds
#: 50 times as many of them.
FOLDED = 200

#: How long rows of hours are kept; less with many queues, so that at most MOST_HOURS remain.
HOURS_KEPT = dt.timedelta(days=14)
MOST_HOURS = 1_000_000
#: How many rows one statement deletes.
FORGOTTEN = 10_000


def keep_history(alias: str) -> float:
    """If history is kept, sample the queues, merge ended minutes and hours, and delete old rows.

    Returns the seconds until the next sample: one is due in the middle of each minute of the
    server's clock.
    """
    if settings.HISTORY_SECONDS is None:
        return math.inf
    _sample(alias)
    _fold(alias)
    _forget(alias)
    at = _now(alias)
    return 60 - (at.second + at.microsecond / 1e6 + 30) % 60


def _sample(alias: str) -> None:
    """Write each queue's depth, largest age and sent messages to the row of the minute."""
    rows = [
        {"name": m.queue_name, "depth": m.length, "oldest": m.oldest_age, "total": m.total}
        for m in measuring.metrics_of_all(runner(alias))
    ]
    _run_alone(alias, "sample", rows=json.dumps(rows))


def _fold(alias: str) -> None:
    """Merge the rows of each complete minute, and of each hour that ended at least an hour ago."""
    now = _now(alias)
    hour = now.replace(minute=0, second=0, microsecond=0)
    for span, first, until, batch in (
        (60, now - MISSED, now - SETTLED, FOLDED * 50),
        (3600, now - HOURS_KEPT, hour - MINUTES_KEPT, FOLDED),
    ):
        while batch == _run_alone(alias, "fold", span=span, first=first, until=until, batch=batch):
            pass


def _forget(alias: str) -> None:
    """Delete the rows of old hours, and of old minutes that were never merged."""
    now = _now(alias)
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pgqueue_queue")
        [queues] = cursor.fetchone()
    kept = min(HOURS_KEPT, dt.timedelta(hours=MOST_HOURS / max(queues, 1)))
    for seconds, before in ((3600, now - kept), (60, now - HOURS_KEPT)):
        while _run_alone(alias, "forget", seconds=seconds, before=before, batch=FORGOTTEN):
            pass


def _now(alias: str) -> dt.datetime:
    with connections[alias].cursor() as cursor:
        return server_time(cursor)


def _run_alone(alias: str, name: str, **params: Any) -> int:
    """Run ``<name>.sql`` in a transaction of its own.

    Returns the number that it selects, or else the number of rows that it changed; 0 if another
    process holds the lock.
    """
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(hashtextextended('pgqueue.history', 0))")
        if not cursor.fetchone()[0]:
            return 0
        cursor.execute(statement(name), params)
        return int(cursor.fetchone()[0] if cursor.description else cursor.rowcount)
