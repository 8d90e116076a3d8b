"""The places of messages: ready, waiting, in flight and so on. Counts and lists use the same SQL.

A message in the queue is in one of five places, which ``engine/places.sql`` defines. Their counts
add up to the queue's length. The place of a message that has ended is its outcome.

All queries read the narrow tables by their indexes, up to a limit.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _

from django_pgqueue.admin.queries import ask
from django_pgqueue.engine.statements import Part, compose
from django_pgqueue.models import Message
from django_pgqueue.tables.process import DEAD_AFTER
from django_pgqueue.types import ENDS, State


class Place(TextChoices):
    """The place of a message in its queue, or the outcome of a message that has ended."""

    READY = "ready", _("ready")
    DUE = "due", _("due")
    WAITING = "waiting", _("waiting")
    IN_FLIGHT = "in_flight", _("in flight")
    DELAYED = "delayed", _("delayed")
    # The outcomes: COMPLETED, FAILED and so on.
    vars().update({state.name: (state.counter, _(state.label)) for state in ENDS})

    def __str__(self) -> str:
        return str(self.label)

    @property
    def state(self) -> State | None:
        """The terminal state, if the place is an outcome."""
        return State.__members__.get(self.name)

    @property
    def is_failure(self) -> bool:
        return self.state is not None and self.state.is_failure

    @property
    def look(self) -> str:
        """The CSS class that gives the place its colour."""
        return "bad" if self.is_failure else ""


class UnknownOutcome(str):
    """An outcome that only another version knows, as it is in the archive."""

    look = ""


def outcome_of(state: str) -> Place | UnknownOutcome:
    """Return the place of a message that ended in this state."""
    known = Place.__members__.get(state)
    return UnknownOutcome(state) if known is None or known.state is None else known


LIVE = (Place.READY, Place.DUE, Place.WAITING, Place.IN_FLIGHT, Place.DELAYED)
#: Maximum number of waiting messages that are listed on each side of a message in its group.
NEIGHBOURS = 5
#: Maximum number of messages that are counted before a message in its group.
MOST_COUNTED = 1000

ENDED = tuple(place for place in Place if place.state)
#: Outcomes without an index.
UNINDEXED = tuple(place for place in ENDED if not place.is_failure)


def _after(key: str, type_: str, lowest: str) -> str:
    """Return SQL for the key after which a page begins in queue q.

    This is the previous page's last key. In queues after that page's last queue, it is the lowest
    possible key.
    """
    return (
        f"CASE q.id WHEN %(after_queue)s THEN coalesce(CAST(%({key})s AS {type_}), '{lowest}') "
        f"ELSE '{lowest}'::{type_} END"
    )


_LISTS: dict[str, object] = {
    "of": "q.id",
    "after_id": _after("after_id", "bigint", "-9223372036854775808"),
    "after_turn": _after("after_key", "bigint[]", "{-32768,0}"),
    "after_vt": _after("after_key", "timestamptz", "-infinity"),
    "after_group": _after("after_key", "text", ""),
}

# By place: the parts of lists.sql that find its messages. Each part has a condition in places.sql
# or, if it needs none, "".
_ROWS = {
    Place.READY: {"ready": "", "first_ready": ""},
    Place.DUE: {"deferred": "", "leased": ""},
    Place.WAITING: {"waiting": ""},
    Place.IN_FLIGHT: {"deferred": "places/in_flight", "leased": ""},
    Place.DELAYED: {"deferred": "places/delayed", "first_delayed": ""},
}


def listed(place: Place, conditions: Sequence[str], *, ordered: bool = True) -> str:
    """Return SQL for the messages in one place, ordered by queue and ``key``.

    ``conditions`` are SQL about a row ``s``. The SQL parameter ``look`` limits the rows that are
    read from each table. Without conditions, the parameter ``limit`` limits them.
    """
    order = "ORDER BY queue_id, key, id" if ordered else ""
    when = Part("places/due" if place is Place.DUE else "places/not_due")

    found = []
    for rows, choice in _ROWS[place].items():
        chosen = [*([compose(choice, {})] if choice else []), *conditions]
        names: dict[str, object] = {
            "rows": compose(f"lists/{rows}", {**_LISTS, "when": when}, __package__),
            "most": f"%({'look' if chosen else 'limit'})s",
            "conditions": " AND ".join(chosen) or "true",
        }
        found.append(compose("lists/rows", names, __package__))
    return compose(
        "lists/of_queues", {"found": " UNION ALL ".join(found), "order": order}, __package__
    )


#: SQL for how long the oldest readable message of each queue in ``%(queues)s`` has waited.
OLDEST_READABLE = compose("oldest_readable", {"of": "q.id"}, __package__)


#: The id of a message, and that of its queue: a subscription's copy has its source's id.
Key = tuple[int, int]


class Standing(NamedTuple):
    """The place of one message in the queue, and its deliveries."""

    place: Place
    vt: dt.datetime | None
    read_ct: int
    attempts: int
    first_read_at: dt.datetime | None
    last_read_at: dt.datetime | None
    leased: bool  # Whether it has a lease, even an expired one.
    holder: int | None  # The id of the process that has the lease.


#: SQL to join laterally to a message ``m``. It has the columns of :class:`Standing`.
STANDING = compose("standing/of", {"of": "m.queue_id"}, __package__)


def standing(messages: Sequence[Message]) -> dict[Key, Standing]:
    """Return the place of each message, by key. Leave out messages no longer in a queue."""
    rows = ask("standing/all", _keys(messages), of_message=STANDING)
    return {(pk, queue): Standing(Place(place), *rest) for pk, queue, place, *rest in rows}


def reasons(messages: Sequence[Any]) -> dict[Key, str | None]:
    """Return why each message is not delivered now: a key of ``why.REASONS`` or None, by key."""
    if not messages:
        return {}
    rows = ask("standing/reasons", _keys(messages), of="m.queue_id")
    return {(pk, queue): reason for pk, queue, reason in rows}


def _keys(messages: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the parameters by which a statement looks up messages."""
    return {
        "ids": [message.pk for message in messages],
        "queues": [message.queue_id for message in messages],
        "priorities": [message.priority for message in messages],
        "groups": [message.group_key for message in messages],
    }


class Surroundings(NamedTuple):
    """The FIFO group, the error and the consumers of a message."""

    head: int | None  # The id of the FIFO group's head.
    before: list[int]  # Ids waiting before the message in the group, nearest last.
    after: list[int]  # Ids waiting after the message, nearest first.
    more: bool  # Whether further ids follow.
    waiting_before: int  # How many wait before it, up to MOST_COUNTED.
    error: str | None  # The last attempt's error.
    has_consumer: bool
    in_dead_letters: bool  # Whether the queue is a dead-letter queue.
    kind: int | None  # The kind of the message's failure.
    source_id: int | None  # The id of a dead letter's source queue.
    processes: dict[str, str]  # Names of the processes that held the message, by process id.


def surroundings(message: Message, source: str | None, holder: int | None) -> Surroundings:
    """Return the FIFO group, the error and the consumers of a message.

    Arguments:
        source: the name of the queue that a dead letter came from.
        holder: the id of the process that has the lease.
    """
    params = {
        "group": message.group_key,
        "id": message.pk,
        "qty": NEIGHBOURS,
        "most": MOST_COUNTED,
        "queue_id": message.queue_id,
        "queue": message.queue.name,
        "dead_after": DEAD_AFTER,
        "source": source,
        "holder": holder,
    }
    rows = ask("message", params, **message.queue.tables)
    [(head, before, after, *others)] = rows
    others[-1] = json.loads(others[-1])
    return Surroundings(head, before[::-1], after[:NEIGHBOURS], len(after) > NEIGHBOURS, *others)
