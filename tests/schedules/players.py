"""The part of each process in the race of schedules; Django is set up there."""

from __future__ import annotations

import datetime as dt
import time
from concurrent.futures import ThreadPoolExecutor


def tick_until(end: dt.datetime, step: dt.timedelta, sessions: int) -> int:
    """Race in several threads, each with a session of its own; how many ticks were sent.

    Each sends what is due by the common clock, and moves that on, until the end.
    """
    with ThreadPoolExecutor(sessions) as pool:
        return sum(pool.map(lambda _: _race(end, step), range(sessions)))


def _race(end: dt.datetime, step: dt.timedelta) -> int:
    from django.db import DatabaseError, connection

    sent = 0
    while True:
        try:
            here = _tick(end, step)
        except DatabaseError:
            # Its session was killed: another takes its place.
            connection.close()
            continue
        if here is None:
            connection.close()
            return sent
        sent += here


def _tick(end: dt.datetime, step: dt.timedelta) -> int | None:
    """Send what is due, or move the clock on; None at the end."""
    from django.db import connection

    from django_pgqueue.models import Schedule

    with connection.cursor() as cursor:
        cursor.execute("SELECT now FROM schedule_clock")
        (now,) = cursor.fetchone()
    sent = Schedule.objects.send_due(using="default", now=now)
    if sent:
        return sent
    if now >= end:
        return 0 if Schedule.objects.filter(next_run_at__lte=end).exists() else None
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE schedule_clock SET now = least(%s, now + %s) WHERE now = %s", [end, step, now]
        )
        moved = cursor.rowcount
    if not moved:
        # Another was first: leave the processor to those who have something to send.
        time.sleep(0.01)
    return 0
