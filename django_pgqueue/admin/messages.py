"""Messages, wherever they stand: to read, and to settle by hand."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db.models import Case, F, Func, IntegerField, QuerySet, TextField, When
from django.db.models.functions import Cast, Left
from django.db.models.lookups import LessThanOrEqual
from django.http import HttpRequest, HttpResponse
from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html, format_html_join

from django_pgqueue.admin import places
from django_pgqueue.admin.confirmation import ask, confirmed
from django_pgqueue.admin.masking import mask_text
from django_pgqueue.admin.pages import CappedPaginator, PageList, ReadOnlyAdmin
from django_pgqueue.admin.places import Place
from django_pgqueue.admin.selection import Selection, counted, listed
from django_pgqueue.admin.states import MessageStateFilter, QueueFilter, among
from django_pgqueue.admin.timeline import dead_letter, drawn, steps
from django_pgqueue.admin.wording import (
    EMPTY,
    cut,
    moment,
    preformatted,
    pretty_json,
    visible,
)
from django_pgqueue.errors import QueueNotFound
from django_pgqueue.models import ArchivedMessage, Message, Queue
from django_pgqueue.types import Settled

__all__ = ["MessageAdmin"]

PREVIEW = 80
#: Bodies that take more bytes in the database are not read for a list.
SMALL = 8192


class FoundPaginator(CappedPaginator):
    """Pages of the messages that a state filter found, in the order in which it did."""

    found: list[tuple[int, int]]

    @property
    def count(self) -> int:
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
    actions = ["make_readable", "redrive", "archive_selected", "delete_for_good"]
    readonly_fields = [
        "in_queue",
        "state",
        "deliveries",
        "attempts",
        "life",
        "came_from",
        "outcome",
        "error",
        "group",
        "around",
        "dedup",
        "pretty_headers",
        "pretty_body",
    ]
    fieldsets = [
        (None, {"fields": ["in_queue", "state", "deliveries", "attempts", "life", "outcome"]}),
        ("Failure", {"fields": ["came_from", "error"]}),
        (
            "Message",
            {"fields": ["pretty_body", "pretty_headers", "priority", "group", "around", "dedup"]},
        ),
    ]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Without the failure, where there was none."""
        fieldsets = super().get_fieldsets(request, obj)
        failed = obj is None or obj.died is not None or getattr(obj.outcome, "error", None)
        return [each for each in fieldsets if failed or each[0] != "Failure"]

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
        # A large body is not decompressed, let alone written as text, for its first characters.
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
            found.died = dead_letter(found.contents.headers)
            found.sources = self.queues(request)
        return found

    # Cells

    @admin.display(description="timeline")
    def life(self, message: Any) -> str:
        return drawn(list(steps(message, message.standing, message.outcome, message.died)))

    @admin.display(description="dead letter from")
    def came_from(self, message: Any) -> str:
        if message.died is None or message.died.source is None:
            return EMPTY
        source = message.sources.filter(name=message.died.source).first()
        if source is None:
            return visible(message.died.source)
        times = message.died.times or 1
        return format_html(
            "{}{}",
            self.link(Queue, source.pk, source),
            f", for the {times}. time" if times > 1 else "",
        )

    @admin.display(description="in its group")
    def around(self, message: Any) -> str:
        """The messages of its group before and after it."""
        if message.group_key is None or message.standing is None:
            return EMPTY
        found = places.neighbours(message)
        before = [found.head] if found.head not in (None, message.pk) else []
        before += [pk for pk in found.before if pk not in before]
        after = [pk for pk in found.after if pk != found.head]

        def linked(ids: list[int]) -> str:
            links = ((self.link(Message, pk, pk),) for pk in ids)
            return format_html_join(", ", "{}", links) or EMPTY

        return format_html(
            "before it: {}; after it: {}{}", linked(before), linked(after), ", …" * found.more
        )

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
        if message.standing.place is Place.WAITING:
            return moment(message.standing.vt)
        return moment(message.standing.vt or message.enqueued_at)

    @admin.display(description="sent at")
    def sent_at(self, message: Message) -> str:
        return moment(message.enqueued_at)

    @admin.display(description="outcome")
    def outcome(self, message: Any) -> str:
        if message.outcome is None:
            return EMPTY
        return self.link(ArchivedMessage, message.pk, f"{self.state(message)}, in the archive")

    @admin.display(description="error")
    def error(self, message: Any) -> str:
        """Why it failed: of a dead letter as its headers tell, else as the archive does."""
        if message.outcome is not None and message.outcome.error:
            return preformatted(message.outcome.error)
        return preformatted(message.died.error if message.died else None)

    @admin.display(description="body")
    def preview(self, message: Any) -> str:
        text, size = message.beginning
        if text is not None:
            return cut(mask_text(text), PREVIEW)
        return EMPTY if size is None else f"{filesizeformat(size)} in the database"

    @admin.display(description="group")
    def group(self, message: Message) -> str:
        return visible(message.group_key or EMPTY)

    @admin.display(description="dedup key")
    def dedup(self, message: Message) -> str:
        return visible(message.dedup_key or EMPTY)

    @admin.display(description="headers")
    def pretty_headers(self, message: Any) -> str:
        return pretty_json(message.contents.headers)

    @admin.display(description="body")
    def pretty_body(self, message: Any) -> str:
        return str(message.contents.body)

    # Actions

    def has_settle_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "settle")

    def has_discard_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "delete")

    def has_redrive_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "redrive")

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

    @admin.action(
        description="Redrive: send dead letters back to their queues", permissions=["redrive"]
    )
    def redrive(self, request: HttpRequest, queryset: QuerySet[Message]) -> HttpResponse | None:
        return self._act(
            request,
            queryset,
            "redriven",
            _redriven,
            title="Redrive dead letters",
            question="Send these dead letters back to the queues that they came from? "
            "Those that a consumer holds stay.",
        )

    def _act(
        self,
        request: HttpRequest,
        queryset: QuerySet[Message],
        done: str,
        operation: Any,  # a queue and ids to what Settled says of them
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
        for queue, ids in selection.by_queue(self.queues(request)):
            settled = operation(queue, ids)
            changed += settled
            missed += settled.lost
            if settled:
                self.log_change(request, queue, f"{counted(settled)} {done}: {listed(settled)}")
        if changed:
            self.message_user(request, f"{counted(changed)} {done}.", messages.SUCCESS)
        if missed:
            self.message_user(
                request,
                f"{counted(missed)} left alone: no longer where the action finds them.",
                messages.WARNING,
            )
        return None

    def _ask(
        self, request: HttpRequest, selection: Selection, title: str, question: str
    ) -> HttpResponse:
        items = [
            f"{queue}: {counted(ids)}" for queue, ids in selection.by_queue(self.queues(request))
        ]
        if len(selection) > 1:
            items.append(f"{len(selection):,} in all, up to id {selection.highest}")
        return ask(
            self,
            request,
            title=title,
            question=question,
            items=items,
            fields=selection.as_fields(request.POST.get("action", "")),
        )


def _redriven(queue: Queue, ids: list[int]) -> Settled:
    """Redrive, and say which messages went."""
    with suppress(QueueNotFound):  # what came from other queues went back all the same
        Message.objects.redrive(queue, ids=ids)
    stayed = set(
        Message.objects.using(queue.alias)
        .filter(queue_id=queue.pk, pk__in=ids)
        .values_list("pk", flat=True)
    )
    return Settled([pk for pk in ids if pk not in stayed], lost=[pk for pk in ids if pk in stayed])
