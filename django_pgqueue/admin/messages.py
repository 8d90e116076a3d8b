"""The admin of messages, queued and archived. Its pages: the list, a message, and failures."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from django_pgqueue.admin.access import allowed
from django_pgqueue.admin.base import RecordAdmin
from django_pgqueue.admin.failures_page import FailurePage, FailuresPage
from django_pgqueue.admin.message_page import MessagePage
from django_pgqueue.admin.messages_page import MessagesPage
from django_pgqueue.models import Message


@admin.register(Message)
class MessageAdmin(RecordAdmin):
    """All messages, queued or archived."""

    list_page = MessagesPage
    change_page = MessagePage
    pages = [FailuresPage, FailurePage]

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("django_pgqueue.view_message")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        # Bodies can be large. The pages read only the beginning of each.
        rows = super().get_queryset(request).defer("body", "headers")
        seen = allowed(request)
        return rows if seen is None else rows.filter(queue_id__in=list(seen))
