"""Messages, wherever they stand: to read, and to settle by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.db.models import Case, F, Func, IntegerField, QuerySet, TextField, When
from django.db.models.functions import Cast, Left, Length
from django.db.models.lookups import LessThanOrEqual
from django.http import HttpRequest, HttpResponse
from django.template.defaultfilters import filesizeformat

from django_pgqueue.admin import places
from django_pgqueue.admin.confirmation import ask, confirmed
from django_pgqueue.admin.pages import CappedPaginator, PageList, ReadOnlyAdmin
from django_pgqueue.admin.places import Place
from django_pgqueue.admin.selection import Selection, counted, listed
from django_pgqueue.admin.states import MessageStateFilter, QueueFilter, among
from django_pgqueue.admin.wording import (
    EMPTY,
    LONGEST,
    cut,
    moment,
    preformatted,
    pretty_json,
    visible,
)
from django_pgqueue.models import ArchivedMessage, Message, Queue
from django_pgqueue.types import Settled

__all__ = ["MessageAdmin"]

PREVIEW = 80
#: Bodies that take more bytes in the database are not read for a list.
SMALL = 8192
DEAD_LETTER = "x-dead-letter"


class FoundPaginator(CappedPaginator):
    """Pages of the messages that a state filter found, in the order in which it did."""

    found: list[tuple[int, int]]

    @property
    def count(self) -> int:  # type: ignore[override]
        return len(self.found)

    def page(self, number: Any) -> Any:
        number = self.validate_number(number)
        first = (number - 1) * self.per_page
        part = self.found[first : first + self.per_page]
        return self._get_page(in_order(among(self.object_list, part), part), number, self)


def in_order(rows: QuerySet[Message], found: list[tuple[int, int]]) -> list[Message]:
    line = {pk: place for place, (_, pk) in enumerate(found)}
    return sorted(rows, key=lambda message: line[message.pk])


class MessageList(PageList):
    """Messages, in the order of the state filter where there is one."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        found = getattr(request, "pgqueue_found", None)
        if found is not None and not self.query and isinstance(self.result_list, QuerySet):
            self.result_list = in_order(self.result_list, found)


@admin.register(Message)
class MessageAdmin(ReadOnlyAdmin):
    """All messages, queued or archived."""

    list_display = [
        "id",
        "in_queue",
        "state",
        "deliveries",
        "readable_at",
        "sent_at",
        "preview",
    ]
    list_filter = [MessageStateFilter, QueueFilter]
    actions = ["make_readable", "archive_selected", "delete_for_good"]
    readonly_fields = [
        "in_queue",
        "state",
        "deliveries",
        "attempts",
        "readable_at",
        "sent_at",
        "delayed_until",
        "first_read_at",
        "last_read_at",
        "archived",
        "error",
        "group",
        "dedup",
        "pretty_headers",
        "pretty_body",
    ]
    fieldsets = [
        (None, {"fields": ["id", "in_queue", "state", "sent_at", "delayed_until"]}),
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
                    "group",
                    "dedup",
                    "pretty_headers",
                    "pretty_body",
                ]
            },
        ),
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        # Bodies can be large: a list shows their beginnings, asked for once it is known which.
        return super().get_queryset(request).defer("body", "headers")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return MessageList

    def get_paginator(
        self, request: HttpRequest, queryset: Any, per_page: int, *args: Any, **kwargs: Any
    ) -> Any:
        found = getattr(request, "pgqueue_found", None)
        if found is None or request.GET.get("q"):
            return super().get_paginator(request, queryset, per_page, *args, **kwargs)
        paginator = FoundPaginator(queryset, per_page)
        paginator.found = found
        return paginator

    def prepare(self, rows: Sequence[Message]) -> None:
        """Where each message stands, and how its body begins.

        Places in the queue before outcomes: a message that moves on in between is found.
        """
        if not rows:
            return
        using = rows[0]._state.db or "default"
        of_queues = {
            "pk__in": [message.pk for message in rows],
            "queue_id__in": {message.queue_id for message in rows},
        }
        standing = places.standing(rows, using=using)
        outcomes = {
            outcome.pk: outcome
            for outcome in ArchivedMessage.objects.using(using).filter(**of_queues)
        }
        # What is large is not decompressed, let alone written as text, for its first characters.
        size = Func(F("body"), function="pg_column_size", output_field=IntegerField())
        beginning = Case(
            When(LessThanOrEqual(size, SMALL), then=Left(Cast("body", TextField()), PREVIEW + 1)),
            output_field=TextField(),
        )
        bodies = {
            pk: (text, stored)
            for pk, text, stored in Message.objects.using(using)
            .filter(**of_queues)
            .values_list("pk", beginning, size)
        }
        for message in rows:
            message.standing = standing.get(message.pk)  # type: ignore[attr-defined]
            message.outcome = outcomes.get(message.pk)  # type: ignore[attr-defined]
            message.beginning = bodies.get(message.pk, (None, None))  # type: ignore[attr-defined]

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        found = super().get_object(request, object_id, from_field)
        if found is not None:
            self._load(found)
        return found

    @staticmethod
    def _load(message: Any) -> None:
        """Headers and body, of a very large body only the beginning."""
        text = Cast("body", TextField())
        message.headers, message.text, message.length = (
            Message.objects.using(message._state.db)
            .filter(pk=message.pk, queue_id=message.queue_id)
            .values_list("headers", Left(text, LONGEST), Length(text))
            .first()
        ) or (None, None, 0)

    # Cells

    @admin.display(description="queue")
    def in_queue(self, message: Message) -> str:
        return self.link(Queue, message.queue_id, message.queue)

    @admin.display(description="state")
    def state(self, message: Any) -> str:
        if message.standing:
            return str(message.standing.place)
        return str(Place[message.outcome.state]) if message.outcome else EMPTY

    @admin.display(description="deliveries")
    def deliveries(self, message: Any) -> int:
        return getattr(message.standing or message.outcome, "read_ct", 0)

    @admin.display(description="attempts")
    def attempts(self, message: Any) -> int:
        return getattr(message.standing or message.outcome, "attempts", 0)

    @admin.display(description="readable at")
    def readable_at(self, message: Any) -> str:
        if message.standing is None:
            return EMPTY
        return moment(message.standing.vt or message.enqueued_at)

    @admin.display(description="sent at")
    def sent_at(self, message: Message) -> str:
        return moment(message.enqueued_at)

    @admin.display(description="delayed until")
    def delayed_until(self, message: Message) -> str:
        return moment(message.scheduled_at)

    @admin.display(description="first read at")
    def first_read_at(self, message: Any) -> str:
        return moment(getattr(message.standing or message.outcome, "first_read_at", None))

    @admin.display(description="last read at")
    def last_read_at(self, message: Any) -> str:
        return moment(getattr(message.standing or message.outcome, "last_read_at", None))

    @admin.display(description="archived at")
    def archived(self, message: Any) -> str:
        if message.outcome is None:
            return EMPTY
        return self.link(ArchivedMessage, message.pk, moment(message.outcome.archived_at))

    @admin.display(description="error")
    def error(self, message: Any) -> str:
        """Why it failed: of a dead letter as its headers tell, else as the archive does."""
        if message.outcome is not None and message.outcome.error:
            return preformatted(message.outcome.error)
        return preformatted(_died_of(message.headers))

    @admin.display(description="body")
    def preview(self, message: Any) -> str:
        text, size = message.beginning
        if text is not None:
            return cut(text, PREVIEW)
        return EMPTY if size is None else f"{filesizeformat(size)} in the database"

    @admin.display(description="group")
    def group(self, message: Message) -> str:
        return visible(message.group_key or EMPTY)

    @admin.display(description="dedup key")
    def dedup(self, message: Message) -> str:
        return visible(message.dedup_key or EMPTY)

    @admin.display(description="headers")
    def pretty_headers(self, message: Message) -> str:
        return pretty_json(message.headers)

    @admin.display(description="body")
    def pretty_body(self, message: Any) -> str:
        if message.text is None:
            return EMPTY
        if message.length > LONGEST:
            return preformatted(message.text, message.length)
        return pretty_json(json.loads(message.text))

    # Actions

    def has_settle_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("django_pgqueue.change_message")

    def has_discard_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("django_pgqueue.delete_message")

    @admin.action(description="Make readable now", permissions=["settle"])
    def make_readable(
        self, request: HttpRequest, queryset: QuerySet[Message]
    ) -> HttpResponse | None:
        return self._act(
            request,
            queryset,
            "made readable",
            lambda queue, ids: Message.objects.set_vt(queue, ids, 0),
            title="Make messages readable now",
            question="Make these messages readable at once, also those in flight?",
        )

    @admin.action(description="Archive", permissions=["settle"])
    def archive_selected(
        self, request: HttpRequest, queryset: QuerySet[Message]
    ) -> HttpResponse | None:
        return self._act(
            request,
            queryset,
            "archived",
            Message.objects.archive,
            title="Archive messages",
            question="Archive these messages as completed, also those in flight?",
        )

    @admin.action(description="Delete for good", permissions=["discard"])
    def delete_for_good(
        self, request: HttpRequest, queryset: QuerySet[Message]
    ) -> HttpResponse | None:
        return self._act(
            request,
            queryset,
            "deleted",
            Message.objects.delete,
            title="Delete messages for good",
            question="Delete these messages, with their bodies? Archived ones stay.",
            final=True,
        )

    def _act(
        self,
        request: HttpRequest,
        queryset: QuerySet[Message],
        done: str,
        operation: Callable[[Queue, list[int]], Settled],
        *,
        title: str,
        question: str,
        final: bool = False,
    ) -> HttpResponse | None:
        """Ask where that is due, then do it queue by queue, and say what was found to do.

        All that the list has, or what cannot be undone, is asked about; the answer carries the ids,
        so that nothing is touched that came after the question.
        """
        if confirmed(request):
            selection = Selection.from_text(request.POST.get("selection", ""))
        else:
            selection = Selection.of(queryset)
            if final or request.POST.get("select_across") == "1":
                return self._ask(request, selection, title, question)
        changed: list[int] = []
        missed: list[object] = []
        for queue, ids in selection.by_queue(Queue.objects.all()):
            settled = operation(queue, ids)
            changed += settled
            missed += settled.lost
            if settled:
                self.log_change(request, queue, f"{counted(settled)} {done}: {listed(settled)}")
        if changed:
            self.message_user(request, f"{counted(changed)} {done}.", messages.SUCCESS)
        if missed:
            self.message_user(
                request, f"{counted(missed)} no longer in the queue: left alone.", messages.WARNING
            )
        return None

    def _ask(
        self, request: HttpRequest, selection: Selection, title: str, question: str
    ) -> HttpResponse:
        items = [f"{queue}: {counted(ids)}" for queue, ids in selection.by_queue(Queue.objects)]
        if len(selection) > 1:
            items.append(f"{len(selection):,} in all, up to id {selection.highest}")
        return ask(
            self,
            request,
            title=title,
            question=question,
            items=items,
            fields={
                "action": request.POST.get("action", ""),
                ACTION_CHECKBOX_NAME: str(selection.highest),
                "select_across": "1",
                "selection": selection.as_text(),
            },
        )


def _died_of(headers: Any) -> str | None:
    """The error in a dead letter's headers, which are the sender's: anything may stand there."""
    told = headers.get(DEAD_LETTER) if isinstance(headers, dict) else None
    if not isinstance(told, dict):
        return None
    error = told.get("error") or told.get("reason")
    return error if isinstance(error, str) else None
