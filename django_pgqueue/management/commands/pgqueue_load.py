"""``manage.py pgqueue_load``: run the load job on a local Spark session."""

from __future__ import annotations

from django_pgqueue.management.jobs import JobCommand


class Command(JobCommand):
    job = "load"
