"""The list of messages: search, export, and actions on what it finds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from django.contrib import messages
from django.core.exceptions import SuspiciousOperation
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Case, F, Func, IntegerField, TextField, When
from django.db.models.expressions import RawSQL
from django.db.models.functions import Cast, Left
from django.db.models.lookups import LessThanOrEqual
from django.http import (
    HttpResponse,
    HttpResponseRedirect,
    StreamingHttpResponse,
)
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from django_pgqueue.admin import places
from django_pgqueue.admin.access import allowed
from django_pgqueue.admin.base import CAP
from django_pgqueue.admin.bulk_actions import WORDS, Job, may, perform
from django_pgqueue.admin.masking import mask
from django_pgqueue.admin.page import Page
from django_pgqueue.admin.patience import SECONDS, limited
from django_pgqueue.admin.places import LIVE, Place, Standing
from django_pgqueue.admin.search import Found, Search
from django_pgqueue.admin.wording import (
    EMPTY,
    cut,
)
from django_pgqueue.models import ArchivedMessage, Message, Queue
from django_pgqueue.models.bulk import Kind

__all__ = ["ACTIONS", "PREVIEW", "MessagesPage"]

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


class MessagesPage(Page):
    """The messages that a search finds, a page at a time, in read order."""

    name = "message_changelist"
    template = "messages"

    def answer(self) -> HttpResponse | StreamingHttpResponse:
        if set(self.request.GET) - FILTERS or "\x00" in "".join(self.request.GET.dict().values()):
            raise SuspiciousOperation("the address has filters that the list does not know")
        if self.request.method == "POST":
            return self._act()
        using = Queue.objects.database()
        queues = self.owner.queues(self.request).order_by("name")
        search = Search.of(self.request.GET.dict(), allowed(self.request))
        if "export" in self.request.GET:
            found = search.find(MOST_EXPORTED, using=using)
            return self._export(found, using)
        length = self.owner.list_per_page
        after = Found.from_text(self.request.GET.get("after", ""))
        found = search.find(length + 1, after, using=using)
        rows = self._rows(found[:length])
        errors = any(row.first_line for row in rows)
        count = search.count(CAP + 1, using=using)
        return self.render(
            {
                "title": _("Messages"),
                "is_list": True,
                "tabs": self._tabs(search),
                "columns": self._columns(errors),
                "rows": [(row.pk, self._cells(row, errors)) for row in rows],
                "count": f"{CAP:,}+" if count > CAP else f"{count:,}",
                "number": count,
                "wrong": search.wrong,
                "given": self.request.GET,
                "queues": list(queues.values_list("pk", "name")),
                "in_place": search.place is not None or search.archived,
                "actions": self._actions(search),
                "held": search.place not in (Place.COMPLETED, Place.FAILED, Place.CANCELLED),
                "can_take_all": search.place is not None,
                "most_exported": f"{MOST_EXPORTED:,}",
                "export": self._address(export="jsonl"),
                "first": self._address() if "after" in self.request.GET else "",
                "next": (
                    self._address(after=found[length - 1].as_text()) if len(found) > length else ""
                ),
            },
        )

    def _address(self, **changed: str) -> str:
        """The URL of this list's first page, with changed filters."""
        given = {**self.request.GET.dict(), "after": "", "export": "", **changed}
        return f"?{urlencode({name: value for name, value in given.items() if value})}"

    def _tabs(self, search: Search) -> list[tuple[str, str, bool]]:
        tabs = [
            (_("All"), "", search.place is None and not search.archived),
            *((place.label, place.value, place is search.place) for place in LIVE),
            (_("Archived"), "archived", search.archived),
            *((place.label, place.value, place is search.place) for place in places.ENDED),
        ]
        return [
            (name[:1].upper() + name[1:], self._address(state=value), here)
            for name, value, here in tabs
        ]

    def _rows(self, found: Sequence[Found]) -> list[Any]:
        ids = RawSQL("SELECT unnest(%s::bigint[])", [[each.pk for each in found]])
        rows = list(
            self.owner.get_queryset(self.request).filter(
                pk__in=ids, queue_id__in={each.queue_id for each in found}
            )
        )
        line = {each.pk: place for place, each in enumerate(found)}
        rows.sort(key=lambda message: line[message.pk])
        self.owner.prepare(rows)
        _add_previews(rows)
        return rows

    def _columns(self, errors: bool) -> list[str]:
        columns = [_("id"), _("queue"), _("state"), _("deliveries"), _("readable or ended at")]
        columns += [_("sent at"), _("body")]
        return [*columns, _("error")] if errors else columns

    def _cells(self, row: Any, errors: bool) -> list[tuple[str, str]]:
        cells = [
            ("id", self.owner.message_link(row.pk, row.queue_id)),
            ("in_queue", self.owner.in_queue(row)),
            ("state", self.owner.state(row)),
            ("deliveries", f"{self.owner.deliveries(row):,}"),
            ("readable_at", self.owner.readable_at(row)),
            ("sent_at", self.owner.sent_at(row)),
            ("preview", self.owner.preview(row)),
        ]
        if errors:
            cells.append(("first_line", cut(row.first_line or EMPTY, 100)))
        return cells

    def _export(self, found: Sequence[Found], using: str) -> StreamingHttpResponse:
        """Stream the messages as JSON lines. Masks secrets, and leaves out large bodies."""

        def lines() -> Iterator[str]:
            for first in range(0, len(found), CHUNK):
                yield from _lines(found[first : first + CHUNK], using)

        response = StreamingHttpResponse(lines(), content_type="application/x-ndjson")
        response["Content-Disposition"] = 'attachment; filename="messages.jsonl"'
        return response

    def _actions(self, search: Search) -> list[tuple[str, str]]:
        """The actions that the user may take, and that fit the state of the listed messages."""
        of_archive = search.archived or search.place in places.ENDED
        return [
            (name, WORDS[kind].title)
            for name, kind in ACTIONS.items()
            if may(self.request, kind)
            and (kind.is_of_archive == of_archive or (search.place is None and not search.archived))
        ]

    def _act(self) -> HttpResponse:
        """Perform an action on the chosen messages, or on all that the search finds."""
        back = self.request.get_full_path()
        kind = ACTIONS.get(self.request.POST.get("action", ""))
        if kind is None:
            self.owner.message_user(self.request, _("Choose an action."), messages.WARNING)
            return HttpResponseRedirect(back)
        fields = {"action": self.request.POST["action"]}
        seen = allowed(self.request)
        if "query" in self.request.POST:
            search = Search.from_text(self.request.POST["query"], seen)
        elif self.request.POST.get("select_across") == "1":
            search = Search.of(self.request.GET.dict(), seen)
        else:
            chosen = " ".join(self.request.POST.getlist("_selected_action"))
            search = Search.of({"q": chosen, "queue": self.request.GET.get("queue", "")}, seen)
            if not chosen or search.ids is None:
                self.owner.message_user(self.request, _("Choose messages first."), messages.WARNING)
                return HttpResponseRedirect(back)
        return perform(
            self.owner,
            self.request,
            [Job(kind, search)],
            back=back,
            fields={**fields, "query": search.as_text()},
            ask=self.request.POST.get("select_across") == "1",
        )


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


def _lines(chunk: Sequence[Found], using: str) -> list[str]:
    """The exported lines of these messages, read with the time limit of a page."""
    size = _size_of("body")
    of_queues = {
        "pk__in": [each.pk for each in chunk],
        "queue_id__in": {each.queue_id for each in chunk},
    }
    rows = (
        Message.objects.using(using)
        .filter(**of_queues)
        .annotate(size=size, small=Case(When(LessThanOrEqual(size, EXPORTED), then=F("body"))))
        .values(
            *("id", "queue__name", "enqueued_at", "scheduled_at", "priority"),
            *("group_key", "dedup_key", "headers", "size", "small"),
        )
    )
    keys = Message.objects.using(using).only("pk", "queue_id", "priority", "group_key")
    ended = ArchivedMessage.objects.using(using).filter(**of_queues)
    with limited(using, SECONDS):
        # Places before outcomes, so that a message archived in between is found.
        standing = places.standing(list(keys.filter(**of_queues)), using=using)
        outcomes = {outcome.pk: outcome for outcome in ended}
        told = {row["id"]: row for row in rows}
    return [
        _line(told[e.pk], outcomes.get(e.pk), standing.get(e.pk)) + "\n"
        for e in chunk
        if e.pk in told
    ]


def _line(row: dict[str, Any], outcome: ArchivedMessage | None, standing: Standing | None) -> str:
    place = standing.place.name if standing else None
    told = {
        "id": row["id"],
        "queue": row["queue__name"],
        "state": outcome.state if outcome else place,
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
