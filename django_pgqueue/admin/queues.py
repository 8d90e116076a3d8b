"""Queues: their backlog, their settings, making and dropping them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import connections
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from django_pgqueue import ddl
from django_pgqueue.admin.confirmation import ask, confirmed
from django_pgqueue.admin.pages import PageAdmin
from django_pgqueue.admin.places import Place
from django_pgqueue.admin.spans import SpanField, span_text
from django_pgqueue.admin.states import queue_of
from django_pgqueue.admin.wording import EMPTY, age, amount, moment
from django_pgqueue.arguments import validate_queue_name
from django_pgqueue.errors import QueueBusy, QueueNotFound
from django_pgqueue.models import ArchivedMessage, Message, PurgeMark, Queue
from django_pgqueue.types import Metrics

__all__ = ["QueueAdmin", "standing_in"]

BACKLOG = ["ready", "due", "waiting", "in_flight", "delayed", "length", "oldest", "archived"]


def standing_in(backlog: Metrics) -> dict[Place, int]:
    """How many messages stand in each place: together, the length of the queue."""
    return {
        Place.READY: backlog.ready,
        Place.DUE: backlog.visible - backlog.ready,
        Place.WAITING: backlog.waiting,
        Place.IN_FLIGHT: backlog.in_flight,
        Place.DELAYED: backlog.delayed,
    }


class QueueForm(forms.ModelForm):
    """The settings of a queue, held to what ``create_queue`` allows."""

    retention = SpanField(
        required=False, help_text="How long archived messages are kept, like 7d; empty: for ever."
    )
    dedup_window = SpanField(
        required=False, help_text="How long a dedup key counts, like 10min; empty: five minutes."
    )

    class Meta:
        model = Queue
        fields = [
            "name",
            "paused",
            "visibility_timeout",
            "max_deliveries",
            "dead_letter_queue",
            "notify",
            "retention",
            "dedup_window",
        ]

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        validate_queue_name(name)
        if Queue.objects.using(self.instance.alias).named(name).exists():
            raise forms.ValidationError("There is a queue of that name, whatever its case.")
        return name

    def clean_dead_letter_queue(self) -> Queue | None:
        """Dead letters must come to rest: the chain of queues may not lead back to this one."""
        target: Queue | None = self.cleaned_data["dead_letter_queue"]
        passed: list[Queue] = []
        following = target
        while following is not None and following not in passed:
            passed.append(following)
            if following == self.instance:
                raise forms.ValidationError(
                    "A queue cannot be its own dead-letter queue."
                    if len(passed) == 1
                    else "Dead letters would go round: "
                    + " -> ".join(map(str, [self.instance, *passed]))
                )
            following = following.dead_letter_queue
        return target

    def clean_visibility_timeout(self) -> int:
        return self._at_least("visibility_timeout", 1, "a second")

    def clean_max_deliveries(self) -> int | None:
        return self._at_least("max_deliveries", 1, "one")

    def _at_least(self, field: str, least: Any, words: str) -> Any:
        value = self.cleaned_data[field]
        if value is not None and value < least:
            raise forms.ValidationError(f"At least {words}.")
        return value


@admin.register(Queue)
class QueueAdmin(PageAdmin):
    """Queues with what they hold at this moment."""

    form = QueueForm
    list_display = [
        "name",
        "ready",
        "due",
        "waiting",
        "in_flight",
        "delayed",
        "length",
        "oldest",
        "archived",
        "dead_letter_queue",
        "stopped",
    ]
    list_select_related = ["dead_letter_queue"]
    sortable_by = ["name", "dead_letter_queue"]
    search_fields = ["name"]
    actions = ["purge"]
    readonly_fields = [
        *BACKLOG,
        "unlogged",
        "interval",
        "leaves",
        "last_removed",
        "made_at",
    ]

    def get_fieldsets(self, request: HttpRequest, obj: Queue | None = None) -> Any:
        settings: list[Any] = [
            (None, {"fields": ["name", "paused"]}),
            (
                "Delivery",
                {
                    "fields": [
                        "visibility_timeout",
                        "max_deliveries",
                        "dead_letter_queue",
                        "notify",
                    ]
                },
            ),
            (
                "Keeping",
                {
                    "fields": ["retention", "dedup_window"],
                },
            ),
        ]
        if obj is None:
            return settings
        backlog = ("Backlog", {"fields": BACKLOG})
        storage = (
            "Storage",
            {
                "fields": [
                    "unlogged",
                    "interval",
                    "leaves",
                    "last_removed",
                    "made_at",
                ]
            },
        )
        return [settings[0], backlog, *settings[1:], storage]

    def get_readonly_fields(self, request: HttpRequest, obj: Queue | None = None) -> list[str]:
        # Senders and consumers know the queue by its name.
        return [*self.readonly_fields, *(["name"] if obj else [])]

    def prepare(self, rows: Sequence[Any]) -> None:
        """One queue by itself; several by one measurement of all, whose cost is not theirs."""
        measured: dict[str, Metrics] = {}
        if len(rows) > 1:
            measured = {each.queue_name: each for each in Message.objects.metrics_all()}
        elif rows:
            with suppress(QueueNotFound):  # dropped at this very moment
                measured = {rows[0].name: Message.objects.metrics(rows[0])}
        for queue in rows:
            queue.backlog = measured.get(queue.name)

    # Cells

    @admin.display(description="ready")
    def ready(self, queue: Any) -> str:
        return self._messages(queue, Place.READY)

    @admin.display(description="due")
    def due(self, queue: Any) -> str:
        return self._messages(queue, Place.DUE)

    @admin.display(description="waiting")
    def waiting(self, queue: Any) -> str:
        return self._messages(queue, Place.WAITING)

    @admin.display(description="in flight")
    def in_flight(self, queue: Any) -> str:
        return self._messages(queue, Place.IN_FLIGHT)

    @admin.display(description="delayed")
    def delayed(self, queue: Any) -> str:
        return self._messages(queue, Place.DELAYED)

    @admin.display(description="in the queue")
    def length(self, queue: Any) -> str:
        return self._length(queue)

    @admin.display(description="oldest")
    def oldest(self, queue: Any) -> str:
        return age(queue.backlog.oldest_age) if queue.backlog else EMPTY

    @admin.display(description="archived")
    def archived(self, queue: Any) -> str:
        if queue.backlog is None:
            return EMPTY
        number = amount(queue.backlog.archived, exact=queue.backlog.exact)
        return self.listed(ArchivedMessage, number, queue=queue.pk)

    @admin.display(description="")
    def stopped(self, queue: Queue) -> str:
        return "paused" if queue.paused else ""

    @admin.display(description="partition interval")
    def interval(self, queue: Queue) -> str:
        return span_text(queue.partition_interval) if queue.partition_interval else EMPTY

    @admin.display(description="created at")
    def made_at(self, queue: Queue) -> str:
        return moment(queue.created_at)

    @admin.display(description="leaves of time")
    def leaves(self, queue: Queue) -> str:
        with connections[queue.alias].cursor() as cursor:
            slices = [leaf for leaf in ddl.leaves(cursor, queue.pk) if leaf.is_slice]
        if not slices:
            return EMPTY
        first, last = slices[0].start, slices[-1].end
        since = f"from {moment(first)} " if first else ""
        until = f"to {moment(last)}" if last else "on"
        return f"{len(slices)}, {since}{until}"

    @admin.display(description="retention last removed messages")
    def last_removed(self, queue: Queue) -> str:
        mark = PurgeMark.objects.using(queue.alias).filter(queue=queue).first()
        return EMPTY if mark is None else moment(mark.purged_at)

    def _messages(self, queue: Any, place: Place) -> str:
        """A count, linked to the messages that it counts."""
        if queue.backlog is None:
            return EMPTY
        number = amount(standing_in(queue.backlog)[place], exact=queue.backlog.exact)
        return self.listed(Message, number, queue=queue.pk, state=place.value)

    # Dropping

    def get_deleted_objects(
        self, objs: Iterable[Queue], request: HttpRequest
    ) -> tuple[list[Any], dict[str, int], set[str], list[str]]:
        """What goes with the queues, in numbers: Django would list every object there is."""
        queues = list(objs)
        self.prepare(queues)
        going: list[Any] = []
        live = archived = 0
        for queue in queues:
            backlog = queue.backlog  # type: ignore[attr-defined]
            if backlog:
                live += backlog.length
                archived += backlog.archived
            going += [
                f"Queue: {queue}",
                [
                    f"{amount(backlog.length, exact=backlog.exact)} messages in the queue",
                    f"{amount(backlog.archived, exact=backlog.exact)} in the archive",
                ]
                if backlog
                else [],
            ]
        may = all(self.has_delete_permission(request, queue) for queue in queues)
        return (
            going,
            {"queues": len(queues), "messages": live, "archived messages": archived},
            set() if may else {str(self.opts.verbose_name)},
            [
                f"Queue: {source}, whose dead-letter queue is {source.dead_letter_queue}"
                for source in Queue.objects.filter(dead_letter_queue__in=queues).select_related(
                    "dead_letter_queue"
                )
            ],
        )

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        try:
            return super().delete_view(request, object_id, extra_context)
        except QueueBusy as error:
            return self._busy(request, error)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        try:
            return super().changelist_view(request, extra_context)
        except QueueBusy as error:
            return self._busy(request, error)

    def _busy(self, request: HttpRequest, error: QueueBusy) -> HttpResponse:
        self.message_user(request, str(error), messages.ERROR)
        return HttpResponseRedirect(request.get_full_path())

    # Purging

    def has_purge_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("django_pgqueue.delete_message")

    @admin.action(description="Purge: delete the messages in the queue", permissions=["purge"])
    def purge(self, request: HttpRequest, queryset: QuerySet[Queue]) -> HttpResponse | None:
        if not confirmed(request):
            queues = list(queryset)
            self.prepare(queues)
            return ask(
                self,
                request,
                title="Purge queues",
                question="Delete every message that waits in these queues or is in flight? "
                "The archive stays.",
                items=[f"{queue}: {self._length(queue)} messages" for queue in queues],
                fields={
                    "action": "purge",
                    ACTION_CHECKBOX_NAME: "0",
                    "select_across": "1",
                    "queues": ",".join(str(queue.pk) for queue in queues),
                },
            )
        chosen = [queue_of(text) for text in request.POST.get("queues", "").split(",")]
        for queue in self.get_queryset(request).filter(pk__in=chosen):
            # Before, too: a process that is killed in between has deleted some.
            self.log_change(request, queue, f"Purge begun: {self._measured(queue)} messages.")
            purged = Message.objects.purge(queue)
            self.log_change(request, queue, f"Purged {purged:,} messages.")
            self.message_user(request, f"Purged {queue}: {purged:,} messages.", messages.SUCCESS)
        return None

    def _measured(self, queue: Queue) -> str:
        self.prepare([queue])
        return self._length(queue)

    @staticmethod
    def _length(queue: Any) -> str:
        return amount(queue.backlog.length, exact=queue.backlog.exact) if queue.backlog else EMPTY
