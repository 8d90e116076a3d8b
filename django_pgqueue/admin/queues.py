"""Queues: their backlog, their settings, making and dropping them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import connections
from django.db.models import QuerySet
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
    JsonResponse,
)
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path
from django.utils.crypto import constant_time_compare
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from django_pgqueue.admin.access import allowed
from django_pgqueue.admin.operations import Job, perform
from django_pgqueue.admin.overview import Alert, Overview, Row, look, standing_in
from django_pgqueue.admin.pages import PageAdmin
from django_pgqueue.admin.patience import patiently
from django_pgqueue.admin.places import Place
from django_pgqueue.admin.search import Backlog
from django_pgqueue.admin.spans import SpanField, span_text
from django_pgqueue.admin.wording import EMPTY, age, amount, moment
from django_pgqueue.arguments import validate_queue_name
from django_pgqueue.conf import settings
from django_pgqueue.errors import QueueBusy, QueueNotFound
from django_pgqueue.maintenance.partitions import find_partitions
from django_pgqueue.models import ArchivedMessage, Message, Process, PurgeMark, Queue
from django_pgqueue.models.bulk import Kind

__all__ = ["QueueAdmin"]

#: How many queues a page of the overview shows, and how many it looks at.
QUEUES_PER_PAGE, MOST_QUEUES = 100, 2000

NOT_TYPED = "Nothing was changed: type the name of the queue to confirm."

BACKLOG = ["ready", "due", "waiting", "in_flight", "delayed", "length", "oldest", "archived"]
STORAGE = ["kept", "interval", "partitions", "last_removed", "made_at"]


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
                    + " -> ".join(map(self._named, [self.instance, *passed]))
                )
            following = following.dead_letter_queue
        return target

    def _named(self, queue: Queue) -> str:
        """The name, if it is one of a queue that this form offers, or its own."""
        offered: Any = self.fields["dead_letter_queue"]
        seen = queue == self.instance or offered.queryset.filter(pk=queue.pk).exists()
        return queue.name if seen else "another queue"

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
    change_form_template = "admin/django_pgqueue/queue_form.html"
    delete_confirmation_template = "admin/django_pgqueue/drop.html"
    readonly_fields = [*BACKLOG, *STORAGE]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Queue]:
        return self.queues(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        # A queue that is new is none of those that are allowed.
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
            if object_id.isdecimal() and self.has_purge_permission(request)
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
            return fieldsets
        seen = allowed(request)
        if seen is not None and obj.dead_letter_queue_id not in {None, *seen}:
            # Not to be seen, and not to be lost by saving the rest.
            fieldsets[1][1]["fields"].remove("dead_letter_queue")
        backlog = ("Backlog", {"fields": BACKLOG})
        storage = ("Storage", {"fields": STORAGE})
        return [fieldsets[0], backlog, *fieldsets[1:], storage]

    def get_readonly_fields(self, request: HttpRequest, obj: Queue | None = None) -> list[str]:
        # Senders and consumers know the queue by its name.
        return [*self.readonly_fields, *(["name"] if obj else [])]

    def prepare(self, rows: Sequence[Any]) -> None:
        """The backlog of each; None for a queue that was dropped at this very moment."""
        for queue in rows:
            queue.backlog = None
            with suppress(QueueNotFound):
                queue.backlog = Message.objects.metrics(queue)

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
        return amount(queue.backlog.length, exact=queue.backlog.exact) if queue.backlog else EMPTY

    @admin.display(description="oldest")
    def oldest(self, queue: Any) -> str:
        return age(queue.backlog.oldest_age) if queue.backlog else EMPTY

    @admin.display(description="archived")
    def archived(self, queue: Any) -> str:
        if queue.backlog is None:
            return EMPTY
        number = amount(queue.backlog.archived, exact=queue.backlog.exact)
        return self.listed(ArchivedMessage, number, queue=queue.pk)

    @admin.display(description="storage")
    def kept(self, queue: Queue) -> str:
        return "unlogged: empty after a crash of the server" if queue.unlogged else "logged"

    @admin.display(description="partition interval")
    def interval(self, queue: Queue) -> str:
        return span_text(queue.partition_interval) if queue.partition_interval else EMPTY

    @admin.display(description="created at")
    def made_at(self, queue: Queue) -> str:
        return moment(queue.created_at)

    @admin.display(description="partitions by time")
    def partitions(self, queue: Queue) -> str:
        with connections[queue.alias].cursor() as cursor:
            found = [each for each in find_partitions(cursor, queue.pk) if each.has_range]
        if not found:
            return EMPTY
        first, last = found[0].start, found[-1].end
        since = f"from {moment(first)} " if first else ""
        until = f"to {moment(last)}" if last else "on"
        return f"{len(found)}, {since}{until}"

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
        """The counts of rows deleted with the queues: Django would list every object."""
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
        seen = allowed(request)
        may = all(self.has_delete_permission(request, queue) for queue in queues)
        return (
            going,
            {"queues": len(queues), "messages": live, "archived messages": archived},
            set() if may else {str(self.opts.verbose_name)},
            [
                f"Queue: {source if seen is None or source.pk in seen else 'another one'}, "
                f"whose dead-letter queue is {source.dead_letter_queue}"
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

    def get_urls(self) -> list[URLPattern]:
        def guarded(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
            return self.admin_site.admin_view(view)

        return [
            path("overview.json", self.overview_json, name="django_pgqueue_overview_json"),
            path("<int:pk>/pause/", guarded(self.pause), name="django_pgqueue_queue_pause"),
            path("<int:pk>/resume/", guarded(self.resume), name="django_pgqueue_queue_resume"),
            path("<int:pk>/purge/", guarded(self.purge), name="django_pgqueue_queue_purge"),
            *super().get_urls(),
        ]

    @patiently
    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The overview: what is wrong, and a row a queue."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        by_name = request.GET.get("by") == "name"
        words = request.GET.get("q", "").strip()
        found = self._look(request, by_name)
        shown = [row for row in found.rows if words.lower() in row.queue.name.lower()]
        paginator = Paginator(shown, QUEUES_PER_PAGE)
        page = paginator.get_page(request.GET.get("p"))
        return self.render_live(
            request,
            "overview",
            {
                "title": "Queues",
                "alerts": [(alert, self._alert_url(alert)) for alert in found.alerts],
                "rows": [self._cells(row) for row in page],
                "page": page,
                "at": found.at,
                "words": words,
                "by_name": by_name,
                "has_add_permission": self.has_add_permission(request),
                "may_pause": self.has_pause_permission(request),
                **(extra_context or {}),
            },
        )

    def overview_json(self, request: HttpRequest) -> HttpResponse:
        """The same for programs, which may show a token in place of a session."""
        given = request.headers.get("Authorization", "")
        token = settings.OVERVIEW_TOKEN
        if token and constant_time_compare(given, f"Bearer {token}"):
            queues = list(Queue.objects.order_by("name")[:MOST_QUEUES])
            return JsonResponse(look(queues, by_name=True).as_dict())
        if not self.admin_site.has_permission(request):
            return JsonResponse(
                {"error": "log in, or send the token of OVERVIEW_TOKEN"}, status=401
            )
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        return JsonResponse(self._look(request, by_name=True).as_dict())

    def _look(self, request: HttpRequest, by_name: bool) -> Overview:
        queues = self.get_queryset(request).order_by("name")
        return look(list(queues[:MOST_QUEUES]), by_name=by_name)

    def _cells(self, row: Row) -> dict[str, Any]:
        return {
            "row": row,
            "name": self.link(Queue, row.queue.pk, row.queue),
            "counts": [
                (
                    place,
                    number,
                    self.listed(
                        Message,
                        amount(number, exact=row.exact),
                        queue=row.queue.pk,
                        state=place.value,
                    ),
                )
                for place, number in row.counts.items()
            ],
            "length": amount(row.length, exact=row.exact),
            "oldest": age(row.oldest),
            "failed": self.listed(
                ArchivedMessage, amount(row.failed), queue=row.queue.pk, state=Place.FAILED.value
            ),
            "look": max((alert.level for alert in row.alerts), default=0),
        }

    def _alert_url(self, alert: Alert) -> str | None:
        """Where the page that tells more is; None on a site that does not have it."""
        models = {"messages": Message, "archive": ArchivedMessage, "queue": Queue}
        if alert.about in models and alert.queue is not None:
            model = models[alert.about]
            if not self.admin_site.is_registered(model):
                return None
            if alert.about == "queue":
                return self.url("queue_change", alert.queue.pk)
            chosen = {"state": alert.place.value} if alert.place else {}
            narrowed = urlencode({"queue": str(alert.queue.pk), **chosen})
            return f"{self.url(f'{model._meta.model_name}_changelist')}?{narrowed}"
        if not self.admin_site.is_registered(Process):
            return None
        return self.url("health" if alert.about == "database" else "process_changelist")

    # Pausing

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("django_pgqueue.pause_queue")

    def pause(self, request: HttpRequest, pk: int) -> HttpResponse:
        return self._set_paused(request, pk, True)

    def resume(self, request: HttpRequest, pk: int) -> HttpResponse:
        return self._set_paused(request, pk, False)

    def _set_paused(self, request: HttpRequest, pk: int, paused: bool) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not self.has_pause_permission(request):
            raise PermissionDenied
        queue = get_object_or_404(self.get_queryset(request), pk=pk)
        if queue.paused != paused:
            queue.paused = paused
            queue.save(update_fields=["paused"])
            self.log_change(request, queue, "Paused." if paused else "Resumed.")
        done = f"Paused {queue}: consumers leave it alone." if paused else f"Resumed {queue}."
        self.message_user(request, done, messages.SUCCESS)
        return HttpResponseRedirect(self.url("queue_changelist"))

    # Purging

    def has_purge_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("django_pgqueue.purge_queue")

    def purge(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Ask, then delete the messages in the queue."""
        if not self.has_purge_permission(request):
            raise PermissionDenied
        queue = get_object_or_404(self.get_queryset(request), pk=pk)
        return perform(
            self,
            request,
            [Job(Kind.PURGE, Backlog(queue.pk))],
            back=self.url("queue_change", pk),
            title=_("Purge %s") % queue,
            typed=queue.name,
        )
