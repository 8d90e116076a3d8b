"""The list of messages, with search, export and actions."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from django.contrib import messages
from django.core.exceptions import SuspiciousOperation
from django.core.serializers.json import DjangoJSONEncoder
from django.http import HttpResponse, HttpResponseRedirect, QueryDict, StreamingHttpResponse
from django.template.defaultfilters import filesizeformat
from django.utils.http import urlencode
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from django_pgqueue.admin import places
from django_pgqueue.admin.access import allowed, queues_for
from django_pgqueue.admin.base import CAP
from django_pgqueue.admin.bulk_actions import WORDS, Action, Job, may
from django_pgqueue.admin.masking import mask_json, mask_text
from django_pgqueue.admin.page import Page
from django_pgqueue.admin.patience import SECONDS, limited
from django_pgqueue.admin.places import LIVE, STANDING, Place, Standing, UnknownOutcome, outcome_of
from django_pgqueue.admin.queries import ask
from django_pgqueue.admin.search import MOST, Found, Looked, Search, is_number
from django_pgqueue.admin.suggestions import NEWEST, suggestions
from django_pgqueue.admin.timeline import DeadLetter, dead_letter
from django_pgqueue.admin.why import REASONS
from django_pgqueue.errors import error_line
from django_pgqueue.models import Queue
from django_pgqueue.queues.bulk import Kind
from django_pgqueue.templatetags.pgqueue_admin import EMPTY, cut, number

PREVIEW, FIRST_LINE = 80, 200
#: The largest values that are read for the list and for exports, in bytes on disk.
SMALL, EXPORTED = 8192, 100_000
#: The maximum number of messages in an export, and the number of messages per query.
MOST_EXPORTED, CHUNK = 10_000, 200

ACTIONS = {kind.value: kind for kind in Kind if kind is not Kind.PURGE}
FILTERS = {"state", "queue", "group", "attempts", "older", "newer", "q", "o"}
#: Query parameters that are not filters. ``after`` is the previous page's last message,
#: ``searched`` the number of messages tested so far. ``export`` downloads the messages.
PLACE = {"after", "searched", "export"}


class Listed(NamedTuple):
    """A message of the list or of an export."""

    pk: int
    queue_id: int
    queue: str
    enqueued_at: dt.datetime
    scheduled_at: dt.datetime | None
    expires_at: dt.datetime | None
    priority: int
    group_key: str | None
    unique_key: str | None
    headers: str | None  # JSON; read for exports only.
    body: str | None  # JSON, or its beginning.
    size: int | None  # The body's size on disk.
    state: str | None  # The outcome.
    archived_at: dt.datetime | None
    outcome_read_ct: int | None
    error: str | None  # Also the error of a dead letter.
    died: DeadLetter | None
    standing: Standing | None
    reason: object  # Why the message is not delivered now, in words; "" in exports.

    @property
    def place(self) -> Place | UnknownOutcome | None:
        if self.standing:
            return self.standing.place
        return outcome_of(self.state) if self.state else None

    @property
    def shown_state(self) -> object:
        """The place in words. A dead letter is one wherever it is in its queue."""
        return _("dead letter") if self.died else EMPTY if self.place is None else self.place

    @property
    def sent_at(self) -> dt.datetime:
        """When the message was sent; a dead letter, to the queue that it came from."""
        return (self.died and self.died.sent_at) or self.enqueued_at

    @property
    def deliveries(self) -> int:
        before = (self.died and self.died.deliveries) or 0
        return before + (self.standing.read_ct if self.standing else self.outcome_read_ct or 0)

    @property
    def turn(self) -> dt.datetime | None:
        """When the message was archived, died, or can be read. None if waiting."""
        if self.died and self.died.died_at:
            return self.died.died_at
        if self.standing is None or self.standing.place is Place.WAITING:
            return self.archived_at
        return self.standing.vt or self.enqueued_at

    @property
    def preview(self) -> str:
        if self.body is not None:
            return cut(mask_text(self.body), PREVIEW)
        return _("%s in the database") % filesizeformat(self.size) if self.size else EMPTY

    @property
    def first_line(self) -> str:
        """The line that names the message's error."""
        return cut(error_line(self.error or ""), FIRST_LINE)

    def because(self, reason: str | None) -> Listed:
        """Return the message with the reason why it is not delivered now, in words."""
        return self._replace(reason=REASONS.get(reason or "", ""))

    def as_line(self) -> str:
        """Return the message as an exported line of JSON, with secrets masked."""
        place = self.state or (self.standing and self.standing.place.name)
        told = {
            "id": self.pk,
            "queue": self.queue,
            "state": "DEAD_LETTER" if self.died else place,
            "enqueued_at": self.enqueued_at,
            "scheduled_at": self.scheduled_at,
            "expires_at": self.expires_at,
            "archived_at": self.archived_at,
            "priority": self.priority,
            "group": self.group_key,
            "unique_key": self.unique_key,
            "headers": mask_json(self.headers),
            "body": mask_json(self.body),
            "error": self.error,
        }
        if self.body is None and self.size:
            told["body_left_out"] = self.size
        return json.dumps(told, cls=DjangoJSONEncoder, ensure_ascii=False) + "\n"


def read(found: Sequence[Found], bodies: int = EXPORTED, length: int | None = None) -> list[Listed]:
    """Read these messages, and return them in the same order.

    Arguments:
        bodies: the largest body to read, in bytes on disk.
        length: how many characters of each body to read, without headers. None: read whole bodies
            and headers.
    """
    if not found:
        return []
    params: dict[str, Any] = {
        "ids": [each.pk for each in found],
        "queues": sorted({each.queue_id for each in found}),
        "bodies": bodies,
        "length": length,
    }
    rows = ask("messages", params, of_message=STANDING)
    width = Listed._fields.index("died")
    told = {}
    for row in rows:
        header, place, *rest = row[width:]
        died = dead_letter(json.loads(header)) if header else None
        standing = Standing(Place(place), *rest) if place else None
        told[row[0], row[1]] = Listed._make([*row[:width], died, standing, ""])
    keys = [(each.pk, each.queue_id) for each in found]
    return [told[key] for key in keys if key in told]


def _turn_title(rows: Sequence[Listed]) -> str:
    """Return the title of the column with the messages' turns."""
    if rows and all(row.died for row in rows):
        return capfirst(_("dead letter since"))
    return _("Readable or ended")


class MessagesPage(Page):
    """The list of the messages that a search finds, in pages."""

    name = "message_changelist"
    template = "messages"

    def answer(self) -> HttpResponse | StreamingHttpResponse:
        given = self.request.GET.dict()
        if set(given) - FILTERS - PLACE or "\x00" in "".join(given.values()):
            raise SuspiciousOperation("the URL has unknown parameters or a NUL character")
        if self.request.method == "POST":
            return self._act()
        search = Search.of(given, allowed(self.request))
        if "export" in given:
            looked = search.find(MOST_EXPORTED, look=MOST)
            return self._export(looked.found)
        length = self.owner.list_per_page
        after = Found.from_text(given.get("after", ""))
        # With filters, find up to CAP + 1 messages: their number is also the count.
        limit = CAP + 1 if search.is_filtered else length + 1
        looked = search.find(limit, after)
        count, exactly = self._count(search, looked, first=after is None)
        found, rest = looked.found[:length], looked.found[length:]
        rows = read(found, SMALL, PREVIEW + 1)
        waiting = [row for row in rows if row.place in LIVE and row.place is not Place.IN_FLIGHT]
        reasons = places.reasons(waiting)
        rows = [row.because(reasons.get((row.pk, row.queue_id))) for row in rows]
        is_live = search.place in LIVE
        of_failed = search.place is not None and search.place.is_failure
        turned = self._address(o="" if search.oldest else "oldest")
        return self.render(
            {
                "title": _("Messages"),
                "is_list": True,
                "tabs": self._tabs(search),
                "rows": rows,
                "with_queue": not search.queues or len(search.queues) > 1,
                "turn": _turn_title(rows),
                "with_reasons": any(reasons.values()),
                "with_errors": any(row.first_line for row in rows),
                # The URL that reverses the order, for the column by which the list is sorted.
                "by_id": "" if is_live or of_failed else turned,
                "by_turn": turned if of_failed else "",
                "arrow": "▲" if search.oldest else "▼",
                "count": "" if after else number(min(count, CAP)) + ("" if exactly else "+"),
                "is_one": count == 1 and exactly,
                "number": count,
                "wrong": search.wrong,
                "meaning": search.meaning,
                "suggested": suggestions(search.queues),
                "suggested_from": number(NEWEST),
                "given": self.request.GET,
                "queues": queues_for(self.request).order_by("name").values_list("pk", "name"),
                "in_place": search.place is not None or search.archived,
                "actions": self._actions(search),
                "held": search.place not in places.ENDED,
                "can_take_all": search.place is not None and (bool(rest) or looked.end is not None),
                "most_exported": number(MOST_EXPORTED),
                "export": self._address(export="jsonl"),
                "first": self._address() if after else "",
                "next": self._address(after=found[-1].as_text()) if rest else "",
                "searched": "" if looked.end is None else self._progress(search, looked.most),
                "go_on": "" if rest or looked.end is None else self._after(looked.end, looked.most),
            },
        )

    def _count(self, search: Search, looked: Looked, *, first: bool) -> tuple[int, bool]:
        """Return the number of messages, up to CAP + 1, and whether there are no more."""
        count, counted_all = len(looked.found), looked.end is None
        if first and not search.is_filtered and count > self.owner.list_per_page:
            count, counted_all = search.count(CAP + 1)
        return count, counted_all and count <= CAP

    def _searched(self, most: int) -> int | None:
        """Return the number of messages searched so far, with ``most`` on this page.

        It is unknown on a page that *Next page* led to.
        """
        given = self.request.GET.get("searched", "")
        if is_number(given, 10**12):
            return most + int(given)
        return None if "after" in self.request.GET else most

    def _after(self, end: Found, most: int) -> str:
        """Return the URL that goes on with the search after ``end``."""
        return self._address(after=end.as_text(), searched=str(self._searched(most) or ""))

    def _progress(self, search: Search, most: int) -> str:
        """Return how far the search came, as text."""
        searched = self._searched(most)
        if searched is None:
            return _("Searched the next %(searched)s messages.") % {"searched": number(most)}
        every = search.searched()
        told = {"searched": number(searched)}
        if every is None or search.oldest:
            return _("Searched the first %(searched)s messages.") % told
        told["every"] = number(max(every, searched), exact=False)
        return _("Searched the newest %(searched)s of %(every)s messages.") % told

    def _address(self, **changed: str) -> str:
        """Return the URL of this list's first page, with changed filters."""
        given = {k: v for k, v in self.request.GET.dict().items() if k in FILTERS}
        told = {name: value for name, value in {**given, **changed}.items() if value}
        return f"?{urlencode(told)}"

    def _tabs(self, search: Search) -> list[tuple[str, str, bool]]:
        tabs: list[tuple[Any, str, bool]] = [
            (_("All"), "", search.place is None and not search.archived),
            *((place.label, place.value, place is search.place) for place in LIVE),
            (_("Archived"), "archived", search.archived),
            *((place.label, place.value, place is search.place) for place in places.ENDED),
        ]
        return [(capfirst(name), self._address(state=value), here) for name, value, here in tabs]

    @staticmethod
    def _export(found: Sequence[Found]) -> StreamingHttpResponse:
        """Stream the messages as JSON lines. Mask secrets, and leave out large bodies."""

        def lines() -> Iterator[str]:
            for first in range(0, len(found), CHUNK):
                with limited(Queue.objects.database(), SECONDS):
                    chunk = read(found[first : first + CHUNK])
                yield from (message.as_line() for message in chunk)

        response = StreamingHttpResponse(lines(), content_type="application/x-ndjson")
        response["Content-Disposition"] = 'attachment; filename="messages.jsonl"'
        return response

    def _actions(self, search: Search) -> list[tuple[str, str]]:
        """Return the actions that the user may take and that fit the listed messages' state."""
        of_archive = search.archived or search.place in places.ENDED
        return [
            (name, WORDS[kind].title)
            for name, kind in ACTIONS.items()
            if may(self.request, kind)
            and (kind.is_of_archive == of_archive or (search.place is None and not search.archived))
        ]

    def _act(self) -> HttpResponse:
        """Perform an action on the selected messages, or on all that the search finds."""
        back = self.request.get_full_path()
        kind = ACTIONS.get(self.request.POST.get("action", ""))
        if kind is None:
            self.tell(_("Choose an action."), messages.WARNING)
            return HttpResponseRedirect(back)
        fields = {"action": self.request.POST["action"]}
        # The message's id, if the form was posted from a message's page.
        of_page = self.request.POST.get("of_page", "")
        if is_number(of_page, 2**63):
            fields["of_page"] = of_page
            back = self.url("message_change", of_page, queue=self.request.GET.get("queue", ""))
        seen = allowed(self.request)
        if "query" in self.request.POST:
            search = Search.of(QueryDict(self.request.POST["query"]).dict(), seen)
        elif self.request.POST.get("select_across") == "1":
            search = Search.of(self.request.GET.dict(), seen)
        else:
            chosen = " ".join(self.request.POST.getlist("_selected_action"))
            search = Search.of({"q": chosen, "queue": self.request.GET.get("queue", "")}, seen)
            if not chosen or search.ids is None:
                self.tell(_("Select messages first."), messages.WARNING)
                return HttpResponseRedirect(back)
        return Action(
            self,
            [Job(kind, search)],
            back=back,
            fields={**fields, "query": urlencode(search.as_query())},
            ask="ask" in self.request.POST or self.request.POST.get("select_across") == "1",
        ).answer()
