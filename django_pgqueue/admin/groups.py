"""The groups of a queue: their list, the messages of one, and why these wait.

The largest groups of a queue with many waiting messages are found in a sample of the table, so the
cost does not grow with the number of messages or of groups.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin import places
from django_pgqueue.admin.places import Place, Standing
from django_pgqueue.admin.queries import ask
from django_pgqueue.admin.search import MOST, Targets
from django_pgqueue.admin.why import REASONS
from django_pgqueue.engine.wording import age
from django_pgqueue.models import GroupSetting, Message, Queue
from django_pgqueue.templatetags.pgqueue_admin import seconds_since, when

#: The most rows that are read from each table, and the blocks of a sample if that is not enough.
LOOK, BLOCKS = 20_000, 300
#: The most messages of a group that are counted: on its page, and in a list from a sample.
MOST_COUNTED, ENOUGH = 10_000, 1000

#: Which groups a list shows: all, or those that meet an SQL condition.
CHOICES: dict[str, tuple[Any, str]] = {
    "": (gettext_lazy("All"), "true"),
    "paused": (gettext_lazy("Paused"), "paused"),
    "blocked": (gettext_lazy("Blocked"), "blocked"),
    "own": (gettext_lazy("With own settings"), "own"),
}


@dataclass
class Group:
    """A group of a list."""

    key: str
    number: int
    exact: bool  # Whether the number is no estimate.
    in_flight: int
    #: Whether the head of a FIFO group is delayed, and others wait behind it.
    blocked: bool
    paused: bool
    limit: int | None
    rate: str | None
    burst: int | None
    head: int | None
    priority: int | None
    first_waiting: int | None
    waits_since: dt.datetime | None
    #: What the head does, or why the first message waits, as HTML.
    state: str = ""


class Groups(NamedTuple):
    """A page of the list of a queue's groups."""

    rows: list[Group]
    more: bool  # Whether further pages follow.
    every: int  # How many groups were found.
    #: Whether all waiting messages were counted. Otherwise the groups come from a sample.
    counted: bool
    #: Whether all groups were found.
    whole: bool
    #: Which figures groups have of their own: "group_limit", "group_rate".
    own: set[str]


def groups_of(
    queue: Queue,
    most: int,
    link: Callable[[int, int], str],
    *,
    only: str = "",
    skip: int = 0,
    states: bool = True,
) -> Groups:
    """Return the groups of a queue: paused and blocked ones first, then the largest.

    Arguments:
        most: the length of a page.
        link: makes a link from a message id and a queue id.
        only: a key of ``CHOICES``.
        skip: how many groups the previous pages had.
        states: whether to look up what heads do. Otherwise only what blocks a group is told.
    """
    params = {"look": LOOK, "blocks": BLOCKS, "most": most + 1, "skip": skip}
    rows = ask("groups/found", params, only=CHOICES[only][1], enough=ENOUGH, **queue.tables)
    every, counted, complete, limits, rates, *_group = rows[0]
    found = [Group(*row[5:]) for row in rows if row[5] is not None]
    shown = found[:most]
    if states:
        _tell_states(queue, shown, link)
    else:
        for group in shown:
            group.state = link(group.head, queue.pk) if group.blocked and group.head else ""
    own = {name for name, has in (("group_limit", limits), ("group_rate", rates)) if has}
    return Groups(shown, len(found) > most, every, counted, counted and complete, own)


def _tell_states(queue: Queue, groups: list[Group], link: Callable[[int, int], str]) -> None:
    """Set the state of each group: what its head does, or why its first message waits."""
    heads, firsts = (
        [
            Message(pk=pk, queue_id=queue.pk, priority=group.priority or 0, group_key=group.key)
            for group in groups
            if (pk := getattr(group, name)) is not None
        ]
        for name in ("head", "first_waiting")
    )
    standing = places.standing(heads) if heads else {}
    reasons = places.reasons(firsts)
    for group in groups:
        reason = reasons.get((group.first_waiting or 0, queue.pk))
        if reason is not None and reason != "group":
            group.state = str(REASONS[reason])
        elif group.head and (found := standing.get((group.head, queue.pk))):
            told = head_state(found)
            group.state = format_html("{}: {}", link(group.head, queue.pk), told)


def head_state(standing: Standing) -> str:
    """Return what the head of a group does: "in flight for 5 s"."""
    if standing.place is Place.IN_FLIGHT and standing.last_read_at:
        return _("in flight for %s") % age(seconds_since(standing.last_read_at))
    if standing.place is Place.DELAYED and standing.vt is not None:
        told = {"at": when(standing.vt), "age": age(-seconds_since(standing.vt))}
        if standing.read_ct:
            return format_html(_("its retry is at {at} (in {age})"), **told)
        return format_html(_("delayed until {at} (in {age})"), **told)
    return str(standing.place)


class Line(NamedTuple):
    """The messages of a group, in order."""

    left: list[int]  # Ids of those that have left the line: heads, and delayed messages.
    waiting: list[int]  # Ids of the next ones in the line.
    number_waiting: int  # How many wait in the line, up to MOST_COUNTED + 1.
    in_flight: int
    whole: bool  # Whether ``left`` has all, and all in flight were counted.
    head: int | None
    priority: int | None
    late: bool  # Whether the head is delayed.
    error: str | None  # The last error of the head.
    first_waiting: int | None
    waits_since: dt.datetime | None


def line_of(queue: Queue, key: str, *, after: int, most: int) -> Line:
    """Return the messages of a group: those that have left the line, then ``most`` of the line."""
    params = {"group": key, "after": after, "most": most, "count": MOST_COUNTED + 1, "look": LOOK}
    [row] = ask("groups/line", params, **queue.tables)
    return Line(*row)


def group_of(
    queue: Queue, key: str, line: Line, own: GroupSetting | None, link: Callable[[int, int], str]
) -> Group:
    """Return one group, with its state. ``own`` are its own settings."""
    limit = (own.limit if own else None) or queue.group_limit or 1
    group = Group(
        key,
        number=len(line.left) + line.number_waiting,
        exact=True,
        in_flight=line.in_flight,
        blocked=line.late and line.number_waiting > 0 and limit == 1 and queue.group_rate is None,
        paused=bool(own and own.paused),
        limit=own.limit if own else None,
        rate=own.rate if own else None,
        burst=own.burst if own else None,
        head=line.head,
        priority=line.priority,
        first_waiting=line.first_waiting,
        waits_since=line.waits_since,
    )
    _tell_states(queue, [group], link)
    return group


@dataclass(frozen=True)
class GroupBacklog(Targets):
    """All messages of a group that are in the queue."""

    queue_id: int
    key: str

    def aggregate(self, what: str, asked_at: dt.datetime | None) -> list[tuple[Any, ...]]:
        params = {"queue": self.queue_id, "group": self.key, "asked_at": asked_at, "most": MOST}
        return ask("groups/aggregate", params, what=what)

    def as_query(self) -> dict[str, str]:
        return {"queue": str(self.queue_id), "group": self.key}
