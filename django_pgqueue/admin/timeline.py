"""The timeline of a message: when it was sent, its attempts and steps, its end or what is next."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.conf import settings
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html
from django.utils.timezone import is_naive, make_naive
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_pgqueue.admin.flows import Stored
from django_pgqueue.admin.places import Place, Standing, Surroundings, outcome_of
from django_pgqueue.admin.why import process_name
from django_pgqueue.engine.wording import age
from django_pgqueue.errors import error_line
from django_pgqueue.models import ArchivedMessage, Attempt, Message
from django_pgqueue.templatetags.pgqueue_admin import cut, lapse, number, seconds_since, visible

HEADER = "x-dead-letter"


class Event(NamedTuple):
    """A past or future event of a message."""

    at: dt.datetime
    text: str
    look: str = ""  # "bad" for a failure, "next" for the next event
    detail: str = ""  # The first line of an error, or the value of a step or a note.
    traceback: str = ""


class DeadLetter(NamedTuple):
    """The values of the ``x-dead-letter`` header. Senders can set it, so values may be missing."""

    source: str | None
    error: str | None
    deliveries: int | None
    attempts: int | None
    times: int | None
    sent_at: dt.datetime | None
    died_at: dt.datetime | None


def dead_letter(headers: Any) -> DeadLetter | None:
    """Parse the ``x-dead-letter`` header. Return None if the message has none."""
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
        as_number("attempts"),
        as_number("count"),
        as_moment("enqueued_at"),
        as_moment("dead_lettered_at"),
    )


@dataclass
class Life:
    """A message with its place, outcome, attempts and steps. :meth:`events` makes its timeline."""

    message: Message
    standing: Standing | None
    outcome: ArchivedMessage | None
    died: DeadLetter | None
    attempts: Sequence[Attempt]
    flow: Sequence[Stored]
    around: Surroundings
    link: Callable[[int, int], str]  # Makes a link from a message id and a queue id.

    def events(self) -> list[Event]:
        """Return the message's past events in order, followed by its end or its next event."""
        past = sorted(self._past(), key=lambda event: event.at)
        return [*past, *self._end()]

    def _past(self) -> Iterator[Event]:
        message, died = self.message, self.died
        yield from self._attempts()
        if died is not None and died.died_at is not None:
            yield from self._death(died, died.died_at)
        else:
            yield Event(message.enqueued_at, self._origin() or _("Sent"))
        delay = _between(message.enqueued_at, message.scheduled_at) or 0
        if message.scheduled_at is not None and delay > 0 < seconds_since(message.scheduled_at):
            yield Event(message.scheduled_at, _("The delay of %s ended") % lapse(delay))
        yield from self._deliveries()
        yield from self._steps()

    def _origin(self) -> str:
        """Return a text that names the sending schedule or links to the copied message; else ""."""
        headers = self.message.headers if isinstance(self.message.headers, dict) else {}
        schedule, original = headers.get("x-schedule"), headers.get("x-replay-of")
        if isinstance(schedule, dict) and isinstance(schedule.get("name"), str):
            return _("Sent by the schedule %s") % visible(schedule["name"])
        if isinstance(original, int) and 0 < original < 2**63:
            return format_html(
                _("Sent again, a copy of message {}"), self.link(original, self.message.queue_id)
            )
        return ""

    def _death(self, died: DeadLetter, died_at: dt.datetime) -> Iterator[Event]:
        """Yield a dead letter's events in its source queue, and its move to this queue."""
        source = visible(died.source or "") or _("its queue")
        if died.sent_at is not None:
            yield Event(died.sent_at, _("Sent to %s") % source)
        number_of = died.deliveries
        after = ngettext(" after %s delivery", " after %s deliveries", number_of or 0)
        told = {"queue": source, "times": after % number(number_of) if number_of else ""}
        text = _("Failed for good in %(queue)s%(times)s: a dead letter") % told
        yield Event(died_at, text, "bad", *self._error(died.error))
        if (_between(died_at, self.message.enqueued_at) or 0) > 0:
            yield Event(self.message.enqueued_at, _("Sent to %s") % self.message.queue)

    def _deliveries(self) -> Iterator[Event]:
        """Yield the first and the last delivery, and how many deliveries had no outcome."""
        told: Any = self.standing or self.outcome
        first, last = (getattr(told, f"{name}_read_at", None) for name in ("first", "last"))
        read_ct, ran = getattr(told, "read_ct", 0), getattr(told, "attempts", 0)
        if first is not None:
            sent = self.message.enqueued_at
            readable = max(sent, self.message.scheduled_at or sent)
            waited = lapse(_between(readable, first) or 0)
            yield Event(first, _("First delivery after %s") % waited)
        if last is not None and read_ct > 1:
            yield Event(last, _("Delivery %s") % number(read_ct))
        under_way = self.standing is not None and self.standing.place is Place.IN_FLIGHT
        if last is not None and (silent := read_ct - ran - under_way) > 0 and self.outcome is None:
            text = ngettext(
                "%s delivery ended without an outcome: its lease expired",
                "%s deliveries ended without an outcome: their leases expired",
                silent,
            )
            yield Event(last, text % number(silent), "bad")

    def _steps(self) -> Iterator[Event]:
        """Yield the steps and notes, and how many earlier steps are left out."""
        for each in self.flow:
            if each.name is None:
                yield Event(each.at, _("Noted"), detail=each.value)
            elif each.earlier:
                text = ngettext(
                    "%s earlier step is not shown", "%s earlier steps are not shown", each.earlier
                )
                yield Event(each.at, text % number(each.earlier))
            elif each.waits:
                yield Event(each.at, _('Step "%s" waits') % visible(each.name))
            else:
                text = _('Step "%s" done') % visible(each.name)
                yield Event(each.at, text, detail=each.value)

    def _attempts(self) -> Iterator[Event]:
        """Yield the failed attempts. Leave out a traceback that equals the previous one."""
        told: Any = self.standing or self.outcome
        starts = {
            getattr(told, "attempts", 0): getattr(told, "last_read_at", None),
            1: getattr(told, "first_read_at", None),
        }
        before = ""
        for each in self.attempts:
            words = {
                "number": number(each.attempt),
                "process": process_name(each.process_id, self.around) if each.process_id else "",
            }
            text = _("Attempt %(number)s failed") % words
            if words["process"]:
                text = _("Attempt %(number)s failed on %(process)s") % words
            lasted = _between(starts.get(each.attempt), each.at)
            if lasted is not None and lasted >= 0:
                text += _(" after %s") % lapse(lasted)
            # The last attempt is stored just after the dead-lettering: give both the same time.
            died_at = (self.died and self.died.died_at) or each.at
            at = min(each.at, died_at) if 0 <= (_between(died_at, each.at) or 0) < 5 else each.at
            name = each.error_class.rpartition(".")[2]
            error = f"{name}: {each.message}"
            if (line := error_line(each.message)) != each.message.partition("\n")[0]:
                error = f"{name}: {line}"  # Its message is a bare traceback.
            if each.traceback and each.traceback == before:
                yield Event(at, text + _(" with the same error"), "bad")
            else:
                yield Event(at, text, "bad", cut(error, 500), each.traceback)
            before = each.traceback

    def _end(self) -> Iterator[Event]:
        outcome, standing = self.outcome, self.standing
        if outcome is not None and standing is None:
            place, text = outcome_of(outcome.state), outcome.state
            if isinstance(place, Place) and (state := place.state) and state.end:
                text = _(state.end.words)
                ran = _between(outcome.last_read_at, outcome.archived_at)
                if ran is not None and state.is_of_attempt:
                    text += _(" after running for %s") % lapse(ran)
            yield Event(outcome.archived_at, text, place.look, *self._error(outcome.error))
        elif standing is not None and standing.vt is not None:
            yield _next(standing, standing.vt)

    def _error(self, error: str | None) -> tuple[str, str]:
        """Return an error's first line and traceback; ("", "") if an attempt already shows it."""
        if not error:
            return "", ""
        ends = (each.traceback.rstrip().rpartition("\n")[2] for each in self.attempts)
        if any(end and end in error for end in ends):
            return "", ""
        return cut(error_line(error), 500), error if "\n" in error.strip() else ""


def _next(standing: Standing, vt: dt.datetime) -> Event:
    """Return the next event, at ``vt``: a lease ends or the message becomes readable."""
    past = seconds_since(vt)
    if standing.place is Place.IN_FLIGHT:
        return Event(vt, _("In flight: the lease ends in %s") % age(-past), "next")
    if standing.place is Place.DUE:
        text = (
            _("The lease expired: the message has been readable for %s")
            if standing.leased
            else _("The delay is over: the message has been readable for %s")
        )
        return Event(vt, text % age(past), "next")
    if past < 0:
        return Event(vt, _("Readable in %s") % age(-past), "next")
    return Event(vt, _("Waits behind another message of its group"), "next")


def _between(first: dt.datetime | None, second: dt.datetime | None) -> float | None:
    if first is None or second is None or is_naive(first) != is_naive(second):
        return None
    return (second - first).total_seconds()
