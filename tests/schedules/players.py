"""The part of each process in the race of schedules; Django is set up there."""

from __future__ import annotations

import datetime as dt


def tick_until(end: dt.datetime, step: dt.timedelta) -> int:
    """Send what is due by the common clock, and move that on, until the end; how many were sent."""
    from django.db import connection

    from django_pgqueue.models import Schedule

    sent = 0
    while True:
        with connection.cursor() as cursor:
            cursor.execute("SELECT now FROM schedule_clock")
            (now,) = cursor.fetchone()
        here = Schedule.objects.send_due(using="default", now=now)
        sent += here
        if here:
            continue
        if now >= end:
            if not Schedule.objects.filter(next_run_at__lte=end).exists():
                return sent
            continue
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE schedule_clock SET now = least(%s, now + %s) WHERE now = %s",
                [end, step, now],
            )
