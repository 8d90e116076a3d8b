"""Schedules at a time of the test's choice."""

from __future__ import annotations

import datetime as dt
from unittest import mock

from django_pgqueue.management.diagnosis import Finding, Limits, examine
from django_pgqueue.models import Schedule

UTC = dt.timezone.utc
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=UTC)
DAY = dt.timedelta(days=1)

_NOW = "django_pgqueue.queues.schedule._now"


def send_due(now: dt.datetime) -> int:
    """Send the messages that are due when the server's clock shows ``now``."""
    with mock.patch(_NOW, return_value=now):
        return Schedule.objects.send_due(using="default")


def mend(now: dt.datetime) -> list[str]:
    """Correct ticks when the server's clock shows ``now``; returns the schedules' names."""
    with mock.patch(_NOW, return_value=now):
        return [each.name for each in Schedule.objects.mend(using="default")]


def found() -> list[Finding]:
    """What the doctor says of schedules."""
    return [each for each in examine("default", Limits()) if each.check == "schedules"]
