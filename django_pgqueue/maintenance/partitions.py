"""Make, find, lock and drop a queue's partitions by time.

A queue's tables are partitions, by queue, of ``pgqueue_message`` and ``pgqueue_archive``. With a
``partition_interval`` they are partitioned again, by ``enqueued_at``. A partition is made as a
table and then attached: ``CREATE TABLE ... PARTITION OF`` would take ACCESS EXCLUSIVE on the
parent, and block every queue while it waits for a long read.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from django_pgqueue.ddl.triggers import send_trigger
from django_pgqueue.engine.names import MESSAGE, own_table, own_tables
from django_pgqueue.engine.times import EPOCH, as_microseconds, moment
from django_pgqueue.maintenance import sources

#: The first moment of a partition, and the first moment after it.
Range = tuple[dt.datetime, dt.datetime]

#: How many future intervals have a partition.
AHEAD = 4

# Rows of these tables are inserted and deleted, never updated.
_STORAGE = "WITH (fillfactor = 100, autovacuum_vacuum_insert_scale_factor = 0.2)"


@dataclass(frozen=True)
class Partition:
    """A table of messages and a table of their outcomes, neither partitioned further.

    ``has_range`` is true for a partition by time, which holds times from ``start`` (None:
    unbounded) to before ``end``. It is false for the default partition, and for an unpartitioned
    queue.
    """

    message: str
    archive: str
    has_range: bool = False
    start: dt.datetime | None = None
    end: dt.datetime | None = None


def time_ranges(now: dt.datetime, interval: dt.timedelta, ahead: int = AHEAD) -> list[Range]:
    """Return the range around ``now`` and the next ``ahead`` ranges, aligned to the epoch.

    >>> now = dt.datetime(2026, 11, 21, 15, tzinfo=dt.timezone.utc)
    >>> [start.day for start, _ in time_ranges(now, dt.timedelta(days=1), ahead=2)]
    [21, 22, 23]
    """
    first = EPOCH + (now - EPOCH) // interval * interval
    starts = [first + step * interval for step in range(ahead + 1)]
    return [(start, start + interval) for start in starts]


def missing_ranges(
    found: list[Partition],
    now: dt.datetime,
    interval: dt.timedelta,
    not_before: dt.datetime | None = None,
) -> list[Range]:
    """Return the parts of the current and future ranges that have no partition."""
    taken = [(partition.start, partition.end) for partition in found if partition.has_range]
    return [
        free
        for start, end in time_ranges(now, interval)
        for free in _free_parts(max(start, not_before or start), end, taken)
    ]


def _free_parts(
    start: dt.datetime,
    end: dt.datetime,
    taken: list[tuple[dt.datetime | None, dt.datetime | None]],
) -> list[Range]:
    """Return the parts of a range outside ``taken``, which is sorted and has no overlaps."""
    free = []
    for first, last in taken:
        if first is not None and start < first:
            free.append((start, min(first, end)))
        start = max(start, last) if last is not None else end
        if start >= end:
            break
    else:
        free.append((start, end))
    return [(first, last) for first, last in free if first < last]


def make_table(cursor: Any, name: str, parent: str, *, unlogged: bool) -> None:
    """Make a table like ``parent``, a table of messages or outcomes. The caller attaches it."""
    kind = "UNLOGGED TABLE" if unlogged else "TABLE"
    cursor.execute(f"CREATE {kind} {name} (LIKE {parent} INCLUDING ALL) {_STORAGE}")
    if parent.startswith(MESSAGE):
        # A statement fires the triggers of the table that it names, so each table has the trigger.
        cursor.execute(send_trigger(name))


def make_partitioned(cursor: Any, name: str, parent: str, queue_id: int, *, unlogged: bool) -> None:
    """Make a table partitioned by time, with a default partition only. The caller attaches it.

    The default partition takes the rows outside all other partitions, so that no send fails.
    """
    default = f"{own_table(parent, queue_id)}_default"
    cursor.execute(
        f"CREATE TABLE {name} (LIKE {parent} INCLUDING ALL) PARTITION BY RANGE (enqueued_at)"
    )
    make_table(cursor, default, parent, unlogged=unlogged)
    if parent == MESSAGE:
        cursor.execute(send_trigger(name))
    cursor.execute(f"ALTER TABLE {name} ATTACH PARTITION {default} DEFAULT")


def create_partition(
    cursor: Any,
    queue_id: int,
    start: dt.datetime,
    end: dt.datetime,
    *,
    unlogged: bool = False,
    parents: tuple[str, str] | None = None,
) -> Partition:
    """Make and attach the partition for a range of time, in the caller's transaction.

    ``parents`` are the queue's two partitioned tables, if they do not have their usual names.
    Attaching takes SHARE UPDATE EXCLUSIVE on them, which blocks neither senders nor readers, and
    ACCESS EXCLUSIVE on the default partitions while PostgreSQL reads these: set ``lock_timeout``.

    Raises CheckViolation if a default partition has rows of the range, InvalidObjectDefinition if
    another partition overlaps it.
    """
    suffix = f"_p{start.astimezone(dt.timezone.utc):%Y%m%d%H%M%S}"
    message, archive = (f"{table}{suffix}" for table in own_tables(queue_id))
    pairs = list(zip(parents or own_tables(queue_id), (message, archive), strict=True))
    # Both tables are made first, since attaching one locks the default partition.
    for parent, table in pairs:
        make_table(cursor, table, parent, unlogged=unlogged)
    if sources.has_readers(cursor, queue_id):
        sources.watch(cursor, message)
    for parent, table in pairs:
        cursor.execute(
            f"ALTER TABLE {parent} ATTACH PARTITION {table} "
            f"FOR VALUES FROM ('{start.isoformat()}') TO ('{end.isoformat()}')"
        )
    return Partition(message, archive, True, start, end)


def lock_for_change(cursor: Any, queue_id: int) -> None:
    """Block other changes of a queue's partitions, but neither senders nor readers."""
    message, archive = own_tables(queue_id)
    cursor.execute(f"LOCK TABLE ONLY {message}, ONLY {archive} IN SHARE UPDATE EXCLUSIVE MODE")


def lock_for_drop(cursor: Any, queue_id: int, partition: Partition) -> bool:
    """Take the locks for dropping a partition. Returns False if it no longer exists.

    The locks block every use of the queue until the transaction ends: set ``lock_timeout``.
    """
    tables = [f"ONLY {table}" for table in own_tables(queue_id)]
    for each in reversed(find_partitions(cursor, queue_id)):
        if each == partition or not each.has_range:
            tables += [each.message, each.archive]
    cursor.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")
    return partition in find_partitions(cursor, queue_id)


def drop_partition(cursor: Any, partition: Partition) -> None:
    """Drop a partition with its messages and outcomes."""
    cursor.execute(f"DROP TABLE {partition.message}, {partition.archive}")


def is_partitioned(cursor: Any, queue_id: int) -> bool:
    """Whether a queue's tables are partitioned by time; False if there are no tables."""
    found = "SELECT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass(%s) AND relkind = 'p')"
    return bool(fetch_value(cursor, found, [own_table(MESSAGE, queue_id)]))


def fetch_value(cursor: Any, sql: str, params: Any = None) -> Any:
    """Run a query, and return the first value of its first row, or None without rows."""
    cursor.execute(sql, params)
    row = cursor.fetchone()
    return None if row is None else row[0]


def find_partitions(cursor: Any, queue_id: int) -> list[Partition]:
    """Return the partitions of a queue: those by time in order, then the default partition.

    A table of messages and a table of outcomes with equal bounds are one partition, whatever their
    names. A table without such a counterpart is left out.
    """
    message, archive = own_tables(queue_id)
    start, end = (
        as_microseconds(f"substring(bound FROM $${side} \\('([^']+)'\\)$$)::timestamptz")
        for side in ("FROM", "TO")
    )
    cursor.execute(
        "SELECT parent.relname, coalesce(child.relname, parent.relname), "
        f"coalesce(bound <> 'DEFAULT', false) AS has_range, {start} AS start, {end} "
        "FROM pg_class parent "
        "LEFT JOIN (pg_inherits i JOIN pg_class child ON child.oid = i.inhrelid "
        "CROSS JOIN LATERAL pg_get_expr(child.relpartbound, child.oid) AS b (bound)) "
        "ON i.inhparent = parent.oid "
        # A partition that is being dropped has no bound.
        "WHERE parent.oid IN (to_regclass(%s), to_regclass(%s)) "
        "AND (child.oid IS NULL OR bound IS NOT NULL) "
        "ORDER BY has_range DESC, start NULLS FIRST",
        [message, archive],
    )
    found: dict[str, dict[tuple[Any, ...], str]] = {message: {}, archive: {}}
    for parent, table, has_range, *limits in cursor.fetchall():
        first, last = (None if limit is None else moment(limit) for limit in limits)
        found[parent][has_range, first, last] = table
    return [
        Partition(table, found[archive][key], *key)
        for key, table in found[message].items()
        if key in found[archive]
    ]
