"""The admin of archived messages. It has no pages: it redirects to those of messages."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponseRedirect

from django_pgqueue.admin.base import ReadOnlyAdmin
from django_pgqueue.admin.search import ARCHIVED
from django_pgqueue.models import ArchivedMessage

__all__ = ["ArchivedMessageAdmin"]


@admin.register(ArchivedMessage)
class ArchivedMessageAdmin(ReadOnlyAdmin):
    """Redirects to the list of messages, and to a message's page."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("django_pgqueue.view_message")

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        return {}  # hidden on the index, which lists Messages

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
