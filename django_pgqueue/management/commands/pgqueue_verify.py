"""``manage.py pgqueue_verify``: run the verify job on a local Spark session."""

from __future__ import annotations

from django_pgqueue.management.jobs import JobCommand


class Command(JobCommand):
    job = "verify"
