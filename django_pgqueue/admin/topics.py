"""The admin of topic bindings."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy

from django_pgqueue.admin.access import allowed
from django_pgqueue.admin.base import PageAdmin, column
from django_pgqueue.models import Binding
from django_pgqueue.templatetags.pgqueue_admin import when


@admin.register(Binding)
class BindingAdmin(PageAdmin):
    """Topic bindings: users add and delete them."""

    part = "topics"
    list_display = ["pattern", "queue", "bound"]
    list_select_related = ["queue"]
    fields = ["pattern", "queue"]

    bound = column(gettext_lazy("bound at"), lambda binding: when(binding.bound_at), "bound_at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Binding]:
        rows = super().get_queryset(request)
        seen = allowed(request)
        return rows if seen is None else rows.filter(queue__in=list(seen))

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        # Processes that publish notice only bindings that were added or deleted.
        return False
