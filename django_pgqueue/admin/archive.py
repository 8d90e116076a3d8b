"""The archive: how messages ended."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from django_pgqueue.admin.confirmation import ask, confirmed
from django_pgqueue.admin.pages import ReadOnlyAdmin
from django_pgqueue.admin.places import Place
from django_pgqueue.admin.selection import Selection, counted, listed
from django_pgqueue.admin.states import ArchiveStateFilter, QueueFilter
from django_pgqueue.admin.wording import EMPTY, cut, moment, preformatted, pretty_json
from django_pgqueue.models import ArchivedMessage, Message, Queue

__all__ = ["ArchivedMessageAdmin"]

FIRST_LINE = 100


@admin.register(ArchivedMessage)
class ArchivedMessageAdmin(ReadOnlyAdmin):
    """Outcomes, each with a link to its message."""

    list_display = ["id", "in_queue", "ended", "first_line", "read_ct", "ended_at"]
    list_filter = [ArchiveStateFilter, QueueFilter]
    actions = ["replay"]
    readonly_fields = [
        "in_queue",
        "sent",
        "ended",
        "sent_at",
        "first_read",
        "last_read",
        "ended_at",
        "pretty_error",
        "pretty_result",
        "body",
        "headers",
    ]
    fieldsets = [
        (None, {"fields": ["sent", "in_queue", "ended"]}),
        ("Outcome", {"fields": ["pretty_error", "pretty_result"]}),
        (
            "Delivery",
            {
                "fields": [
                    "read_ct",
                    "attempts",
                    "sent_at",
                    "first_read",
                    "last_read",
                    "ended_at",
                ]
            },
        ),
        ("Message", {"fields": ["headers", "body"]}),
    ]

    def has_replay_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "replay")

    @admin.action(description="Send again, as new messages", permissions=["replay"])
    def replay(
        self, request: HttpRequest, queryset: QuerySet[ArchivedMessage]
    ) -> HttpResponse | None:
        """Ask, then send what was shown again; the archive stays as it is."""
        if not confirmed(request):
            selection = Selection.of(queryset)
            chosen = selection.by_queue(self.queues(request))
            return ask(
                self,
                request,
                title="Send archived messages again",
                question="Send these messages again, as new ones, to the queues they were in?",
                items=[f"{queue}: {counted(ids)}" for queue, ids in chosen],
                fields=selection.as_fields("replay"),
            )
        selection = Selection.from_text(request.POST.get("selection", ""))
        sent = 0
        for queue, ids in selection.by_queue(self.queues(request)):
            number = Message.objects.replay(queue, ids=ids)
            self.log_change(request, queue, f"{number:,} sent again: {listed(ids)}")
            sent += number
        self.message_user(request, f"{sent:,} sent again.", messages.SUCCESS)
        return None

    @admin.display(description="queue")
    def in_queue(self, archived: ArchivedMessage) -> str:
        return self.link(Queue, archived.queue_id, archived.queue)

    @admin.display(description="state")
    def ended(self, archived: ArchivedMessage) -> str:
        return str(Place[archived.state])

    @admin.display(description="sent at")
    def sent_at(self, archived: ArchivedMessage) -> str:
        return moment(archived.enqueued_at)

    @admin.display(description="first read at")
    def first_read(self, archived: ArchivedMessage) -> str:
        return moment(archived.first_read_at)

    @admin.display(description="last read at")
    def last_read(self, archived: ArchivedMessage) -> str:
        return moment(archived.last_read_at)

    @admin.display(description="archived at")
    def ended_at(self, archived: ArchivedMessage) -> str:
        return moment(archived.archived_at)

    @admin.display(description="message")
    def sent(self, archived: ArchivedMessage) -> str:
        return self.link(Message, archived.pk, f"message {archived.pk}")

    @admin.display(description="error")
    def first_line(self, archived: ArchivedMessage) -> str:
        """The error itself; the traceback comes after it, and may be cut."""
        line, *_ = (archived.error or "").strip().splitlines() or [EMPTY]
        return cut(line, FIRST_LINE)

    @admin.display(description="error")
    def pretty_error(self, archived: ArchivedMessage) -> str:
        return preformatted(archived.error)

    @admin.display(description="result")
    def pretty_result(self, archived: ArchivedMessage) -> str:
        return pretty_json(archived.result)

    @admin.display(description="headers")
    def headers(self, archived: Any) -> str:
        return pretty_json(archived.contents.headers)

    @admin.display(description="body")
    def body(self, archived: Any) -> str:
        return str(archived.contents.body)
