"""Why a message is not delivered now, in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _

from django_pgqueue.admin import places
from django_pgqueue.admin.overview import seconds_since
from django_pgqueue.admin.places import MOST_COUNTED, Place, Standing, Surroundings
from django_pgqueue.admin.wording import cut, moment, visible
from django_pgqueue.models import Message
from django_pgqueue.wording import age

__all__ = ["why"]


def why(
    message: Message,
    standing: Standing,
    around: Surroundings,
    link: Callable[[int, int], str],
) -> str:
    """The reasons, as HTML; ``link`` makes a link to a message from its id and its queue's."""
    reasons = _reasons(message, standing, around, link)
    return format_html_join("; ", "{}", ((each,) for each in reasons))


def _reasons(
    message: Message, standing: Standing, around: Surroundings, link: Callable[[int, int], str]
) -> Iterator[str]:
    queue = message.queue
    if standing.place is Place.IN_FLIGHT:
        read_at = standing.last_read_at or message.enqueued_at
        yield _("In flight for %s") % age(seconds_since(read_at))
        return
    if queue.paused:
        yield _("%s is paused") % queue
    elif not around.has_consumer:
        yield _("No consumer of %s is alive") % queue
    if standing.place is Place.WAITING:
        yield from _waits(message, around, link)
    elif standing.place is Place.DELAYED:
        yield _delay(standing, around)
    elif around.error is not None:
        yield _("Readable again, after: %s") % _first_line(around.error)
    elif not queue.paused:
        yield _("Readable: the next free consumer takes it")


def _waits(
    message: Message, around: Surroundings, link: Callable[[int, int], str]
) -> Iterator[str]:
    """The reason of a message that waits in its FIFO group."""
    before = around.waiting_before + (around.head is not None)
    more = around.waiting_before >= MOST_COUNTED
    told: dict[str, Any] = {
        "number": f"{MOST_COUNTED:,}+" if more else f"{before + 1:,}",
        "group": visible(message.group_key or ""),
    }
    if around.head is None:
        yield _("Number %(number)s in group %(group)s, which the next read begins") % told
        return
    found = Message.objects.using(message.queue.alias).filter(
        pk=around.head, queue_id=message.queue_id
    )
    standing = places.standing(list(found), using=message.queue.alias).get(around.head)
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
    at = moment(standing.vt)
    if standing.read_ct == 0:
        return _("Scheduled for %s") % at
    if around.error is None:
        return _("Tried again at %s") % at
    told = {"moment": at, "error": _first_line(around.error)}
    return _("Tried again at %(moment)s, after: %(error)s") % told


def _first_line(error: str) -> str:
    return cut(error.strip().partition("\n")[0], 200)
