"""The admin of messages, queued and archived. Its pages: the list, a message, and failures."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from django_pgqueue.admin.base import ReadOnlyAdmin
from django_pgqueue.admin.failures_page import FailurePage, FailuresPage
from django_pgqueue.admin.message_page import MessagePage
from django_pgqueue.admin.messages_page import MessagesPage
from django_pgqueue.models import Message

__all__ = ["MessageAdmin"]


@admin.register(Message)
class MessageAdmin(ReadOnlyAdmin):
    """All messages, queued or archived."""

    list_page = MessagesPage
    change_page = MessagePage
    pages = [FailuresPage, FailurePage]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        # Bodies can be large. List pages read only the beginning of each.
        return super().get_queryset(request).defer("body", "headers")
