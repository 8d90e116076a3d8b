"""The timeline of a message: its steps, and how long each took."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any, NamedTuple

from django.conf import settings
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html, format_html_join
from django.utils.timezone import is_naive, make_naive, now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_pgqueue.admin.places import Place, Standing
from django_pgqueue.admin.wording import lapse, moment, visible
from django_pgqueue.models import ArchivedMessage, Message
from django_pgqueue.types import State

__all__ = ["DeadLetter", "dead_letter", "drawn", "steps"]

HEADER = "x-dead-letter"

_ENDS = {
    State.COMPLETED: gettext_lazy("Completed, after running"),
    State.FAILED: gettext_lazy("Failed for good, after running"),
    State.CANCELLED: gettext_lazy("Cancelled"),
}


class Step(NamedTuple):
    """A past or future event of a message."""

    at: dt.datetime
    text: str
    lasted: float | None = None  # seconds since the previous step


class DeadLetter(NamedTuple):
    """The ``x-dead-letter`` header. Senders can set it too, so each value may be missing."""

    source: str | None
    error: str | None
    deliveries: int | None
    times: int | None
    sent_at: dt.datetime | None
    died_at: dt.datetime | None


def dead_letter(headers: Any) -> DeadLetter | None:
    """Parse the ``x-dead-letter`` header; None if the message is no dead letter."""
    told = headers.get(HEADER) if isinstance(headers, dict) else None
    if not isinstance(told, dict):
        return None

    def as_text(name: str) -> str | None:
        value = told.get(name)
        return value if isinstance(value, str) and value else None

    def as_number(name: str) -> int | None:
        value = told.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def as_moment(name: str) -> dt.datetime | None:
        try:
            at = parse_datetime(as_text(name) or "")
        except ValueError:
            return None
        if at is None or is_naive(at):
            return None
        return at if settings.USE_TZ else make_naive(at)

    return DeadLetter(
        as_text("source"),
        as_text("error") or as_text("reason"),
        as_number("read_ct"),
        as_number("count"),
        as_moment("enqueued_at"),
        as_moment("dead_lettered_at"),
    )


def steps(
    message: Message,
    standing: Standing | None,
    outcome: ArchivedMessage | None,
    died: DeadLetter | None,
) -> Iterator[Step]:
    """The history of a message, in order, and its next step."""
    sent = message.enqueued_at
    if died is not None and died.died_at is not None:
        source = visible(died.source or "") or _("its queue")
        if died.sent_at is not None:
            yield Step(died.sent_at, _("Sent to %s") % source)
        number = died.deliveries
        after = ngettext(" after %s delivery", " after %s deliveries", number or 0)
        times = after % number if number else ""
        yield Step(
            died.died_at,
            _("Failed for good in %(queue)s%(times)s: a dead letter")
            % {"queue": source, "times": times},
            _between(died.sent_at, died.died_at),
        )
        if (_between(died.died_at, sent) or 0) > 0:
            yield Step(sent, _("Sent to %s") % message.queue, _between(died.died_at, sent))
    else:
        yield Step(sent, _("Sent"))
    readable = sent
    if message.scheduled_at is not None and message.scheduled_at > sent:
        readable = message.scheduled_at
        yield Step(readable, _("Delayed until then"), _between(sent, readable))
    told: Any = standing or outcome
    first, last = (getattr(told, f"{name}_read_at", None) for name in ("first", "last"))
    read_ct = getattr(told, "read_ct", 0)
    if first is not None:
        yield Step(first, _("First read, after waiting"), _between(readable, first))
    if last is not None and read_ct > 1:
        yield Step(last, _("Delivery %s") % read_ct, _between(first, last))
    if outcome is not None and standing is None:
        yield Step(
            outcome.archived_at,
            str(_ENDS[State(outcome.state)]),
            _between(last, outcome.archived_at),
        )
    elif standing is not None and standing.vt is not None:
        yield _next(standing)


def _next(standing: Standing) -> Step:
    """The next step, or the overdue one."""
    vt = standing.vt
    assert vt is not None
    ahead = (vt - _now(vt)).total_seconds()
    if standing.place is Place.IN_FLIGHT:
        return Step(vt, _("In flight: the lease ends then, in"), ahead)
    if standing.place is Place.DUE:
        if standing.leased:
            return Step(vt, _("The lease ran out; readable since"), -ahead)
        return Step(vt, _("The delay was over; readable since"), -ahead)
    if ahead > 0:
        return Step(vt, _("Readable then, in"), ahead)
    return Step(vt, _("Waits behind another message of its group since"), -ahead)


def drawn(found: list[Step]) -> str:
    """The steps as an HTML list."""
    rows = format_html_join(
        "",
        "<li><time>{}</time> {} <b>{}</b></li>",
        (
            (moment(step.at), step.text, "" if step.lasted is None else lapse(step.lasted))
            for step in found
        ),
    )
    return format_html('<ol class="pgqueue-timeline">{}</ol>', rows)


def _between(first: dt.datetime | None, second: dt.datetime | None) -> float | None:
    if first is None or second is None or is_naive(first) != is_naive(second):
        return None
    return (second - first).total_seconds()


def _now(like: dt.datetime) -> dt.datetime:
    return dt.datetime.now() if is_naive(like) else now()
