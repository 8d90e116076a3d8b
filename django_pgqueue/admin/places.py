"""Places of messages. A count and the list that it links to use the same statements.

A message in the queue stands in one of five places, which ``engine/places.sql`` defines. They add
up to a queue's length. A message that is done is ``completed``, ``failed`` or ``cancelled``.

All queries read the narrow tables by their indexes, up to a limit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from django.utils.translation import gettext_lazy

from django_pgqueue.admin.queries import ask
from django_pgqueue.engine.statements import Part, compose

if TYPE_CHECKING:
    import datetime as dt

    from django_pgqueue.models import Message

__all__ = [
    "ENDED",
    "LIVE",
    "MOST_COUNTED",
    "Place",
    "Standing",
    "Surroundings",
    "listed",
    "oldest_readable_sql",
    "standing",
    "standing_sql",
    "surroundings",
]


class Place(str, Enum):
    """The place of a message in its queue, or the outcome of a message that has ended."""

    READY = "ready"
    DUE = "due"
    WAITING = "waiting"
    IN_FLIGHT = "in_flight"
    DELAYED = "delayed"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def label(self) -> str:
        """Its name for people, in their language."""
        return str(_LABELS[self])

    def __str__(self) -> str:
        return self.label


_LABELS = {
    Place.READY: gettext_lazy("ready"),
    Place.DUE: gettext_lazy("due"),
    Place.WAITING: gettext_lazy("waiting"),
    Place.IN_FLIGHT: gettext_lazy("in flight"),
    Place.DELAYED: gettext_lazy("delayed"),
    Place.COMPLETED: gettext_lazy("completed"),
    Place.FAILED: gettext_lazy("failed"),
    Place.CANCELLED: gettext_lazy("cancelled"),
}

LIVE = (Place.READY, Place.DUE, Place.WAITING, Place.IN_FLIGHT, Place.DELAYED)
#: Maximum number of messages of a group that are counted before one.
MOST_COUNTED = 1000

ENDED = (Place.COMPLETED, Place.FAILED, Place.CANCELLED)


def _after(key: str, type_: str, lowest: str) -> str:
    """SQL for the key at which the previous page ended; the lowest key for later queues."""
    return (
        f"CASE q.id WHEN %(after_queue)s THEN coalesce(CAST(%({key})s AS {type_}), '{lowest}') "
        f"ELSE '{lowest}'::{type_} END"
    )


_LISTS: dict[str, object] = {
    "of": "q.id",
    "after_id": _after("after_id", "bigint", "-9223372036854775808"),
    "after_rank": _after("after_key", "int", "-32768"),
    "after_vt": _after("after_key", "timestamptz", "-infinity"),
    "after_group": _after("after_key", "text", ""),
}

# For each place the lists in lists.sql that have its rows, and the condition from places.sql.
_ROWS = {
    Place.READY: {"ready": "", "first_ready": ""},
    Place.DUE: {"deferred": "", "leased": ""},
    Place.WAITING: {"waiting": ""},
    Place.IN_FLIGHT: {"deferred": "places/in_flight", "leased": ""},
    Place.DELAYED: {"deferred": "places/delayed", "first_delayed": ""},
}


def listed(place: Place, conditions: Sequence[str], *, ordered: bool = True) -> str:
    """The messages that stand in a place, in the order of their queues and of ``key``.

    ``conditions`` are on a row ``s`` of it; without any, no more rows are read than ``limit``.
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


def oldest_readable_sql() -> str:
    """SQL for how long the oldest readable message of each of %(queues)s has waited for a read."""
    return compose("oldest_readable", {"of": "q.id"}, __package__)


class Standing(NamedTuple):
    """The place of one message in the queue, and its deliveries."""

    place: Place
    vt: dt.datetime | None
    read_ct: int
    attempts: int
    first_read_at: dt.datetime | None
    last_read_at: dt.datetime | None
    leased: bool  # True also after the lease has expired
    holder: int | None  # the consumer process that has the lease


def standing_sql() -> str:
    """SQL for the columns of :class:`Standing` of a message ``m``, to join laterally."""
    return compose("standing/of", {"of": "m.queue_id"}, __package__)


def standing(messages: Sequence[Message], *, using: str) -> dict[int, Standing]:
    """Where these messages stand, by id; without those that are in no queue any more."""
    params = {
        "ids": [message.pk for message in messages],
        "queues": [message.queue_id for message in messages],
        "priorities": [message.priority for message in messages],
        "groups": [message.group_key for message in messages],
    }
    rows = ask("standing/all", params, using=using, of_message=standing_sql())
    return {pk: Standing(Place(place), *rest) for pk, place, *rest in rows}


class Surroundings(NamedTuple):
    """The group, the errors and the consumers of a message in the queue."""

    head: int | None  # of its FIFO group
    before: list[int]  # of its group, those that wait: the nearest last
    after: list[int]  # the nearest first
    more: bool  # there are more after those
    waiting_before: int  # at most MOST_COUNTED
    error: str | None  # of its last attempt
    has_consumer: bool
    kind: int | None  # of its failure
    source_id: int | None  # the queue that it died in
    processes: dict[str, str]  # that held it: their names by id


def surroundings(
    message: Message, dead_after: float, source: str | None, holder: int | None, qty: int = 5
) -> Surroundings:
    """The group, the errors and the consumers of a message.

    Arguments:
        dead_after: seconds without a heartbeat after which a consumer counts as dead.
        source: the name of the queue that a dead letter came from.
        holder: the id of the process that has the lease.
        qty: how many messages of the group to list before it and after it.
    """
    params = {
        "group": message.group_key,
        "id": message.pk,
        "qty": qty,
        "most": MOST_COUNTED,
        "queue_id": message.queue_id,
        "queue": message.queue.name,
        "dead_after": dead_after,
        "source": source,
        "holder": holder,
    }
    queue = message.queue
    rows = ask("message", params, using=queue.alias, **queue.tables)
    [(head, before, after, *others)] = rows
    others[-1] = json.loads(others[-1])
    return Surroundings(head, before[::-1], after[:qty], len(after) > qty, *others)
