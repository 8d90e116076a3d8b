"""Where messages stand: the same words, and the same rows, for a count and for what it links to.

A message in the queue is in one of five places, which add up to a queue's length: ``ready`` (never
read), ``due`` (its lease or its delay ran out), ``waiting`` (behind another one of its FIFO group),
``in_flight`` (leased) and ``delayed``. A message that is done is ``completed``,
``failed`` or ``cancelled``.

All of this looks into the narrow tables, by their indexes, and only so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections
from django.utils.translation import gettext_lazy

from django_pgqueue import ddl

if TYPE_CHECKING:
    import datetime as dt

    from django_pgqueue.models import Message

__all__ = [
    "ENDED",
    "LIVE",
    "Neighbours",
    "Place",
    "Standing",
    "neighbours",
    "oldest_readable",
    "source_of",
    "standing",
]


class Place(str, Enum):
    """Where a message stands."""

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


#: How many groups without a head are looked at for the oldest message.
GROUPS = 1000

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
ENDED = (Place.COMPLETED, Place.FAILED, Place.CANCELLED)

# A limit is a subquery, which the planner does not see: it would go through the rows of other
# queues for the few it is asked for.

# The first of each group that has no head yet: the next read brings it up.
_BEGUN = """
    SELECT first.*
    FROM (SELECT DISTINCT group_key
          FROM (SELECT group_key FROM {recheck} WHERE queue_id = q.id
                ORDER BY id LIMIT (SELECT %(groups)s::bigint)) r) g
    CROSS JOIN LATERAL (SELECT w.*, coalesce(vt > statement_timestamp(), false) AS later
                        FROM {waiting} w
                        WHERE w.queue_id = q.id AND w.group_key = g.group_key
                        ORDER BY id LIMIT 1) first
    LEFT JOIN LATERAL (SELECT true AS found FROM {group} h
                       WHERE h.queue_id = q.id AND h.group_key = g.group_key OFFSET 0) h ON true
    WHERE h.found IS NULL
"""

# From after a message on, in the order of an index: of queues after that message's, all of them.
_AFTER_KEY = """CASE q.id WHEN %(after_queue)s THEN coalesce(%(after_key)s::{type}, '{lowest}')
                ELSE '{lowest}'::{type} END"""
_BY_PRIORITY = _AFTER_KEY.format(type="int", lowest="-32768")
_BY_VT = _AFTER_KEY.format(type="timestamptz", lowest="-infinity")
_BY_GROUP = _AFTER_KEY.format(type="text", lowest="")
_AFTER_ID = "CASE q.id WHEN %(after_queue)s THEN %(after_id)s ELSE -9223372036854775808 END"

_READY = f"""
    SELECT id, -priority AS key, enqueued_at, group_key, 0 AS attempts, '' AS state FROM {{ready}}
    WHERE queue_id = q.id AND (-priority, id) > ({_BY_PRIORITY}, {_AFTER_ID})
    ORDER BY -priority, id"""


def _deferred(when: str) -> str:
    return f"""
    SELECT id, vt AS key, enqueued_at, group_key, attempts, state FROM {{deferred}}
    WHERE queue_id = q.id AND (vt, id) > ({_BY_VT}, {_AFTER_ID}) AND vt {when}
    ORDER BY vt, id"""


def _leased(when: str) -> str:
    return f"""
    SELECT i.id, l.vt AS key, i.enqueued_at, NULL::text AS group_key, 0 AS attempts, '' AS state
    FROM (SELECT vt, ids, enqueued_ats FROM {{lease}}
          WHERE queue_id = q.id AND vt >= {_BY_VT} AND vt {when}
          ORDER BY vt LIMIT (SELECT %(look)s::bigint)) l
    CROSS JOIN LATERAL unnest(l.ids, l.enqueued_ats) AS i (id, enqueued_at)
    WHERE (l.vt, i.id) > ({_BY_VT}, {_AFTER_ID})
    ORDER BY l.vt, i.id"""


def _begun(key: str, later: str, after: str) -> str:
    return f"""
    SELECT id, {key} AS key, enqueued_at, group_key, attempts, '' AS state FROM ({_BEGUN}) b
    WHERE {later} AND ({key}, id) > ({after}, {_AFTER_ID})
    ORDER BY key, id"""


_WAITING = f"""
    SELECT id, group_key AS key, enqueued_at, group_key, attempts, '' AS state FROM {{waiting}}
    WHERE queue_id = q.id AND (group_key, id) > ({_BY_GROUP}, {_AFTER_ID})
      AND (%(group)s::text IS NULL OR group_key = %(group)s::text)
      AND id <> ALL(ARRAY(SELECT id FROM ({_BEGUN}) b))
    ORDER BY group_key, id"""

_PAST, _AHEAD = "<= statement_timestamp()", "> statement_timestamp()"

# By place its rows, and which of them they are; without a choice, all.
_SOURCES: dict[Place, list[tuple[str, str]]] = {
    Place.READY: [(_READY, ""), (_begun("-priority", "NOT later", _BY_PRIORITY), "")],
    Place.DUE: [(_deferred(_PAST), ""), (_leased(_PAST), "")],
    Place.WAITING: [(_WAITING, "")],
    Place.IN_FLIGHT: [(_deferred(_AHEAD), "s.state = 'PROCESSING'"), (_leased(_AHEAD), "")],
    Place.DELAYED: [
        (_deferred(_AHEAD), "s.state <> 'PROCESSING'"),
        (_begun("vt", "later", _BY_VT), ""),
    ],
}


def source_of(place: Place, conditions: list[str]) -> str:
    """The messages of a queue ``q`` that stand in a place: their ids, in the order of ``key``.

    ``conditions`` are on a row ``s`` of it; without any, no more rows are read than ``limit``.
    """
    parts = []
    for rows, choice in _SOURCES[place]:
        chosen = [*([choice] if choice else []), *conditions]
        parts.append(
            f"(SELECT s.id, s.key FROM ({rows} "
            f"LIMIT (SELECT %({'look' if chosen else 'limit'})s::bigint)) s "
            f"WHERE {' AND '.join(chosen) or 'true'} "
            f"ORDER BY s.key, s.id LIMIT (SELECT %(limit)s::bigint))"
        )
    return " UNION ALL ".join(parts)


_OF_QUEUES = "q.unlogged = {unlogged} AND (%(queues)s::int[] IS NULL OR q.id = ANY(%(queues)s))"


def oldest_readable(queues: Iterable[int], *, using: str) -> dict[int, float]:
    """For how many seconds the oldest message that a read could take has waited for it, by queue.

    The oldest ready message of each priority is one index probe.
    """
    sql = f"""
        SELECT q.id, extract(epoch FROM statement_timestamp() - least(r.since, d.since, l.since,
                                                                      b.since))
        FROM pgqueue_queue q
        CROSS JOIN LATERAL (
            WITH RECURSIVE level AS (
                (SELECT -priority AS rank FROM {{ready}} WHERE queue_id = q.id
                 ORDER BY -priority LIMIT 1)
                UNION ALL
                SELECT (SELECT -r.priority FROM {{ready}} r
                        WHERE r.queue_id = q.id AND -r.priority > level.rank
                        ORDER BY -r.priority LIMIT 1)
                FROM level WHERE level.rank IS NOT NULL)
            SELECT min(o.enqueued_at) AS since
            FROM level CROSS JOIN LATERAL (
                SELECT enqueued_at FROM {{ready}} r
                WHERE r.queue_id = q.id AND -r.priority = level.rank ORDER BY r.id LIMIT 1) o) r
        LEFT JOIN LATERAL (SELECT vt AS since FROM {{deferred}}
                           WHERE queue_id = q.id AND vt <= statement_timestamp()
                           ORDER BY vt LIMIT 1) d ON true
        LEFT JOIN LATERAL (SELECT vt AS since FROM {{lease}}
                           WHERE queue_id = q.id AND vt <= statement_timestamp()
                           ORDER BY vt LIMIT 1) l ON true
        CROSS JOIN LATERAL (SELECT min(enqueued_at) AS since FROM ({_BEGUN}) b
                            WHERE NOT b.later) b
        WHERE {_OF_QUEUES} AND coalesce(r.since, d.since, l.since, b.since) IS NOT NULL
    """
    params = {"queues": list(queues), "groups": GROUPS}
    return {queue_id: float(seconds) for queue_id, seconds in _of_both(sql, params, using)}


class Standing(NamedTuple):
    """Where one message in the queue stands."""

    place: Place
    vt: dt.datetime | None
    read_ct: int
    attempts: int
    first_read_at: dt.datetime | None
    last_read_at: dt.datetime | None
    leased: bool  # also after its lease ran out


_STANDING = """
    SELECT m.id,
           CASE WHEN w.begun THEN CASE WHEN w.vt > statement_timestamp() THEN 'delayed'
                                       ELSE 'ready' END
                WHEN w.found THEN 'waiting'
                WHEN coalesce(d.vt, l.vt) <= statement_timestamp() THEN 'due'
                WHEN l.vt IS NOT NULL OR d.state = 'PROCESSING' THEN 'in_flight'
                WHEN d.vt IS NOT NULL THEN 'delayed'
                WHEN r.found THEN 'ready' END,
           coalesce(d.vt, l.vt, w.vt),
           coalesce(d.read_ct, w.read_ct, CASE WHEN l.vt IS NULL THEN 0 ELSE 1 END),
           coalesce(d.attempts, w.attempts, 0),
           coalesce(d.first_read_at, w.first_read_at, l.read_at),
           coalesce(d.last_read_at, w.last_read_at, l.read_at),
           l.vt IS NOT NULL OR coalesce(d.state = 'PROCESSING', false)
    FROM unnest(%(ids)s::bigint[], %(queues)s::int[], %(priorities)s::int[], %(groups)s::text[])
         AS m (id, queue_id, priority, group_key)
    LEFT JOIN LATERAL (SELECT * FROM {deferred} d
        WHERE d.id = m.id AND d.queue_id + 0 = m.queue_id OFFSET 0) d ON true
    LEFT JOIN LATERAL (SELECT l.vt, l.read_at FROM {lease} l
        WHERE int8range(l.head, l.tail, '[]') @> m.id AND l.queue_id + 0 = m.queue_id
          AND m.id = ANY(l.ids) LIMIT 1) l ON true
    LEFT JOIN LATERAL (SELECT true AS found, w.*,
            NOT EXISTS (SELECT FROM {group} h
                        WHERE h.queue_id = m.queue_id AND h.group_key = m.group_key)
            AND NOT EXISTS (SELECT FROM {waiting} o WHERE o.queue_id = m.queue_id
                            AND o.group_key = m.group_key AND o.id < m.id) AS begun
        FROM {waiting} w
        WHERE w.queue_id = m.queue_id AND w.group_key = m.group_key AND w.id = m.id
        OFFSET 0) w ON true
    LEFT JOIN LATERAL (SELECT true AS found FROM {ready} r
        WHERE r.queue_id = m.queue_id AND -r.priority = -m.priority::smallint AND r.id = m.id
        OFFSET 0) r ON true
    WHERE coalesce(d.id IS NOT NULL OR l.vt IS NOT NULL OR w.found OR r.found, false)
"""


def standing(messages: Sequence[Message], *, using: str) -> dict[int, Standing]:
    """Where these messages stand, by id; without those that are in no queue any more."""
    params = {
        "ids": [message.pk for message in messages],
        "queues": [message.queue_id for message in messages],
        "priorities": [message.priority for message in messages],
        "groups": [message.group_key for message in messages],
    }
    return {
        pk: Standing(Place(place), *rest) for pk, place, *rest in _of_both(_STANDING, params, using)
    }


class Neighbours(NamedTuple):
    """The messages around one in its FIFO group, of those in the queue."""

    head: int | None
    before: list[int]  # of those that wait, the nearest last
    after: list[int]  # the nearest first
    more: bool  # there are more after those


def neighbours(message: Message, qty: int = 5) -> Neighbours:
    """The messages read before and after this one, by the index of the waiting ones."""
    names = ddl.shared_names(unlogged=message.queue.unlogged)
    params = {
        "queue": message.queue_id,
        "group": message.group_key,
        "id": message.pk,
        "qty": qty,
        "more": qty + 1,
    }
    sql = """
        SELECT (SELECT head FROM {group} WHERE queue_id = %(queue)s AND group_key = %(group)s),
               ARRAY(SELECT id FROM {waiting}
                     WHERE queue_id = %(queue)s AND group_key = %(group)s AND id < %(id)s
                     ORDER BY id DESC LIMIT %(qty)s),
               ARRAY(SELECT id FROM {waiting}
                     WHERE queue_id = %(queue)s AND group_key = %(group)s AND id > %(id)s
                     ORDER BY id LIMIT %(more)s)
    """.format(**names)
    with connections[message.queue.alias].cursor() as cursor:
        cursor.execute(sql, params)
        head, before, after = cursor.fetchone()
    return Neighbours(head, before[::-1], after[:qty], len(after) > qty)


def _of_both(sql: str, params: dict[str, Any], using: str) -> list[tuple[Any, ...]]:
    """The rows of logged and of unlogged queues."""
    twins = (sql.format(**ddl.shared_names(unlogged=unlogged)) for unlogged in (False, True))
    with connections[using].cursor() as cursor:
        cursor.execute(" UNION ALL ".join(f"({each})" for each in twins), params)
        return list(cursor.fetchall())
