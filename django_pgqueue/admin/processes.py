"""The admin of consumer processes. Its pages: the consumers, and the database's health."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import URLPattern

from django_pgqueue.admin.access import allowed
from django_pgqueue.admin.base import RecordAdmin
from django_pgqueue.admin.consumers_page import ConsumersPage
from django_pgqueue.admin.health import HealthPage
from django_pgqueue.models import Process

__all__ = ["ProcessAdmin"]


@admin.register(Process)
class ProcessAdmin(RecordAdmin):
    """Consumer processes. A row is deleted when its process stops, or soon after it dies."""

    list_page = ConsumersPage
    pages = [HealthPage]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Process]:
        rows = super().get_queryset(request)
        seen = allowed(request)
        if seen is None:
            return rows
        return rows.filter(queues__has_any_keys=list(seen.values())) if seen else rows.none()

    def get_urls(self) -> list[URLPattern]:
        own = {f"django_pgqueue_{page.name}" for page in (ConsumersPage, HealthPage)}
        return [url for url in super().get_urls() if url.name in own]
