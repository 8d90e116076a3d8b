"""Explains in one line why a message is not delivered now."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any

from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext_lazy

from django_pgqueue.admin import places
from django_pgqueue.admin.places import MOST_COUNTED, Place, Standing, Surroundings
from django_pgqueue.engine import arguments
from django_pgqueue.engine.wording import age
from django_pgqueue.errors import error_line
from django_pgqueue.models import Message, Queue
from django_pgqueue.queues.bound import bound_to
from django_pgqueue.templatetags.pgqueue_admin import (
    cut,
    number,
    rate_text,
    seconds_since,
    visible,
    when,
)

#: The reasons in a few words, for lists.
REASONS = {
    "scheduled": gettext_lazy("scheduled"),
    "retry": gettext_lazy("to be tried again"),
    "group": gettext_lazy("behind another message of its group"),
    "group_limit": gettext_lazy("limit of its group"),
    "group_rate": gettext_lazy("rate of its group"),
    "group_paused": gettext_lazy("its group is paused"),
    "limit": gettext_lazy("limit of the queue"),
    "rate": gettext_lazy("rate of the queue"),
    "queue_paused": gettext_lazy("the queue is paused"),
}

#: The reasons of a number of messages.
_COUNTED = {
    "scheduled": ngettext_lazy("%(n)s is scheduled", "%(n)s are scheduled", "count"),
    "retry": ngettext_lazy("%(n)s is to be tried again", "%(n)s are to be tried again", "count"),
    "group": ngettext_lazy(
        "%(n)s waits behind another message of its group",
        "%(n)s wait behind another message of their group",
        "count",
    ),
    "group_limit": ngettext_lazy(
        "%(n)s waits for its group's limit", "%(n)s wait for their group's limit", "count"
    ),
    "group_rate": ngettext_lazy(
        "%(n)s waits for its group's rate", "%(n)s wait for their group's rate", "count"
    ),
    "group_paused": ngettext_lazy(
        "%(n)s is in a paused group", "%(n)s are in paused groups", "count"
    ),
    "limit": ngettext_lazy(
        "%(n)s waits for the queue's limit", "%(n)s wait for the queue's limit", "count"
    ),
    "rate": ngettext_lazy(
        "%(n)s waits for the queue's rate", "%(n)s wait for the queue's rate", "count"
    ),
    "queue_paused": ngettext_lazy(
        "%(n)s waits, since the queue is paused", "%(n)s wait, since the queue is paused", "count"
    ),
}

_LIMITS = {
    "group_limit": gettext_lazy("Group {group} has as many messages in flight as its limit allows"),
    "group_rate": gettext_lazy("Over the rate of group {group} until {at}"),
    "group_paused": gettext_lazy("Group {group} is paused"),
    "limit": gettext_lazy("{queue} has as many messages in flight as its limit allows"),
    "rate": gettext_lazy("Over the rate of {queue} until {at}"),
}


def waiting(queue: Queue, reason: str, count: int, exact: bool, own: Container[str]) -> str:
    """Return how many messages wait for a reason: "358 wait for their group's rate, 30/min".

    Names the queue's limit or rate, unless groups have their own, which ``own`` has then.
    """
    told = str(_COUNTED[reason] % {"count": count, "n": number(count, exact)})
    figure = getattr(queue, reason) if reason in arguments.LIMITS else None
    if figure is None or reason in own:
        return told
    return f"{told}, {rate_text(figure) if isinstance(figure, str) else number(figure)}"


def why(
    message: Message,
    standing: Standing,
    around: Surroundings,
    link: Callable[[int, int], str],
    is_dead_letter: bool,
) -> Iterator[str]:
    """Yield the reasons as HTML. ``link`` makes a link from a message id and a queue id."""
    queue = message.queue
    if standing.place is Place.IN_FLIGHT:
        yield _in_flight(message, standing, around)
        if around.error is not None:
            yield format_html(_("the last attempt failed: {}"), _error(around.error))
        return
    if message.expires_at is not None and seconds_since(message.expires_at) > 0:
        yield _("Expired: the next read archives it")
        return
    if queue.paused:
        yield _("%s is paused") % queue
    elif not around.has_consumer and is_dead_letter:
        yield _("A dead letter: it stays here until it is redriven or deleted")
    elif not around.has_consumer:
        yield _("No consumer of %s is alive") % queue
    wait = bound_to(queue).why(message.pk)
    if wait is not None and wait.reason in _LIMITS:
        yield format_html(
            str(_LIMITS[wait.reason]),
            group=visible(message.group_key or ""),
            queue=queue,
            at=when(wait.until),
        )
    elif standing.place is Place.WAITING:
        yield from _waits(message, around, link)
    elif standing.place is Place.DELAYED:
        yield _delay(standing, around)
    elif around.error is not None:
        yield format_html(_("Readable again after the error {}"), _error(around.error))
    elif not queue.paused and around.has_consumer:
        yield _("Readable: the next free consumer takes it")


def _in_flight(message: Message, standing: Standing, around: Surroundings) -> str:
    told: dict[str, Any] = {
        "age": age(seconds_since(standing.last_read_at or message.enqueued_at)),
        "count": number(standing.read_ct),
        "most": number(message.queue.max_deliveries),
    }
    if standing.holder is None:
        return _("In flight for %(age)s, delivery %(count)s of at most %(most)s") % told
    told["process"] = process_name(standing.holder, around)
    return _("In flight for %(age)s on %(process)s, delivery %(count)s of at most %(most)s") % told


def process_name(pk: int, around: Surroundings) -> str:
    """Return the name of a process that held the message, or its id if its row is gone."""
    return around.processes.get(str(pk)) or _("process %s") % pk


def _waits(
    message: Message, around: Surroundings, link: Callable[[int, int], str]
) -> Iterator[str]:
    """Yield the reason why a message waits behind others of its group."""
    before = around.waiting_before + (around.head is not None)
    more = around.waiting_before >= MOST_COUNTED
    told: dict[str, Any] = {
        "number": f"{number(MOST_COUNTED)}+" if more else number(before + 1),
        "group": visible(message.group_key or ""),
    }
    if around.head is None:
        yield _("Number %(number)s in group %(group)s, whose first message is ready") % told
        return
    head = Message(pk=around.head, queue=message.queue, group_key=message.group_key)
    standing = places.standing([head]).get((around.head, message.queue_id))
    state = str(standing.place) if standing else ""
    if standing and standing.place is Place.IN_FLIGHT and standing.last_read_at:
        state = _("in flight for %s") % age(seconds_since(standing.last_read_at))
    yield format_html(
        _("Number {number} in group {group}, behind {head} ({state})"),
        **told,
        head=link(around.head, message.queue_id),
        state=state,
    )


def _delay(standing: Standing, around: Surroundings) -> str:
    assert standing.vt is not None
    told: dict[str, Any] = {"at": when(standing.vt), "age": age(-seconds_since(standing.vt))}
    if standing.read_ct == 0:
        return format_html(_("Scheduled for {at} (in {age})"), **told)
    if around.error is None:
        return format_html(_("Next delivery at {at} (in {age})"), **told)
    return format_html(
        _("Next delivery at {at} (in {age}), after the error {error}"),
        **told,
        error=_error(around.error),
    )


def _error(error: str) -> str:
    return format_html("<code>{}</code>", cut(error_line(error), 200))
