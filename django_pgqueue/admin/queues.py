"""The admin of queues: the overview, a queue's page, its settings, and actions on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db import connections
from django.db.models import QuerySet
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseRedirect,
)
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgqueue.admin import generic
from django_pgqueue.admin.access import allowed
from django_pgqueue.admin.base import PageAdmin
from django_pgqueue.admin.bulk_actions import NOT_TYPED
from django_pgqueue.admin.overview import (
    name_of,
    standing_in,
)
from django_pgqueue.admin.overview_page import OverviewJson, OverviewPage
from django_pgqueue.admin.places import Place
from django_pgqueue.admin.queue_actions import (
    PausePage,
    PurgePage,
    RedrivePage,
    ResumePage,
    SendPage,
)
from django_pgqueue.admin.queue_page import QueueOverviewPage
from django_pgqueue.admin.spans import SpanField
from django_pgqueue.admin.wording import EMPTY, moment
from django_pgqueue.errors import QueueBusy, QueueNotFound
from django_pgqueue.maintenance.partitions import find_partitions
from django_pgqueue.models import ArchivedMessage, Message, PurgeMark, Queue
from django_pgqueue.validators import validate_queue_name
from django_pgqueue.wording import age, amount, length_text

__all__ = ["QueueAdmin"]

BACKLOG = ["ready", "due", "waiting", "in_flight", "delayed", "length", "oldest", "archived"]
STORAGE = ["kept", "interval", "partitions", "last_removed", "made_at"]


class QueueForm(generic.ModelForm):
    """The settings of a queue, with the same limits as in ``create_queue``."""

    retention = SpanField(
        required=False,
        label=_("Retention"),
        help_text=_("How long archived messages are kept, like 7d; empty: for ever."),
    )
    dedup_window = SpanField(
        required=False,
        label=_("Dedup window"),
        help_text=_("How long a dedup key counts, like 10min; empty: five minutes."),
    )
    age_limit = SpanField(
        required=False,
        label=_("Age limit"),
        help_text=_(
            "For how long a message may be readable without an alert, like 2h; empty: five minutes."
        ),
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
            "age_limit",
        ]

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        validate_queue_name(name)
        if Queue.objects.using(self.instance.alias).named(name).exists():
            raise forms.ValidationError(
                _("There is a queue of that name; upper and lower case count as equal.")
            )
        return name

    def clean_dead_letter_queue(self) -> Queue | None:
        """Refuse a cycle of dead-letter queues."""
        target: Queue | None = self.cleaned_data["dead_letter_queue"]
        passed: list[Queue] = []
        following = target
        while following is not None and following not in passed:
            passed.append(following)
            if following == self.instance:
                raise forms.ValidationError(
                    gettext("A queue cannot be its own dead-letter queue.")
                    if len(passed) == 1
                    else gettext("The dead-letter queues would form a cycle: %s")
                    % " -> ".join(map(self._named, [self.instance, *passed]))
                )
            following = following.dead_letter_queue
        return target

    def _named(self, queue: Queue) -> str:
        """The queue's name, or "another queue" if the form does not offer it."""
        offered: Any = self.fields["dead_letter_queue"]
        seen = queue == self.instance or offered.queryset.filter(pk=queue.pk).exists()
        return queue.name if seen else gettext("another queue")

    def clean_visibility_timeout(self) -> int | None:
        return self._at_least("visibility_timeout", 1, _("At least a second."))

    def clean_max_deliveries(self) -> int | None:
        return self._at_least("max_deliveries", 1, _("At least one."))

    def _at_least(self, field: str, least: int, words: Any) -> int | None:
        value: int | None = self.cleaned_data[field]
        if value is not None and value < least:
            raise forms.ValidationError(words)
        return value


@admin.register(Queue)
class QueueAdmin(PageAdmin):
    """Queues and their current backlog."""

    form = QueueForm
    change_form_template = "admin/django_pgqueue/queue_form.html"
    delete_confirmation_template = "admin/django_pgqueue/drop.html"
    readonly_fields = [*BACKLOG, *STORAGE]
    list_page = OverviewPage
    pages = [
        OverviewJson,
        QueueOverviewPage,
        SendPage,
        PausePage,
        ResumePage,
        PurgePage,
        RedrivePage,
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Queue]:
        return self.queues(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        # A user who may see only some queues could not see a new one.
        return allowed(request) is None and super().has_add_permission(request)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        purge_url = (
            self.url("queue_purge", object_id)
            if object_id.isdecimal() and PurgePage.permits(self, request)
            else None
        )
        return super().change_view(
            request, object_id, form_url, {"purge_url": purge_url, **(extra_context or {})}
        )

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "dead_letter_queue":
            kwargs["queryset"] = self.queues(request)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def get_fieldsets(self, request: HttpRequest, obj: Queue | None = None) -> Any:
        fieldsets: list[Any] = [
            (None, {"fields": ["name", "paused"]}),
            (
                _("Delivery"),
                {
                    "fields": [
                        "visibility_timeout",
                        "max_deliveries",
                        "dead_letter_queue",
                        "notify",
                        "age_limit",
                    ]
                },
            ),
            (
                _("Keeping"),
                {
                    "fields": ["retention", "dedup_window"],
                },
            ),
        ]
        if obj is None:
            return fieldsets
        seen = allowed(request)
        if seen is not None and obj.dead_letter_queue_id not in {None, *seen}:
            # The user may not see this queue's name. Without the field, saving keeps the value.
            fieldsets[1][1]["fields"].remove("dead_letter_queue")
        backlog = (_("Backlog"), {"fields": BACKLOG})
        storage = (_("Storage"), {"fields": STORAGE})
        return [fieldsets[0], backlog, *fieldsets[1:], storage]

    def get_readonly_fields(self, request: HttpRequest, obj: Queue | None = None) -> list[str]:
        # Senders and consumers know the queue by its name.
        return [*self.readonly_fields, *(["name"] if obj else [])]

    def prepare(self, rows: Sequence[Any]) -> None:
        """Attach each queue's backlog; None for a queue that was dropped meanwhile."""
        for queue in rows:
            queue.backlog = None
            with suppress(QueueNotFound):
                queue.backlog = Message.objects.metrics(queue)

    # Cells

    @admin.display(description=_("ready"))
    def ready(self, queue: Any) -> str:
        return self._messages(queue, Place.READY)

    @admin.display(description=_("due"))
    def due(self, queue: Any) -> str:
        return self._messages(queue, Place.DUE)

    @admin.display(description=_("waiting"))
    def waiting(self, queue: Any) -> str:
        return self._messages(queue, Place.WAITING)

    @admin.display(description=_("in flight"))
    def in_flight(self, queue: Any) -> str:
        return self._messages(queue, Place.IN_FLIGHT)

    @admin.display(description=_("delayed"))
    def delayed(self, queue: Any) -> str:
        return self._messages(queue, Place.DELAYED)

    @admin.display(description=_("in the queue"))
    def length(self, queue: Any) -> str:
        return amount(queue.backlog.length, exact=queue.backlog.exact) if queue.backlog else EMPTY

    @admin.display(description=_("oldest"))
    def oldest(self, queue: Any) -> str:
        return age(queue.backlog.oldest_age) if queue.backlog else EMPTY

    @admin.display(description=_("archived"))
    def archived(self, queue: Any) -> str:
        if queue.backlog is None:
            return EMPTY
        number = amount(queue.backlog.archived, exact=queue.backlog.exact)
        return self.listed(ArchivedMessage, number, queue=queue.pk)

    @admin.display(description=_("storage"))
    def kept(self, queue: Queue) -> str:
        if queue.unlogged:
            return gettext("unlogged: empty after a crash of the server")
        return gettext("logged")

    @admin.display(description=_("partition interval"))
    def interval(self, queue: Queue) -> str:
        return length_text(queue.partition_interval) if queue.partition_interval else EMPTY

    @admin.display(description=_("created at"))
    def made_at(self, queue: Queue) -> str:
        return moment(queue.created_at)

    @admin.display(description=_("partitions by time"))
    def partitions(self, queue: Queue) -> str:
        with connections[queue.alias].cursor() as cursor:
            found = [each for each in find_partitions(cursor, queue.pk) if each.has_range]
        if not found:
            return EMPTY
        first, last = found[0].start, found[-1].end
        told = {"number": len(found), "first": moment(first), "last": moment(last)}
        if first and last:
            return gettext("%(number)s, from %(first)s to %(last)s") % told
        if first:
            return gettext("%(number)s, from %(first)s on") % told
        return gettext("%(number)s, to %(last)s") % told

    @admin.display(description=_("retention last removed messages"))
    def last_removed(self, queue: Queue) -> str:
        mark = PurgeMark.objects.using(queue.alias).filter(queue=queue).first()
        return EMPTY if mark is None else moment(mark.purged_at)

    def _messages(self, queue: Any, place: Place) -> str:
        """The number of messages in a place, as a link to their list."""
        if queue.backlog is None:
            return EMPTY
        number = amount(standing_in(queue.backlog)[place], exact=queue.backlog.exact)
        return self.listed(Message, number, queue=queue.pk, state=place.value)

    # Dropping

    def get_deleted_objects(
        self, objs: Iterable[Queue], request: HttpRequest
    ) -> tuple[list[Any], dict[str, int], set[str], list[str]]:
        """The counts of rows deleted with the queues. Django would list every object."""
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
                gettext("Queue: %s") % queue,
                [
                    gettext("%s messages in the queue")
                    % amount(backlog.length, exact=backlog.exact),
                    gettext("%s in the archive") % amount(backlog.archived, exact=backlog.exact),
                ]
                if backlog
                else [],
            ]
        seen = allowed(request)
        may = all(self.has_delete_permission(request, queue) for queue in queues)
        return (
            going,
            {
                gettext("queues"): len(queues),
                gettext("messages"): live,
                gettext("archived messages"): archived,
            },
            set() if may else {str(self.opts.verbose_name)},
            [
                gettext("Queue: %(source)s, whose dead-letter queue is %(target)s")
                % {
                    "source": name_of(source, None if seen is None else seen.values()),
                    "target": source.dead_letter_queue,
                }
                for source in Queue.objects.filter(dead_letter_queue__in=queues).select_related(
                    "dead_letter_queue"
                )
            ],
        )

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if request.method == "POST":
            queue = self.get_object(request, object_id)
            if queue is not None and request.POST.get("typed", "").strip() != queue.name:
                self.message_user(request, NOT_TYPED, messages.ERROR)
                return HttpResponseRedirect(request.get_full_path())
        try:
            return super().delete_view(request, object_id, extra_context)
        except QueueBusy as error:
            return self._busy(request, error)

    def _busy(self, request: HttpRequest, error: QueueBusy) -> HttpResponse:
        self.message_user(request, str(error), messages.ERROR)
        return HttpResponseRedirect(request.get_full_path())

    # Overview

    # A queue's page

    # Sending

    # Pausing

    # Purging

    # Redriving
