"""Runs in each process of the schedules' race, with Django set up."""

from __future__ import annotations

import datetime as dt
import time
from concurrent.futures import ThreadPoolExecutor
from unittest import mock


def tick_until(end: dt.datetime, step: dt.timedelta, sessions: int) -> int:
    """Race in several threads with a session each; returns how many ticks were sent.

    Each thread sends what is due by the shared clock and advances the clock, until the end.
    """
    clock = mock.patch("django_pgqueue.queues.schedule._now", side_effect=lambda _: _shared_clock())
    with clock, ThreadPoolExecutor(sessions) as pool:
        return sum(pool.map(lambda _: _race(end, step), range(sessions)))


def _race(end: dt.datetime, step: dt.timedelta) -> int:
    from django.db import DatabaseError, connection

    sent = 0
    while True:
        try:
            here = _tick(end, step)
        except DatabaseError:
            # The session was killed: continue with a new one.
            connection.close()
            continue
        if here is None:
            connection.close()
            return sent
        sent += here


def _shared_clock() -> dt.datetime:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT now FROM schedule_clock")
        (now,) = cursor.fetchone()
    return now


def _tick(end: dt.datetime, step: dt.timedelta) -> int | None:
    """Send what is due, or advance the clock; returns None at the end."""
    from django.db import connection

    from django_pgqueue.models import Schedule

    now = _shared_clock()
    sent = Schedule.objects.send_due(using="default")
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
        # Another session was first: yield the processor to sessions with something to send.
        time.sleep(0.01)
    return 0
