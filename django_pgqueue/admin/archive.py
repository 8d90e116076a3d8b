"""The archive: how messages ended."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from django_pgqueue.admin.pages import ReadOnlyAdmin
from django_pgqueue.admin.states import ArchiveStateFilter
from django_pgqueue.admin.wording import EMPTY, preformatted, pretty_json
from django_pgqueue.models import ArchivedMessage, Message, Queue

__all__ = ["ArchivedMessageAdmin"]

FIRST_LINE = 100


@admin.register(ArchivedMessage)
class ArchivedMessageAdmin(ReadOnlyAdmin):
    """Outcomes, each with a link to its message."""

    list_display = [
        "id",
        "in_queue",
        "ended",
        "read_ct",
        "enqueued_at",
        "archived_at",
        "first_line",
        "sent",
    ]
    list_filter = ["queue", ArchiveStateFilter]
    readonly_fields = [
        "in_queue",
        "sent",
        "ended",
        "pretty_error",
        "pretty_result",
        "body",
        "headers",
    ]
    fieldsets = [
        (None, {"fields": ["sent", "in_queue", "ended"]}),
        (
            "Delivery",
            {
                "fields": [
                    "read_ct",
                    "attempts",
                    "enqueued_at",
                    "first_read_at",
                    "last_read_at",
                    "archived_at",
                ]
            },
        ),
        ("Outcome", {"fields": ["pretty_error", "pretty_result"]}),
        ("Message", {"fields": ["headers", "body"]}),
    ]

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        found = super().get_object(request, object_id, from_field)
        if found is not None:
            found.sent = found.message
        return found

    @admin.display(description="queue")
    def in_queue(self, archived: ArchivedMessage) -> str:
        return self.link(Queue, archived.queue_id, archived.queue)

    @admin.display(description="state")
    def ended(self, archived: ArchivedMessage) -> str:
        return archived.state

    @admin.display(description="message")
    def sent(self, archived: ArchivedMessage) -> str:
        return self.link(Message, archived.pk, f"message {archived.pk}")

    @admin.display(description="error")
    def first_line(self, archived: ArchivedMessage) -> str:
        """What went wrong; the traceback comes after it, and may be cut."""
        line, *_ = (archived.error or "").strip().splitlines() or [EMPTY]
        return line if len(line) <= FIRST_LINE else f"{line[:FIRST_LINE]}…"

    @admin.display(description="error")
    def pretty_error(self, archived: ArchivedMessage) -> str:
        return preformatted(archived.error)

    @admin.display(description="result")
    def pretty_result(self, archived: ArchivedMessage) -> str:
        return pretty_json(archived.result)

    @admin.display(description="headers")
    def headers(self, archived: Any) -> str:
        return pretty_json(archived.sent.headers)

    @admin.display(description="body")
    def body(self, archived: Any) -> str:
        return pretty_json(archived.sent.body)
