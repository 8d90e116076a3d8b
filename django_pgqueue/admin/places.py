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

from django_pgqueue import ddl

if TYPE_CHECKING:
    import datetime as dt

    from django_pgqueue.models import Message

__all__ = [
    "LIVE",
    "Neighbours",
    "Place",
    "Standing",
    "found",
    "neighbours",
    "oldest_readable",
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

    def __str__(self) -> str:
        return self.value.replace("_", " ")


#: How many groups without a head are looked at for the oldest message.
GROUPS = 1000

LIVE = (Place.READY, Place.DUE, Place.WAITING, Place.IN_FLIGHT, Place.DELAYED)

# The planner must not see the limit: it would go through the rows of other queues for the few it
# is asked for.
_LIMIT = "LIMIT (SELECT %(limit)s::bigint)"

# The first of each group that has no head yet: the next read brings it up.
_BEGUN = f"""
    SELECT first.id, first.enqueued_at, first.later
    FROM (SELECT DISTINCT group_key
          FROM (SELECT group_key FROM {{recheck}} WHERE queue_id = q.id
                ORDER BY id {_LIMIT}) r) g
    CROSS JOIN LATERAL (SELECT id, enqueued_at, coalesce(vt > statement_timestamp(), false) AS later
                        FROM {{waiting}} w
                        WHERE w.queue_id = q.id AND w.group_key = g.group_key
                        ORDER BY id LIMIT 1) first
    LEFT JOIN LATERAL (SELECT true AS found FROM {{group}} h
                       WHERE h.queue_id = q.id AND h.group_key = g.group_key OFFSET 0) h ON true
    WHERE h.found IS NULL
"""

# As far as metrics counts them: the first by the time at which they become readable.
_LATER = f"""
    SELECT id, state FROM {{deferred}}
    WHERE queue_id = q.id AND vt > statement_timestamp() ORDER BY vt {_LIMIT}
"""

_PLACES = {
    Place.READY: f"""
        (SELECT id FROM {{ready}} WHERE queue_id = q.id ORDER BY -priority, id {_LIMIT})
        UNION ALL SELECT id FROM ({_BEGUN}) b WHERE NOT b.later""",
    Place.DUE: f"""
        (SELECT id FROM {{deferred}}
         WHERE queue_id = q.id AND vt <= statement_timestamp() ORDER BY vt {_LIMIT})
        UNION ALL
        (SELECT unnest(ids) FROM (SELECT ids FROM {{lease}}
         WHERE queue_id = q.id AND vt <= statement_timestamp() ORDER BY vt {_LIMIT}) l)""",
    Place.WAITING: f"""
        SELECT id FROM (SELECT id FROM {{waiting}} WHERE queue_id = q.id
                        ORDER BY group_key, id {_LIMIT}) w
        WHERE id <> ALL(ARRAY(SELECT id FROM ({_BEGUN}) b))""",
    Place.IN_FLIGHT: f"""
        (SELECT id FROM ({_LATER}) d WHERE state = 'PROCESSING')
        UNION ALL
        (SELECT unnest(ids) FROM (SELECT ids FROM {{lease}}
         WHERE queue_id = q.id AND vt > statement_timestamp() ORDER BY vt {_LIMIT}) l)""",
    Place.DELAYED: f"""
        (SELECT id FROM ({_LATER}) d WHERE state <> 'PROCESSING')
        UNION ALL SELECT id FROM ({_BEGUN}) b WHERE b.later""",
}

_OF_QUEUES = "q.unlogged = {unlogged} AND (%(queues)s::int[] IS NULL OR q.id = ANY(%(queues)s))"


def found(
    place: Place, queues: Iterable[int] | None, limit: int, *, using: str
) -> list[tuple[int, int]]:
    """The queue and the id of messages in a place, in the order of its index, up to a limit.

    ``queues`` are ids, None means all.
    """
    sql = (
        f"SELECT q.id, p.id FROM pgqueue_queue q CROSS JOIN LATERAL ({_PLACES[place]}) p "
        f"WHERE {_OF_QUEUES} {_LIMIT}"
    )
    chosen = None if queues is None else list(queues)
    return [
        (queue_id, pk) for queue_id, pk in _of_both(sql, {"limit": limit, "queues": chosen}, using)
    ][:limit]


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
    params = {"queues": list(queues), "limit": GROUPS}
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
