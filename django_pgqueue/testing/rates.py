"""Rates in tests: how many messages may start in the time that a test skips.

``free_at`` in pgqueue_group is when a rate permits the next start: of the whole queue in the row of
slot -1, of a group in the row of each slot. A read forgets the time after it, but for the burst,
because a consumer would have used it for the messages that waited. In a test that travelled no
consumer did, so ``drain`` starts these messages afterwards.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.db import DatabaseError, connections, models

from django_pgqueue.engine.groups.heads import give_heads
from django_pgqueue.models import Message, Queue

_HAS_RATE = models.Q(rate__isnull=False) | models.Q(group_rate__isnull=False)

# Slots in which nothing has started get a time, as if the rate was in use before the skipped span.
# All slots lose the time for which too few messages waited.
_SKIPPED = """
WITH slot AS MATERIALIZED (
    SELECT g.ctid AS place, q.id, g.group_key, g.head, g.slot = -1 AS is_whole,
           CASE WHEN isfinite(g.free_at) THEN g.free_at END AS free_at,
           CASE WHEN g.slot = -1 THEN pgqueue_spacing(q.rate, 1)
                ELSE (pgqueue_group_rule(q.id, g.group_key)).spacing END AS spacing,
           CASE WHEN g.slot = -1 THEN coalesce(q.burst, 1) - 1 ELSE 0 END AS saved
    FROM pgqueue_group g JOIN pgqueue_queue q ON q.id = g.queue_id
    WHERE g.free_at IS DISTINCT FROM 'infinity'
),
started AS MATERIALIZED (
    SELECT place, coalesce(free_at, statement_timestamp()
                           - greatest(%(span)s - spacing, saved * spacing)) AS free_at,
           statement_timestamp() - spacing * (saved + CASE WHEN is_whole THEN
               (SELECT count(*) FROM pgqueue_ready r WHERE r.queue_id = slot.id)
               + (SELECT count(*) FROM pgqueue_deferred d
                  WHERE d.queue_id = slot.id AND d.vt <= statement_timestamp())
               + (SELECT count(*) FROM pgqueue_waiting w WHERE w.queue_id = slot.id)
           ELSE (head IS NOT NULL)::integer
               + (SELECT count(*) FROM pgqueue_waiting w
                  WHERE w.queue_id = slot.id AND w.group_key = slot.group_key)
           END) AS earliest
    FROM slot
    WHERE spacing IS NOT NULL
)
UPDATE pgqueue_group g SET free_at = greatest(s.free_at, s.earliest)
FROM started s WHERE g.ctid = s.place
"""

_MAKE_SLOT = """
INSERT INTO pgqueue_group (queue_id, group_key, slot, priority, free_at)
VALUES (%s, '', -1, 0, '-infinity') ON CONFLICT DO NOTHING
"""

# Before a read: moves times that are relative to the time of the drain to the present, but none so
# far into the past that the read would forget a part.
_THAW = """
WITH slot AS MATERIALIZED (
    SELECT g.ctid AS place, g.free_at AS before,
           CASE WHEN g.slot = -1 THEN (coalesce(q.burst, 1) - 1) * pgqueue_spacing(q.rate, 1)
                ELSE '0' END AS saved
    FROM pgqueue_group g JOIN pgqueue_queue q ON q.id = g.queue_id
    WHERE q.id = %(queue)s AND isfinite(g.free_at)
)
UPDATE pgqueue_group g
SET free_at = statement_timestamp() - least(%(now)s - s.before, coalesce(s.saved, '0'))
FROM slot s WHERE g.ctid = s.place
RETURNING g.group_key, g.slot, s.before, g.free_at
"""

# After a read: slots in which nothing started get their time from before the read, others that time
# and a spacing for each start. If nothing was read, unused time is lost, but for the burst. A head
# that waits for its slot has the slot's time.
_FREEZE = """
WITH slot AS MATERIALIZED (
    SELECT g.ctid AS place, g.free_at AS present, b.before,
           b.free_at IS DISTINCT FROM g.free_at AS used,
           CASE WHEN g.slot = -1 THEN pgqueue_spacing(q.rate, 1)
                ELSE (pgqueue_group_rule(q.id, g.group_key)).spacing END AS spacing,
           CASE WHEN g.slot = -1 THEN coalesce(q.burst, 1) - 1 ELSE 0 END AS saved,
           CASE WHEN g.slot = -1 THEN %(count)s ELSE least(%(count)s, 1) END AS starts
    FROM pgqueue_group g JOIN pgqueue_queue q ON q.id = g.queue_id
    LEFT JOIN unnest(%(keys)s::text[], %(slots)s::smallint[], %(befores)s::timestamptz[],
                     %(frees)s::timestamptz[]) AS b (key, slot, before, free_at)
        ON b.key = g.group_key AND b.slot = g.slot
    WHERE q.id = %(queue)s AND isfinite(g.free_at)
),
frozen AS (
    UPDATE pgqueue_group g
    SET free_at = CASE WHEN %(count)s = 0 OR s.before IS NULL
                       THEN greatest(s.before, %(now)s - s.saved * s.spacing) ELSE s.before END
                  + CASE WHEN s.used THEN s.starts * s.spacing ELSE '0' END
    FROM slot s WHERE g.ctid = s.place
    RETURNING g.head, g.free_at, s.present
)
UPDATE pgqueue_deferred d SET vt = f.free_at
FROM frozen f WHERE d.id = f.head AND d.queue_id = %(queue)s AND d.vt = f.present
"""

_SHIFT = """
WITH slot AS (
    UPDATE pgqueue_group g SET free_at = g.free_at + %(span)s
    WHERE g.queue_id = %(queue)s AND isfinite(g.free_at)
    RETURNING g.head, g.free_at
)
UPDATE pgqueue_deferred d SET vt = s.free_at
FROM slot s WHERE d.id = s.head AND d.queue_id = %(queue)s AND d.vt = s.free_at - %(span)s
"""

_WAIT = """
SELECT max(free_at) - %(now)s FROM pgqueue_group
WHERE queue_id = %(queue)s AND group_key IN ('', %(group)s) AND isfinite(free_at)
"""


def travelled(span: dt.timedelta, alias: str) -> None:
    """Give the rates of all queues the time that ``travel`` has skipped."""
    for queue in Queue.objects.using(alias).filter(_HAS_RATE):
        give_heads(queue.opened)
        if queue.rate:
            _run(alias, _MAKE_SLOT, [queue.pk])
    _run(alias, _SKIPPED, {"span": span})


class FrozenRates:
    """The rates of a queue while a test drains it: time stands still for them.

    So the number of starts does not depend on the speed of the machine.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._is_rated = bool(queue.rate or queue.group_rate)
        self._now = None
        if self._is_rated:
            [(self._now,)] = self._run("SELECT statement_timestamp()")

    def leased(self, lease: Callable[[], list[Message]]) -> list[Message]:
        """Call ``lease``, and return its messages: those that the rates permit at this time."""
        if not self._is_rated:
            return lease()
        slots = self._run(_THAW)
        # Not asked if the whole queue has to wait: the wait may end before the read.
        waits = any(number == -1 and before > self._now for _, number, before, _ in slots)
        messages = [] if waits else lease()
        names = "keys", "slots", "befores", "frees"
        columns = {name: [slot[i] for slot in slots] for i, name in enumerate(names)}
        self._run(_FREEZE, count=len(messages), **columns)
        return messages

    def skip(self, span: dt.timedelta) -> None:
        """Advance the time at which the rates stand."""
        if self._is_rated:
            self._run(_SHIFT, span=-span)

    def wait(self, group: str | None) -> dt.timedelta:
        """Return how long the rates delay the next start of a message of a group."""
        [(wait,)] = self._run(_WAIT, group=group) if self._is_rated else [(None,)]
        return wait or dt.timedelta(0)

    def thaw(self) -> None:
        """Let time go on, from where it stands."""
        if self._is_rated:
            # After an error of the handler's the test's transaction may be unusable.
            with suppress(DatabaseError):
                [(now,)] = self._run("SELECT statement_timestamp()")
                self._run(_SHIFT, span=now - self._now)

    def _run(self, statement: str, **values: Any) -> list[Any]:
        return _run(
            self._queue.alias, statement, {"queue": self._queue.pk, "now": self._now, **values}
        )


def _run(alias: str, statement: str, params: Any) -> list[Any]:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement, params)
        return cursor.fetchall() if cursor.description else []
