"""Messages, wherever they stand: to read, and to settle by hand."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast, Left
from django.http import HttpRequest, HttpResponse

from django_pgqueue.admin.confirmation import ask, confirmed
from django_pgqueue.admin.pages import CAP, ReadOnlyAdmin
from django_pgqueue.admin.states import MessageStateFilter
from django_pgqueue.admin.wording import EMPTY, local, preformatted, pretty_json
from django_pgqueue.models import ArchivedMessage, LiveMessage, Message, Queue
from django_pgqueue.types import Settled, State

__all__ = ["MessageAdmin"]

PREVIEW = 80


@admin.register(Message)
class MessageAdmin(ReadOnlyAdmin):
    """All messages, queued or archived."""

    list_display = [
        "id",
        "in_queue",
        "state",
        "deliveries",
        "readable_at",
        "enqueued_at",
        "preview",
    ]
    list_filter = ["queue", MessageStateFilter]
    actions = ["make_readable", "archive_selected", "delete_for_good"]
    readonly_fields = [
        "in_queue",
        "state",
        "deliveries",
        "attempts",
        "readable_at",
        "first_read_at",
        "last_read_at",
        "archived",
        "error",
        "pretty_headers",
        "pretty_body",
    ]
    fieldsets = [
        (None, {"fields": ["id", "in_queue", "state", "enqueued_at", "scheduled_at"]}),
        (
            "Delivery",
            {
                "fields": [
                    "deliveries",
                    "attempts",
                    "readable_at",
                    "first_read_at",
                    "last_read_at",
                    "archived",
                    "error",
                ]
            },
        ),
        (
            "Message",
            {
                "fields": [
                    "priority",
                    "group_key",
                    "dedup_key",
                    "pretty_headers",
                    "pretty_body",
                ]
            },
        ),
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        # Bodies can be large: a list shows their beginnings, asked for once it is known which.
        return super().get_queryset(request).defer("body", "headers")

    def prepare(self, rows: Sequence[Message]) -> None:
        """Where each message stands, and how its body begins.

        Leases before outcomes: a message that moves on in between is not taken for a fresh one.
        What is in neither place was never read.
        """
        if not rows:
            return
        using = rows[0]._state.db
        ids = [message.pk for message in rows]
        of_queues = {"pk__in": ids, "queue_id__in": {message.queue_id for message in rows}}
        leases = LiveMessage.objects.using(using).exclude(state=State.PENDING.value)
        standing: dict[int, Any] = {lease.pk: lease for lease in leases.filter(pk__in=ids)}
        for outcome in ArchivedMessage.objects.using(using).filter(**of_queues):
            standing.setdefault(outcome.pk, outcome)
        beginning = Left(Cast("body", TextField()), PREVIEW + 1)
        previews = dict(
            Message.objects.using(using).filter(**of_queues).values_list("pk", beginning)
        )
        for message in rows:
            message.standing = standing.get(message.pk)  # type: ignore[attr-defined]
            message.beginning = previews.get(message.pk)  # type: ignore[attr-defined]

    # Cells

    @admin.display(description="queue")
    def in_queue(self, message: Message) -> str:
        return self.link(Queue, message.queue_id, message.queue)

    @admin.display(description="state")
    def state(self, message: Any) -> str:
        return message.standing.state if message.standing else State.PENDING.value

    @admin.display(description="deliveries")
    def deliveries(self, message: Any) -> int:
        return message.standing.read_ct if message.standing else 0

    @admin.display(description="attempts")
    def attempts(self, message: Any) -> int:
        return message.standing.attempts if message.standing else 0

    @admin.display(description="readable at")
    def readable_at(self, message: Any) -> dt.datetime | None:
        if message.standing is None:
            return message.enqueued_at
        return getattr(message.standing, "vt", None)

    @admin.display(description="first read at")
    def first_read_at(self, message: Any) -> dt.datetime | None:
        return getattr(message.standing, "first_read_at", None)

    @admin.display(description="last read at")
    def last_read_at(self, message: Any) -> dt.datetime | None:
        return getattr(message.standing, "last_read_at", None)

    @admin.display(description="archived at")
    def archived(self, message: Any) -> str:
        if not isinstance(message.standing, ArchivedMessage):
            return EMPTY
        return self.link(ArchivedMessage, message.pk, local(message.standing.archived_at))

    @admin.display(description="error")
    def error(self, message: Any) -> str:
        return preformatted(getattr(message.standing, "error", None))

    @admin.display(description="body")
    def preview(self, message: Any) -> str:
        text = message.beginning
        if text is None:
            return EMPTY
        return text if len(text) <= PREVIEW else f"{text[:PREVIEW]}…"

    @admin.display(description="headers")
    def pretty_headers(self, message: Message) -> str:
        return pretty_json(message.headers)

    @admin.display(description="body")
    def pretty_body(self, message: Message) -> str:
        return pretty_json(message.body)

    # Actions

    def has_settle_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("django_pgqueue.change_message")

    def has_discard_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("django_pgqueue.delete_message")

    @admin.action(description="Make readable now", permissions=["settle"])
    def make_readable(self, request: HttpRequest, queryset: QuerySet[Message]) -> None:
        self._settle(
            request,
            queryset,
            "made readable",
            lambda queue, ids: Message.objects.set_vt(queue, ids, 0),
        )

    @admin.action(description="Archive", permissions=["settle"])
    def archive_selected(self, request: HttpRequest, queryset: QuerySet[Message]) -> None:
        self._settle(request, queryset, "archived", Message.objects.archive)

    @admin.action(description="Delete for good", permissions=["discard"])
    def delete_for_good(
        self, request: HttpRequest, queryset: QuerySet[Message]
    ) -> HttpResponse | None:
        if not confirmed(request):
            return ask(
                self,
                request,
                action="delete_for_good",
                title="Delete messages for good",
                question="Delete these messages, with their bodies? Archived ones stay.",
                items=[f"{queue}: {_counted(ids)}" for queue, ids in _by_queue(queryset)],
            )
        self._settle(request, queryset, "deleted", Message.objects.delete)
        return None

    def _settle(
        self, request: HttpRequest, queryset: QuerySet[Message], done: str, operation: Any
    ) -> None:
        """Do it queue by queue, by bare id, and say what was found to do."""
        changed: list[int] = []
        missed: list[object] = []
        for queue, ids in _by_queue(queryset):
            settled: Settled = operation(queue, ids)
            changed += settled
            missed += settled.lost
            if settled:
                self.log_change(request, queue, f"{_counted(settled)} {done}: {_listed(settled)}")
        if changed:
            self.message_user(request, f"{_counted(changed)} {done}.", messages.SUCCESS)
        if missed:
            self.message_user(
                request, f"{_counted(missed)} no longer in the queue: left alone.", messages.WARNING
            )


def _by_queue(queryset: QuerySet[Message]) -> Iterator[tuple[Queue, list[int]]]:
    """The selected ids, no more of them than a list counts."""
    ids: dict[int, list[int]] = defaultdict(list)
    for queue_id, pk in queryset.order_by("-pk").values_list("queue_id", "pk")[:CAP]:
        ids[queue_id].append(pk)
    for queue in Queue.objects.using(queryset.db).filter(pk__in=ids):
        yield queue, ids[queue.pk]


def _counted(ids: Sequence[object]) -> str:
    return f"{len(ids):,} message{'' if len(ids) == 1 else 's'}"


def _listed(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:20])) + (", …" if len(ids) > 20 else "")
