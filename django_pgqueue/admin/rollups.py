"""Roll-ups as a plain list, and when they were computed."""

from __future__ import annotations

from django.contrib import admin

from django_pgqueue.admin.exports import RecordAdmin
from django_pgqueue.models import Rollup, RollupRun

__all__ = ["RollupAdmin", "RollupRunAdmin"]


@admin.register(Rollup)
class RollupAdmin(RecordAdmin):
    """What happened in each queue and span of time."""

    list_display = [
        "id",
        "queue_name",
        "bucket",
        "sent",
        "completed",
        "failed",
        "retried",
        "dead_lettered",
        "backlog",
        "wait_p95",
        "run_p95",
    ]
    list_filter = ["seconds"]
    ordering = ["-bucket", "queue_name"]
    search_fields = ["queue_name"]


@admin.register(RollupRun)
class RollupRunAdmin(RecordAdmin):
    """Which spans were computed, and when."""

    list_display = ["id", "seconds", "from_at", "to_at", "buckets", "removed", "finished_at"]
