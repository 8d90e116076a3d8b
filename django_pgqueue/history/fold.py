"""Merges history rows: those of all processes into one, and those of minutes into one per hour."""

from __future__ import annotations

import datetime as dt

from django.db import connections

from django_pgqueue import ddl
from django_pgqueue.history.forget import HOURS_KEPT
from django_pgqueue.history.lock import run_alone

__all__ = ["fold"]

MINUTE, HOUR = 60, 3600
#: The rows of a minute are folded at this age. Consumers write to them for up to two minutes.
SETTLED = dt.timedelta(minutes=3)
#: Rows of minutes older than this are folded only when their hour is.
MISSED = dt.timedelta(minutes=15)
#: Rows of minutes are kept at least this long before they are folded into hours.
MINUTES_KEPT = dt.timedelta(hours=1)
#: Queues per statement when hours are folded; 50 times as many for minutes, with fewer rows.
BATCH = 200


def fold(alias: str) -> None:
    """Fold the minutes that are complete, and the hours that ended at least an hour ago."""
    with connections[alias].cursor() as cursor:
        now = ddl.server_time(cursor)
    hour = now.replace(minute=0, second=0, microsecond=0)
    _fold(alias, MINUTE, now - MISSED, now - SETTLED, BATCH * 50)
    _fold(alias, HOUR, now - HOURS_KEPT, hour - MINUTES_KEPT, BATCH)


def _fold(alias: str, span: int, first: dt.datetime, until: dt.datetime, batch: int) -> None:
    while run_alone(alias, "fold", span=span, first=first, until=until, batch=batch) == batch:
        pass
