"""The admin of messages, queued and archived: the list, a message's page, and actions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Case, F, Func, IntegerField, QuerySet, TextField, When
from django.db.models.expressions import RawSQL
from django.db.models.functions import Cast, Left
from django.db.models.lookups import LessThanOrEqual
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseRedirect,
    StreamingHttpResponse,
)
from django.template.defaultfilters import filesizeformat
from django.urls import URLPattern
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin import failures, places
from django_pgqueue.admin.access import allowed
from django_pgqueue.admin.bulk_actions import HELD, WORDS, Job, may, perform
from django_pgqueue.admin.masking import mask, mask_text
from django_pgqueue.admin.pages import CAP, ReadOnlyAdmin
from django_pgqueue.admin.patience import patiently
from django_pgqueue.admin.places import LIVE, Place
from django_pgqueue.admin.resend import ResendForm
from django_pgqueue.admin.search import Found, Search
from django_pgqueue.admin.timeline import dead_letter, drawn, steps
from django_pgqueue.admin.wording import (
    EMPTY,
    cut,
    moment,
    preformatted,
    pretty_json,
    visible,
)
from django_pgqueue.errors import PgQueueError
from django_pgqueue.models import ArchivedMessage, Attempt, Message, Process, Queue
from django_pgqueue.models.bulk import Kind

__all__ = ["MessageAdmin"]

PREVIEW = 80
FIRST_LINE = 300
#: Larger bodies, in bytes on disk, are not read for the list (``SMALL``) or exports (``EXPORTED``).
SMALL, EXPORTED = 8192, 100_000
#: Limit of an export in messages, and messages per query.
MOST_EXPORTED, CHUNK = 10_000, 200

ACTIONS = {
    "make_readable": Kind.READABLE,
    "redrive": Kind.REDRIVE,
    "archive_selected": Kind.ARCHIVE,
    "delete_for_good": Kind.DELETE,
    "replay": Kind.REPLAY,
    "discard": Kind.DISCARD,
}
FILTERS = {"state", "queue", "group", "attempts", "older", "newer", "q", "after", "export"}


@admin.register(Message)
class MessageAdmin(ReadOnlyAdmin):
    """All messages, queued or archived."""

    readonly_fields = [
        "in_queue",
        "state",
        "deliveries",
        "attempts",
        "life",
        "came_from",
        "outcome",
        "error",
        "result",
        "failed_attempts",
        "group",
        "around",
        "dedup",
        "pretty_headers",
        "pretty_body",
        "log",
    ]
    change_form_template = "admin/django_pgqueue/message.html"
    fieldsets = [
        (None, {"fields": [("in_queue", "state", "deliveries", "attempts"), "life", "outcome"]}),
        (gettext_lazy("Failure"), {"fields": ["came_from", "error", "failed_attempts"]}),
        (
            gettext_lazy("Message"),
            {
                "fields": [
                    "pretty_body",
                    "pretty_headers",
                    "result",
                    ("priority", "group", "dedup"),
                    "around",
                    "log",
                ]
            },
        ),
    ]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Leave out the fields that are empty for this message."""
        if obj is None:
            return self.fieldsets
        failed = obj.died or getattr(obj.outcome, "error", None) or obj.failed
        absent = {
            *([] if obj.outcome else ["outcome"]),
            *([] if obj.died else ["came_from"]),
            *([] if obj.failed else ["failed_attempts"]),
            *([] if getattr(obj.outcome, "result", None) is not None else ["result"]),
            *([] if obj.group_key else ["around"]),
            *([] if obj.logged else ["log"]),
        }
        return [
            (name, {"fields": [each for each in options["fields"] if each not in absent]})
            for place, (name, options) in enumerate(self.fieldsets)
            if failed or place != 1
        ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        # Bodies can be large. _add_previews reads only the beginnings for the rows of a page.
        return super().get_queryset(request).defer("body", "headers")

    # The list

    @patiently
    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """The messages that a search finds, a page at a time, in read order."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        if set(request.GET) - FILTERS or "\x00" in "".join(request.GET.dict().values()):
            raise SuspiciousOperation("the address has filters that the list does not know")
        if request.method == "POST":
            return self._act(request)
        using = Queue.objects.database()
        search = Search.of(request.GET.dict(), allowed(request))
        if "export" in request.GET:
            found = search.find(MOST_EXPORTED, using=using)
            return self._export(found, using)
        found = search.find(
            self.list_per_page + 1, Found.from_text(request.GET.get("after", "")), using=using
        )
        rows = self._rows(request, found[: self.list_per_page])
        errors = any(row.first_line for row in rows)
        count = search.count(CAP + 1, using=using)
        return self.render_page(
            request,
            "admin/django_pgqueue/messages.html",
            {
                "title": _("Messages"),
                "is_list": True,
                "tabs": self._tabs(request, search),
                "columns": self._columns(errors),
                "rows": [(row.pk, self._cells(row, errors)) for row in rows],
                "count": f"{CAP:,}+" if count > CAP else f"{count:,}",
                "number": count,
                "wrong": search.wrong,
                "given": request.GET,
                "queues": list(self.queues(request).order_by("name").values_list("pk", "name")),
                "in_place": search.place is not None or search.archived,
                "actions": self._actions(request, search),
                "held": search.place not in (Place.COMPLETED, Place.FAILED, Place.CANCELLED),
                "can_take_all": search.place is not None,
                "most_exported": f"{MOST_EXPORTED:,}",
                "export": self._address(request, export="jsonl"),
                "first": self._address(request) if "after" in request.GET else "",
                "next": (
                    self._address(request, after=found[self.list_per_page - 1].as_text())
                    if len(found) > self.list_per_page
                    else ""
                ),
                **(extra_context or {}),
            },
        )

    def _address(self, request: HttpRequest, **changed: str) -> str:
        """The URL of this list's first page, with changed filters."""
        given = {k: v for k, v in request.GET.dict().items() if v and k not in ("after", "export")}
        return f"?{urlencode({k: v for k, v in {**given, **changed}.items() if v})}"

    def _tabs(self, request: HttpRequest, search: Search) -> list[tuple[str, str, bool]]:
        tabs = [
            (_("All"), "", search.place is None and not search.archived),
            *((place.label, place.value, place is search.place) for place in LIVE),
            (_("Archived"), "archived", search.archived),
            *((place.label, place.value, place is search.place) for place in places.ENDED),
        ]
        return [
            (name[:1].upper() + name[1:], self._address(request, state=value), here)
            for name, value, here in tabs
        ]

    def _rows(self, request: HttpRequest, found: Sequence[Found]) -> list[Any]:
        ids = RawSQL("SELECT unnest(%s::bigint[])", [[each.pk for each in found]])
        rows = list(
            self.get_queryset(request).filter(
                pk__in=ids, queue_id__in={each.queue_id for each in found}
            )
        )
        line = {each.pk: place for place, each in enumerate(found)}
        rows.sort(key=lambda message: line[message.pk])
        self.prepare(rows)
        _add_previews(rows)
        return rows

    def _columns(self, errors: bool) -> list[str]:
        columns = [_("id"), _("queue"), _("state"), _("deliveries"), _("readable or ended at")]
        columns += [_("sent at"), _("body")]
        return [*columns, _("error")] if errors else columns

    def _cells(self, row: Any, errors: bool) -> list[tuple[str, str]]:
        cells = [
            ("id", self.message_link(row.pk, row.queue_id)),
            ("in_queue", self.in_queue(row)),
            ("state", self.state(row)),
            ("deliveries", f"{self.deliveries(row):,}"),
            ("readable_at", self.readable_at(row)),
            ("sent_at", self.sent_at(row)),
            ("preview", self.preview(row)),
        ]
        if errors:
            cells.append(("first_line", cut(row.first_line or EMPTY, 100)))
        return cells

    def _export(self, found: Sequence[Found], using: str) -> StreamingHttpResponse:
        """Stream the messages as JSON lines. Masks secrets, and leaves out large bodies."""

        def lines() -> Iterator[str]:
            for first in range(0, len(found), CHUNK):
                chunk = found[first : first + CHUNK]
                size = _size_of("body")
                of_queues = {
                    "pk__in": [each.pk for each in chunk],
                    "queue_id__in": {each.queue_id for each in chunk},
                }
                rows = Message.objects.using(using).filter(**of_queues)
                ended = ArchivedMessage.objects.using(using).filter(**of_queues)
                outcomes = {outcome.pk: outcome for outcome in ended}
                told = {
                    row["id"]: row
                    for row in rows.annotate(
                        size=size,
                        small=Case(When(LessThanOrEqual(size, EXPORTED), then=F("body"))),
                    ).values(
                        *("id", "queue__name", "enqueued_at", "scheduled_at", "priority"),
                        *("group_key", "dedup_key", "headers", "size", "small"),
                    )
                }
                for each in chunk:
                    row = told.get(each.pk)
                    if row is not None:
                        yield _line(row, outcomes.get(each.pk)) + "\n"

        response = StreamingHttpResponse(lines(), content_type="application/x-ndjson")
        response["Content-Disposition"] = 'attachment; filename="messages.jsonl"'
        return response

    # Actions

    def _actions(self, request: HttpRequest, search: Search) -> list[tuple[str, str]]:
        """The actions that the user may take, and that fit the state of the listed messages."""
        of_archive = search.archived or search.place in places.ENDED
        return [
            (name, WORDS[kind].title)
            for name, kind in ACTIONS.items()
            if may(request, kind)
            and (kind.is_of_archive == of_archive or (search.place is None and not search.archived))
        ]

    def _act(self, request: HttpRequest) -> HttpResponse:
        """Perform an action on the chosen messages, or on all that the search finds."""
        back = request.get_full_path()
        kind = ACTIONS.get(request.POST.get("action", ""))
        if kind is None:
            self.message_user(request, _("Choose an action."), messages.WARNING)
            return HttpResponseRedirect(back)
        fields = {"action": request.POST["action"]}
        seen = allowed(request)
        if "query" in request.POST:
            search = Search.from_text(request.POST["query"], seen)
        elif request.POST.get("select_across") == "1":
            search = Search.of(request.GET.dict(), seen)
        else:
            chosen = " ".join(request.POST.getlist("_selected_action"))
            search = Search.of({"q": chosen, "queue": request.GET.get("queue", "")}, seen)
            if not chosen or search.ids is None:
                self.message_user(request, _("Choose messages first."), messages.WARNING)
                return HttpResponseRedirect(back)
        return perform(
            self,
            request,
            [Job(kind, search)],
            back=back,
            fields={**fields, "query": search.as_text()},
            ask=request.POST.get("select_across") == "1",
        )

    def prepare(self, rows: Sequence[Message]) -> None:
        """Attach each message's place in the queue and its outcome.

        Places are read before outcomes, so that a message archived in between is found.
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
        for message in rows:
            message.standing = standing.get(message.pk)  # type: ignore[attr-defined]
            message.outcome = outcomes.get(message.pk)  # type: ignore[attr-defined]

    # One message

    def look_up(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Find a message in the queue that the address names, or else in all queues."""
        named = Search.of({"queue": request.GET.get("queue", "")}, None).queues
        if named:
            with suppress(Message.DoesNotExist, ValueError):
                return self.get_queryset(request).get(pk=object_id, queue_id=named[0])
        return super().look_up(request, object_id, from_field)

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        found = super().get_object(request, object_id, from_field)
        if found is not None:
            using = found._state.db
            found.died = dead_letter(found.contents.headers)
            found.sources = self.queues(request)
            found.failed = Attempt.objects.of(found.pk, using=using)
            found.processes = Process.objects.using(using).in_bulk(
                {each.process_id for each in found.failed if each.process_id}
            )
            logged = ContentType.objects.get_for_model(Message)
            entries = LogEntry.objects.filter(content_type_id=logged.pk, object_id=str(found.pk))
            found.logged = list(entries.select_related("user").order_by("-action_time")[:20])
        return found

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        offers = self._offers(request, context["original"])
        return super().render_change_form(request, {**offers, **context}, *args, **kwargs)

    def _offers(self, request: HttpRequest, message: Any) -> dict[str, Any]:
        """Template context: actions for this message, and a link to similar failures."""
        live = message.standing is not None
        kinds = [
            (name, kind)
            for name, kind in ACTIONS.items()
            if kind.is_of_archive is not live
            and (kind is not Kind.REDRIVE or message.died is not None)
            and may(request, kind)
        ]
        group = None
        why = message.died.error if message.died and live else None
        if why or getattr(message.outcome, "state", "") == Place.FAILED.name:
            group = failures.fingerprint(why or message.outcome.error or "")
        return {
            "offers": [(name, WORDS[kind].title) for name, kind in kinds],
            "offers_held": live and any(kind in HELD for _name, kind in kinds),
            "query": urlencode({"q": message.pk, "queue": message.queue_id}),
            "group_url": group and self.url("message_failure", group),
            "group_offers": failures.offers(request) if group else [],
            "may_resend": self.has_send_permission(request),
        }

    # Cells

    @admin.display(description=gettext_lazy("timeline"))
    def life(self, message: Any) -> str:
        return drawn(list(steps(message, message.standing, message.outcome, message.died)))

    @admin.display(description=gettext_lazy("dead letter from"))
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
            _(", for the %s. time") % times if times > 1 else "",
        )

    @admin.display(description=gettext_lazy("in its group"))
    def around(self, message: Any) -> str:
        """Links to the previous and next message of its group."""
        if message.group_key is None or message.standing is None:
            return EMPTY
        found = places.neighbours(message)
        before = [found.head] if found.head not in (None, message.pk) else []
        before += [pk for pk in found.before if pk not in before]
        after = [pk for pk in found.after if pk != found.head]

        def linked(ids: list[int]) -> str:
            links = ((self.message_link(pk, message.queue_id),) for pk in ids)
            return format_html_join(", ", "{}", links) or EMPTY

        return format_html(
            _("before it: {}; after it: {}{}"), linked(before), linked(after), ", …" * found.more
        )

    @admin.display(description=gettext_lazy("queue"))
    def in_queue(self, message: Message) -> str:
        return self.link(Queue, message.queue_id, message.queue)

    @admin.display(description=gettext_lazy("state"))
    def state(self, message: Any) -> str:
        if message.standing:
            return str(message.standing.place)
        return str(Place[message.outcome.state]) if message.outcome else EMPTY

    @admin.display(description=gettext_lazy("deliveries"))
    def deliveries(self, message: Any) -> int:
        return getattr(message.standing or message.outcome, "read_ct", 0)

    @admin.display(description=gettext_lazy("attempts"))
    def attempts(self, message: Any) -> int:
        return getattr(message.standing or message.outcome, "attempts", 0)

    @admin.display(description=gettext_lazy("readable at"))
    def readable_at(self, message: Any) -> str:
        if message.standing is None:
            return moment(message.outcome.archived_at) if message.outcome else EMPTY
        if message.standing.place is Place.WAITING:
            return moment(message.standing.vt)
        return moment(message.standing.vt or message.enqueued_at)

    @admin.display(description=gettext_lazy("sent at"))
    def sent_at(self, message: Message) -> str:
        return moment(message.enqueued_at)

    @admin.display(description=gettext_lazy("outcome"))
    def outcome(self, message: Any) -> str:
        if message.outcome is None:
            return EMPTY
        return _("%(state)s at %(moment)s") % {
            "state": self.state(message),
            "moment": moment(message.outcome.archived_at),
        }

    @admin.display(description=gettext_lazy("error"))
    def error(self, message: Any) -> str:
        """The last error: from the archive, or for a dead letter from its headers."""
        if message.outcome is not None and message.outcome.error:
            return preformatted(message.outcome.error)
        return preformatted(message.died.error if message.died else None)

    @admin.display(description=gettext_lazy("body"))
    def preview(self, message: Any) -> str:
        text, size = message.beginning
        if text is not None:
            return cut(mask_text(text), PREVIEW)
        return EMPTY if size is None else _("%s in the database") % filesizeformat(size)

    @admin.display(description=gettext_lazy("group"))
    def group(self, message: Message) -> str:
        return visible(message.group_key or EMPTY)

    @admin.display(description=gettext_lazy("dedup key"))
    def dedup(self, message: Message) -> str:
        return visible(message.dedup_key or EMPTY)

    @admin.display(description=gettext_lazy("headers"))
    def pretty_headers(self, message: Any) -> str:
        return pretty_json(message.contents.headers)

    @admin.display(description=gettext_lazy("body"))
    def pretty_body(self, message: Any) -> str:
        return str(message.contents.body)

    @admin.display(description=gettext_lazy("result"))
    def result(self, message: Any) -> str:
        return pretty_json(message.outcome.result) if message.outcome else EMPTY

    @admin.display(description=gettext_lazy("failed attempts"))
    def failed_attempts(self, message: Any) -> str:
        """A row per failed attempt: worker, error, traceback. The last row is expanded."""
        last = message.failed[-1] if message.failed else None
        rows = format_html_join(
            "",
            "<details{}><summary>{} <time>{}</time> {} <b>{}</b>: {}</summary>{}</details>",
            (
                (
                    mark_safe(" open") if each is last else "",
                    _("Attempt %s") % each.attempt,
                    moment(each.at),
                    self._worker(message, each),
                    visible(each.error_class),
                    cut(each.message, 200),
                    preformatted(each.traceback),
                )
                for each in message.failed
            ),
        )
        return format_html('<div class="pgqueue-attempts">{}</div>', rows)

    def _worker(self, message: Any, attempt: Attempt) -> str:
        if attempt.process_id is None:
            return ""
        process = message.processes.get(attempt.process_id)
        return str(process) if process else _("process %s") % attempt.process_id

    @admin.display(description=gettext_lazy("log"))
    def log(self, message: Any) -> str:
        """The log of users' actions on this message."""
        return format_html(
            '<ul class="pgqueue-log">{}</ul>',
            format_html_join(
                "",
                "<li><time>{}</time> {}: {}</li>",
                (
                    (moment(each.action_time), each.user, visible(each.get_change_message()))
                    for each in message.logged
                ),
            ),
        )

    # Sending it again

    def has_send_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "send")

    def get_urls(self) -> list[URLPattern]:
        return [
            self.own_path("<int:pk>/resend/", self.resend, "message_resend"),
            self.own_path("failures/", self.failures, "message_failures"),
            self.own_path("failures/<str:fingerprint>/", self.failure, "message_failure"),
            *super().get_urls(),
        ]

    def resend(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Edit a message's body and headers, and send them as a new one."""
        if not (self.has_view_permission(request) and self.has_send_permission(request)):
            raise PermissionDenied
        message = self.look_up(request, str(pk))
        if message is None:
            raise Http404
        form = ResendForm(message, self.queues(request), request.POST or None)
        if request.method == "POST" and form.is_valid():
            try:
                sent = form.send()
            except PgQueueError as error:
                form.add_error(None, str(error))
            else:
                queue = form.cleaned_data["queue"]
                self.log_change(request, message, _("Sent as new: message %s.") % sent)
                self.log_change(request, queue, _("Sent message %s by hand.") % sent)
                self.message_user(
                    request, _("Sent to %s as message %s.") % (queue, sent), messages.SUCCESS
                )
                return HttpResponseRedirect(self.url("message_change", sent, queue=queue.pk))
        return self.render_page(
            request,
            "admin/django_pgqueue/resend.html",
            {
                "title": _("Edit message %s and send it as new") % pk,
                "form": form,
                "back": self.url("message_change", pk, queue=message.queue_id),
            },
        )

    # Failures

    @patiently
    def failures(self, request: HttpRequest) -> HttpResponse:
        """Failures, by error."""
        return failures.overview(self, request)

    @patiently
    def failure(self, request: HttpRequest, fingerprint: str) -> HttpResponse:
        """The messages of one group of failures, with actions on all of them."""
        return failures.group(self, request, fingerprint)


def _add_previews(rows: Sequence[Any]) -> None:
    """Attach the beginning of the body and the last error's first line to each row."""
    if not rows:
        return
    # Large bodies are left out: reading the first characters would decompress the whole body.
    size = _size_of("body")
    beginning = Case(
        When(LessThanOrEqual(size, SMALL), then=Left(Cast("body", TextField()), PREVIEW + 1)),
        output_field=TextField(),
    )
    died_of = RawSQL("left(headers #>> '{x-dead-letter,error}', %s)", [FIRST_LINE])
    why = Case(
        When(LessThanOrEqual(_size_of("headers"), EXPORTED), then=died_of),
        output_field=TextField(),
    )
    told = {
        pk: rest
        for pk, *rest in Message.objects.using(rows[0]._state.db or "default")
        .filter(
            pk__in=[message.pk for message in rows],
            queue_id__in={message.queue_id for message in rows},
        )
        .values_list("pk", beginning, size, why)
    }
    for message in rows:
        *message.beginning, died_of_it = told.get(message.pk, (None, None, None))
        error = getattr(message.outcome, "error", None) or died_of_it or ""
        message.first_line = (error.strip().splitlines() or [""])[0]


def _size_of(column: str) -> Func:
    """SQL for the bytes of a value on disk. Does not read the value."""
    return Func(F(column), function="pg_column_size", output_field=IntegerField())


def _line(row: dict[str, Any], outcome: ArchivedMessage | None) -> str:
    told = {
        "id": row["id"],
        "queue": row["queue__name"],
        "state": outcome.state if outcome else None,
        "enqueued_at": row["enqueued_at"],
        "scheduled_at": row["scheduled_at"],
        "archived_at": outcome.archived_at if outcome else None,
        "priority": row["priority"],
        "group": row["group_key"],
        "dedup_key": row["dedup_key"],
        "headers": mask(row["headers"]),
        "body": mask(row["small"]),
        "error": outcome.error if outcome else None,
    }
    if row["small"] is None and row["size"]:
        told["body_left_out"] = row["size"]
    return json.dumps(told, cls=DjangoJSONEncoder, ensure_ascii=False)
