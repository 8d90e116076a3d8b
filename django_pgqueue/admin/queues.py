"""Queues: their backlog, their settings, making and dropping them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db import connections
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html

from django_pgqueue.admin.confirmation import ask, confirmed
from django_pgqueue.admin.pages import PageAdmin
from django_pgqueue.admin.wording import EMPTY, age, amount, local
from django_pgqueue.arguments import validate_queue_name
from django_pgqueue.errors import PgQueueError, QueueBusy
from django_pgqueue.maintenance.partitions import find_partitions
from django_pgqueue.models import ArchivedMessage, Message, PurgeMark, Queue
from django_pgqueue.types import State

__all__ = ["QueueAdmin"]

SHORTEST = dt.timedelta(seconds=1)


class QueueForm(forms.ModelForm):
    """The settings of a queue, held to what ``create_queue`` allows."""

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
        target: Queue | None = self.cleaned_data["dead_letter_queue"]
        if target is not None and target == self.instance:
            raise forms.ValidationError("A queue cannot be its own dead-letter queue.")
        return target

    def clean_visibility_timeout(self) -> int:
        return self._at_least("visibility_timeout", 1, "a second")

    def clean_max_deliveries(self) -> int | None:
        return self._at_least("max_deliveries", 1, "one")

    def clean_retention(self) -> dt.timedelta | None:
        return self._at_least("retention", SHORTEST, "a second")

    def clean_dedup_window(self) -> dt.timedelta | None:
        return self._at_least("dedup_window", SHORTEST, "a second")

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
        "in_flight",
        "delayed",
        "oldest",
        "archived",
        "dead_letter_queue",
        "paused",
    ]
    list_select_related = ["dead_letter_queue"]
    sortable_by = ["name", "dead_letter_queue", "paused"]
    search_fields = ["name"]
    actions = ["purge"]
    readonly_fields = [
        "ready",
        "in_flight",
        "delayed",
        "oldest",
        "archived",
        "unlogged",
        "partition_interval",
        "partitions",
        "last_removed",
        "created_at",
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
                    "description": "Spans of time as days and hh:mm:ss, like 7 00:00:00.",
                },
            ),
        ]
        if obj is None:
            return settings
        backlog = ("Backlog", {"fields": ["ready", "in_flight", "delayed", "oldest", "archived"]})
        storage = (
            "Storage",
            {
                "fields": [
                    "unlogged",
                    "partition_interval",
                    "partitions",
                    "last_removed",
                    "created_at",
                ]
            },
        )
        return [settings[0], backlog, *settings[1:], storage]

    def get_readonly_fields(self, request: HttpRequest, obj: Queue | None = None) -> list[str]:
        # Senders and consumers know the queue by its name.
        return [*self.readonly_fields, *(["name"] if obj else [])]

    def prepare(self, rows: Sequence[Queue]) -> None:
        for queue in rows:
            try:
                backlog = Message.objects.metrics(queue)
            except PgQueueError:  # dropped at this very moment
                backlog = None
            queue.backlog = backlog  # type: ignore[attr-defined]

    # Cells

    @admin.display(description="ready")
    def ready(self, queue: Any) -> str:
        return self._messages(queue, "ready", State.PENDING)

    @admin.display(description="in flight")
    def in_flight(self, queue: Any) -> str:
        return self._messages(queue, "in_flight", State.PROCESSING)

    @admin.display(description="delayed")
    def delayed(self, queue: Any) -> str:
        return self._messages(queue, "delayed")

    @admin.display(description="oldest")
    def oldest(self, queue: Any) -> str:
        return age(queue.backlog.oldest_age) if queue.backlog else EMPTY

    @admin.display(description="archived")
    def archived(self, queue: Any) -> str:
        return self._messages(queue, "archived")

    @admin.display(description="partitions by time")
    def partitions(self, queue: Queue) -> str:
        with connections[queue.alias].cursor() as cursor:
            found = [each for each in find_partitions(cursor, queue.pk) if each.has_range]
        if not found:
            return EMPTY
        first, last = found[0].start, found[-1].end
        since = f"from {local(first)} " if first else ""
        until = f"to {local(last)}" if last else "on"
        return f"{len(found)}, {since}{until}"

    @admin.display(description="retention last removed messages")
    def last_removed(self, queue: Queue) -> str:
        mark = PurgeMark.objects.using(queue.alias).filter(queue=queue).first()
        return EMPTY if mark is None else local(mark.purged_at)

    def _messages(self, queue: Any, kind: str, state: State | None = None) -> str:
        """A count, linked to the messages that it counts."""
        if queue.backlog is None:
            return EMPTY
        number = amount(getattr(queue.backlog, kind), exact=queue.backlog.exact)
        model = ArchivedMessage if kind == "archived" else Message
        if not self.admin_site.is_registered(model):
            return number
        url = reverse(
            f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist",
            current_app=self.admin_site.name,
        )
        chosen = f"&state={state}" if state else ""
        return format_html(
            '<a href="{}?queue__id__exact={}{}">{}</a>', url, queue.pk, chosen, number
        )

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
        queues = list(queryset)
        if not confirmed(request):
            self.prepare(queues)
            return ask(
                self,
                request,
                action="purge",
                title="Purge queues",
                question="Delete every message that waits in these queues or is in flight? "
                "The archive stays.",
                items=[f"{queue}: {self._length(queue)} messages" for queue in queues],
            )
        for queue in queues:
            purged = Message.objects.purge(queue)
            self.log_change(request, queue, f"Purged {purged:,} messages.")
            self.message_user(request, f"Purged {queue}: {purged:,} messages.", messages.SUCCESS)
        return None

    @staticmethod
    def _length(queue: Any) -> str:
        return amount(queue.backlog.length, exact=queue.backlog.exact) if queue.backlog else EMPTY
