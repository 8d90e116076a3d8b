"""The archive has no pages of its own: its messages are in the list of all, and on their pages."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponseRedirect

from django_pgqueue.admin.pages import ReadOnlyAdmin
from django_pgqueue.admin.search import ARCHIVED
from django_pgqueue.models import ArchivedMessage

__all__ = ["ArchivedMessageAdmin"]


@admin.register(ArchivedMessage)
class ArchivedMessageAdmin(ReadOnlyAdmin):
    """Leads to the list of messages and to their pages."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("django_pgqueue.view_message")

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        return {}  # the index has the list of messages

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseRedirect:
        query = {"state": ARCHIVED, **request.GET.dict()}
        return HttpResponseRedirect(self.url("message_changelist", **query))

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponseRedirect:
        return HttpResponseRedirect(self.url("message_change", object_id))
