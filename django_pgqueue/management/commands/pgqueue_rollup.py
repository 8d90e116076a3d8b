"""``manage.py pgqueue_rollup``: run the roll-up job."""

from __future__ import annotations

from django_pgqueue.management.jobs import JobCommand


class Command(JobCommand):
    job = "rollup"
