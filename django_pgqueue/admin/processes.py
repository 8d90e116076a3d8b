"""The admin of consumer processes. Its pages: the consumers, and the database's health."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import URLPattern

from django_pgqueue.admin.access import allowed
from django_pgqueue.admin.base import RecordAdmin
from django_pgqueue.admin.consumers_page import ConsumersPage
from django_pgqueue.admin.health import HealthPage
from django_pgqueue.models import Process
from django_pgqueue.models.process import GONE_KEPT, ago

__all__ = ["ProcessAdmin"]


@admin.register(Process)
class ProcessAdmin(RecordAdmin):
    """Consumer processes: those that run, and for a day those that died."""

    list_page = ConsumersPage
    pages = [HealthPage]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Process]:
        rows = Process.every.filter(Q(gone_at=None) | Q(gone_at__gte=ago(GONE_KEPT)))
        seen = allowed(request)
        if seen is None:
            return rows
        return rows.filter(queues__has_any_keys=list(seen.values())) if seen else rows.none()

    def get_urls(self) -> list[URLPattern]:
        own = {f"django_pgqueue_{page.name}" for page in (ConsumersPage, HealthPage)}
        return [url for url in super().get_urls() if url.name in own]
