"""The admin of queues: the overview, a queue's page, its settings, and actions on it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import connections
from django.db.models import Q, QuerySet
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
    JsonResponse,
)
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path
from django.utils.crypto import constant_time_compare
from django.utils.html import format_html
from django.utils.http import url_has_allowed_host_and_scheme, urlencode
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgqueue.admin import generic
from django_pgqueue.admin.access import allowed
from django_pgqueue.admin.bulk_actions import NOT_TYPED, Job, may, perform
from django_pgqueue.admin.charts import count_of, seconds_of, spark_path
from django_pgqueue.admin.overview import (
    DEAD_AFTER,
    Alert,
    Overview,
    Row,
    add_times,
    judged,
    look,
    name_of,
    seconds_since,
    standing_in,
)
from django_pgqueue.admin.pages import PageAdmin
from django_pgqueue.admin.patience import patiently
from django_pgqueue.admin.places import Place
from django_pgqueue.admin.queue_page import (
    RANGES,
    Happened,
    SendForm,
    errors_of,
    room_of,
)
from django_pgqueue.admin.search import Backlog
from django_pgqueue.admin.spans import SpanField
from django_pgqueue.admin.wording import EMPTY, cut, moment
from django_pgqueue.conf import settings
from django_pgqueue.errors import InvalidArgument, InvalidMessage, QueueBusy, QueueNotFound
from django_pgqueue.maintenance.partitions import find_partitions
from django_pgqueue.models import ArchivedMessage, Message, Process, PurgeMark, Queue
from django_pgqueue.models.bulk import Kind
from django_pgqueue.validators import validate_queue_name
from django_pgqueue.wording import age, amount, length_text

__all__ = ["QueueAdmin"]

#: How many queues a page of the overview shows, and how many it measures at most.
QUEUES_PER_PAGE, MOST_QUEUES = 100, 2000

#: How many characters of an error a list shows.
ERROR = 300

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

    def get_urls(self) -> list[URLPattern]:
        def of_queue(name: str, view: Callable[..., HttpResponse]) -> URLPattern:
            return self.own_path(f"<int:pk>/{name}/", view, f"queue_{name}")

        return [
            path("overview.json", self.overview_json, name="django_pgqueue_overview_json"),
            of_queue("overview", self.queue_overview),
            of_queue("send", self.send),
            of_queue("pause", self.pause),
            of_queue("resume", self.resume),
            of_queue("purge", self.purge),
            of_queue("redrive", self.redrive),
            *super().get_urls(),
        ]

    @patiently
    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The overview: alerts, and a row per queue."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        by_name = request.GET.get("by") == "name"
        words = request.GET.get("q", "").strip()
        found = self._look(request, by_name)
        shown = [row for row in found.rows if words.lower() in row.queue.name.lower()]
        page = Paginator(shown, QUEUES_PER_PAGE).get_page(request.GET.get("p"))
        add_times(list(page))
        return self.render_live(
            request,
            "overview",
            {
                "title": gettext("Queues"),
                "alerts": [(alert, self.alert_url(alert)) for alert in found.alerts],
                "rows": self.cells(page),
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
        """The overview as JSON. Takes the token of ``OVERVIEW_TOKEN`` in place of a session."""
        given = request.headers.get("Authorization", "")
        token = settings.OVERVIEW_TOKEN
        if token and constant_time_compare(given, f"Bearer {token}"):
            queues = list(Queue.objects.order_by("name")[:MOST_QUEUES])
            return self._as_json(look(queues, by_name=True))
        if not self.admin_site.has_permission(request):
            return JsonResponse(
                {"error": gettext("log in, or send the token of OVERVIEW_TOKEN")}, status=401
            )
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        return self._as_json(self._look(request, by_name=True))

    def _as_json(self, found: Overview) -> JsonResponse:
        add_times(found.rows)
        return JsonResponse(found.as_dict())

    def _look(self, request: HttpRequest, by_name: bool) -> Overview:
        queues = self.get_queryset(request).order_by("name")
        return look(list(queues[:MOST_QUEUES]), by_name=by_name, seen=self._seen(request))

    @staticmethod
    def _seen(request: HttpRequest) -> Collection[str] | None:
        """The names of the queues that the request may see; None: all."""
        seen = allowed(request)
        return None if seen is None else seen.values()

    # A queue's page

    @patiently
    def queue_overview(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One queue: its numbers and charts, its consumers, errors, groups and storage."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        seen = self._seen(request)
        # The queue, and the queues that dead-letter into it.
        both = Queue.objects.filter(Q(pk=pk) | Q(dead_letter_queue=pk)).order_by("name")
        sources = list(both)
        queue: Any = next((each for each in sources if each.pk == pk), None)
        if queue is None or (seen is not None and queue.name not in seen):
            raise Http404
        sources.remove(queue)
        chosen = RANGES.get(request.GET.get("range", ""), RANGES["hour"])
        happened = Happened(queue, chosen)
        self.prepare([queue])
        found = judged(
            [queue],
            {queue.name: queue.backlog} if queue.backlog else {},
            {queue.pk: happened.recent},
            sources={queue.pk: [name_of(source, seen) for source in sources]},
        )
        for row in found.rows:
            row.times = happened.times
        groups, all_groups, storage = room_of(queue)
        return self.render_live(
            request,
            "queue",
            {
                "title": queue.name,
                "is_list": False,
                "queue": queue,
                "alerts": [(alert, self.alert_url(alert)) for alert in found.alerts],
                "rows": self.cells(found.rows),
                "ranges": [
                    (key, each.label, each is chosen, f"?range={key}")
                    for key, each in RANGES.items()
                ],
                "charts": happened.charts(),
                "consumers": self._consumers(queue, found.processes),
                "errors": [
                    (
                        attempt,
                        self.message_link(attempt.message_id, queue.pk),
                        cut(f"{attempt.error_class}: {attempt.message}", ERROR),
                    )
                    for attempt in errors_of(queue)
                ],
                "groups": groups,
                "all_groups": all_groups,
                "storage": storage,
                "links": self._links(request, queue, found.rows),
                "may_pause": self.has_pause_permission(request),
                "back": request.get_full_path(),
            },
        )

    def _consumers(self, queue: Queue, processes: Iterable[Process]) -> list[dict[str, Any]]:
        """The consumers of the queue, and the messages of it that each works on."""
        rows = []
        for process in processes:
            silent = seconds_since(process.heartbeat_at)
            told = process.working_on if isinstance(process.working_on, dict) else {}
            held = told.get(queue.name, [])
            rows.append(
                {
                    "process": process,
                    "is_dead": silent > DEAD_AFTER,
                    "heartbeat": age(silent),
                    "held": [self.message_link(each, queue.pk) for each in held],
                }
            )
        return rows

    def _links(
        self, request: HttpRequest, queue: Queue, rows: Sequence[Row]
    ) -> list[tuple[str, str]]:
        """Label and URL of each action that this user may take on the queue."""
        links = []
        if self.admin_site.is_registered(Message):
            links.append((gettext("Messages"), self.url("message_changelist", queue=queue.pk)))
        if self.has_send_permission(request):
            links.append((gettext("Send a message"), self.url("queue_send", queue.pk)))
        if any(row.sources for row in rows) and may(request, Kind.REDRIVE):
            links.append((gettext("Redrive"), self.url("queue_redrive", queue.pk)))
        if self.has_purge_permission(request):
            links.append((gettext("Purge"), self.url("queue_purge", queue.pk)))
        links.append((gettext("Settings"), self.url("queue_change", queue.pk)))
        return links

    # Sending

    def has_send_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("django_pgqueue.send_message")

    def send(self, request: HttpRequest, pk: int) -> HttpResponse:
        """A form for one message."""
        if not self.has_send_permission(request):
            raise PermissionDenied
        queue = get_object_or_404(self.get_queryset(request), pk=pk)
        form = SendForm(request.POST or None)
        if form.is_valid():
            try:
                sent = Message.objects.send(queue, **form.cleaned_data)
            except (InvalidArgument, InvalidMessage) as error:
                form.add_error(None, str(error))
            else:
                self.log_change(request, queue, f"Sent message {sent}.")
                told = gettext("Sent message {id} to {queue}.")
                link = self.message_link(sent, queue.pk)
                self.message_user(
                    request, format_html(told, id=link, queue=queue), messages.SUCCESS
                )
                return HttpResponseRedirect(self.url("queue_overview", pk))
        context = {
            "title": gettext("Send a message to %s") % queue,
            "form": form,
            "back": self.url("queue_overview", pk),
        }
        return self.render_page(request, "admin/django_pgqueue/send.html", context)

    def cells(self, rows: Iterable[Row]) -> list[dict[str, Any]]:
        """The template values of these rows."""
        # URLs are resolved once: that takes longer than the rest of a cell.
        has_pages = self.admin_site.is_registered(Message)
        messages = self.url("message_changelist") if has_pages else None
        failures = self.url("message_failures") if has_pages else None

        def link(page: str | None, text: str, **query: Any) -> str:
            if page is None:
                return text
            return format_html('<a href="{}?{}">{}</a>', page, urlencode(query), text)

        def listed(number: int, exact: bool, **query: Any) -> str:
            return link(messages if number else None, amount(number, exact=exact), **query)

        def failed(number: int) -> str:
            return link(failures if number else None, amount(number), window="1h")

        return [self._cells(row, listed, failed) for row in rows]

    def _cells(
        self, row: Row, listed: Callable[..., str], failed: Callable[[int], str]
    ) -> dict[str, Any]:
        queue, hour = row.queue, row.recent.hour
        scale = max(max(slot.sent, slot.ended) for slot in row.recent.slots)
        return {
            "row": row,
            "name": format_html('<a href="{}">{}</a>', self.url("queue_overview", queue.pk), queue),
            "counts": [
                (
                    place,
                    number,
                    listed(number, row.exact, queue=queue.pk, state=place.value),
                )
                for place, number in row.counts.items()
            ],
            "length": amount(row.length, exact=row.exact),
            "oldest": age(row.oldest),
            "came": count_of(row.rates[0]),
            "went": count_of(row.rates[1]),
            "came_path": spark_path([slot.sent for slot in row.recent.slots], most=scale),
            "went_path": spark_path([slot.ended for slot in row.recent.slots], most=scale),
            "has_line": scale > 0,
            "failed": failed(hour.failed),
            "has_failed": hour.failed > 0,
            "dead": failed(hour.dead_lettered),
            "has_dead": hour.dead_lettered > 0,
            "wait": EMPTY if row.times.wait is None else seconds_of(row.times.wait),
            "run": EMPTY if row.times.run is None else seconds_of(row.times.run),
            "look": max((alert.level for alert in row.alerts), default=0),
        }

    def alert_url(self, alert: Alert) -> str | None:
        """The URL of the page with details of an alert; None if the site lacks that page."""
        queue, about = alert.queue, alert.about
        if queue is not None and about == "failures":
            # Messages that failed for good are in the archive, or in the dead-letter queue.
            target = queue.dead_letter_queue_id
            about = "archive" if target is None else "messages"
        else:
            target = None
        if about == "queue" and queue is not None:
            return self.url("queue_overview", queue.pk)
        models = {"messages": Message, "archive": ArchivedMessage}
        if about in models and queue is not None:
            if not self.admin_site.is_registered(models[about]):
                return None
            chosen = {"state": alert.place.value} if alert.place and target is None else {}
            page = f"{models[about]._meta.model_name}_changelist"
            return self.url(page, queue=target or queue.pk, **chosen)
        if not self.admin_site.is_registered(Process):
            return None
        return self.url("health" if about == "database" else "process_changelist")

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
        done = gettext("Paused %s: consumers leave it alone.") if paused else gettext("Resumed %s.")
        self.message_user(request, done % queue, messages.SUCCESS)
        return HttpResponseRedirect(self._back(request) or self.url("queue_changelist"))

    @staticmethod
    def _back(request: HttpRequest) -> str | None:
        """The URL to return to: the posted ``back``, if it is on this site."""
        back = request.POST.get("back", "")
        safe = url_has_allowed_host_and_scheme(
            back, allowed_hosts={request.get_host()}, require_https=request.is_secure()
        )
        return back if safe else None

    # Purging

    def has_purge_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("django_pgqueue.purge_queue")

    def purge(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Ask for confirmation, then delete the messages in the queue."""
        if not self.has_purge_permission(request):
            raise PermissionDenied
        queue = get_object_or_404(self.get_queryset(request), pk=pk)
        return perform(
            self,
            request,
            [Job(Kind.PURGE, Backlog(queue.pk))],
            back=self.url("queue_overview", pk),
            title=gettext("Purge %s") % queue,
            typed=queue.name,
        )

    # Redriving

    def redrive(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Ask for confirmation, then redrive the dead letters in the queue."""
        queue = get_object_or_404(self.get_queryset(request), pk=pk)
        return perform(
            self,
            request,
            [Job(Kind.REDRIVE, Backlog(queue.pk))],
            back=self.url("queue_overview", pk),
            title=gettext("Redrive %s") % queue,
            ask=True,
        )
