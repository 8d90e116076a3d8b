"""Deletes old rows of the history.

With 10,000 queues that are busy all the time the table has two million rows at most.
"""

from __future__ import annotations

import datetime as dt

from django.db import connections

from django_pgqueue import ddl
from django_pgqueue.history.lock import run_alone

__all__ = ["forget"]

#: Rows of hours are kept for this time, but at most MOST_HOURS rows: less time with many queues.
HOURS_KEPT = dt.timedelta(days=14)
MOST_HOURS = 1_000_000
BATCH = 10_000


def forget(alias: str) -> None:
    """Delete the rows of old hours, and of old minutes that were never folded."""
    with connections[alias].cursor() as cursor:
        now = ddl.server_time(cursor)
        cursor.execute("SELECT count(*) FROM pgqueue_queue")
        [queues] = cursor.fetchone()
    kept = min(HOURS_KEPT, dt.timedelta(hours=MOST_HOURS / max(queues, 1)))
    for seconds, before in ((3600, now - kept), (60, now - HOURS_KEPT)):
        while run_alone(alias, "forget", seconds=seconds, before=before, batch=BATCH):
            pass
