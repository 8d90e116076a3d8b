"""Make and drop a queue's own tables."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django_pgqueue.ddl import grants, triggers
from django_pgqueue.engine.names import (
    ARCHIVE,
    LIVE,
    PARENTS,
    own_table,
    own_tables,
    wake_sequence,
)
from django_pgqueue.engine.times import server_time
from django_pgqueue.maintenance import bounds, sources
from django_pgqueue.maintenance.partitions import (
    create_partition,
    make_partitioned,
    make_table,
    time_ranges,
)


def create_tables(
    cursor: Any,
    queue_id: int,
    *,
    unlogged: bool = False,
    partition_interval: dt.timedelta | None = None,
    source_id: int | None = None,
) -> None:
    """Make and attach the tables of a queue, in the caller's transaction.

    With a ``partition_interval`` they have partitions for the current interval and the next
    ``AHEAD`` intervals. Tables of an earlier queue with this id remain when a test suite truncates
    the queue table: they are used again, or dropped if they differ. Attaching takes SHARE UPDATE
    EXCLUSIVE on the parents, which blocks neither senders nor readers.
    """
    number = int(queue_id)
    is_usual = partition_interval is None and source_id is None
    if not (is_usual and _has_new_tables(cursor, number, unlogged)):
        _drop(cursor, number)
        _make_tables(cursor, number, unlogged, partition_interval)
    if source_id is not None:
        # A flush leaves the rows of tables without a model.
        cursor.execute("DELETE FROM pgqueue_cursor WHERE queue_id = %s", [number])
        sources.read_by(cursor, source_id, number)
    if unlogged:
        cursor.execute("INSERT INTO pgqueue_unlogged VALUES (%s)", [number])
    grants.inherit(cursor, number)


def restart_ids(cursor: Any) -> None:
    """Let the ids of queues start again, if there is none, so that remaining tables are used.

    Also deletes positions without a subscription: a flush leaves rows of tables without a model.
    """
    cursor.execute("SELECT to_regclass('pgqueue_cursor') IS NOT NULL")
    if cursor.fetchone()[0]:
        cursor.execute(
            "DELETE FROM pgqueue_cursor c "
            "WHERE NOT EXISTS (SELECT FROM pgqueue_queue q WHERE q.id = c.queue_id)"
        )
    cursor.execute(
        "SELECT setval(pg_get_serial_sequence('pgqueue_queue', 'id'), 1, false) "
        "WHERE NOT EXISTS (SELECT FROM pgqueue_queue)"
    )


def _has_new_tables(cursor: Any, number: int, unlogged: bool) -> bool:
    """Whether there are tables with this id like new ones: empty, without rights of roles."""
    message, archive = own_tables(number)
    cursor.execute(
        """
        SELECT count(*) = 3 FROM pg_class c
        WHERE c.oid IN (to_regclass(%s), to_regclass(%s), to_regclass(%s))
            AND (relkind = 'S' OR relkind = 'r' AND relispartition AND relpersistence = %s)
            AND relacl IS NULL AND NOT relrowsecurity
            AND NOT EXISTS (
                SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = ANY(%s))
            AND NOT EXISTS (
                SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attacl IS NOT NULL)
        """,
        [
            *(message, archive, wake_sequence(number)),
            "u" if unlogged else "p",
            [triggers.LEAVE_TRIGGER, triggers.KEEP_TRIGGER],
        ],
    )
    if not cursor.fetchone()[0]:
        return False
    cursor.execute(f"SELECT FROM {message} UNION ALL SELECT FROM {archive} LIMIT 1")
    return cursor.fetchone() is None


def _make_tables(
    cursor: Any, number: int, unlogged: bool, partition_interval: dt.timedelta | None
) -> None:
    # Always logged: a promoted standby cannot use an unlogged sequence.
    cursor.execute(f"CREATE SEQUENCE {wake_sequence(number)} AS bigint")
    for parent in PARENTS:
        if partition_interval is None:
            make_table(cursor, own_table(parent, number), parent, unlogged=unlogged)
        else:
            make_partitioned(cursor, own_table(parent, number), parent, number, unlogged=unlogged)
    if partition_interval is not None:
        for start, end in time_ranges(server_time(cursor), partition_interval):
            create_partition(cursor, number, start, end, unlogged=unlogged)
    for parent in PARENTS:
        cursor.execute(
            f"ALTER TABLE {parent} ATTACH PARTITION {own_table(parent, number)} "
            f"FOR VALUES IN ({number})"
        )


def drop_tables(cursor: Any, queue_id: int, *, name: str, source_id: int | None = None) -> None:
    """Drop a queue's tables and delete its rows in shared tables, but not the queue's own row.

    Takes ACCESS EXCLUSIVE on both parents, which blocks every queue until the end of the
    transaction: set ``lock_timeout``. The queue's purge mark stays: it tells streams that messages
    were lost.
    """
    _mark_dropped(cursor, queue_id, name)
    _drop(cursor, queue_id)
    if source_id is not None:
        # Before the leases, and again: the first waits for a read, which leaves a position.
        for _attempt in range(2):
            cursor.execute("DELETE FROM pgqueue_cursor WHERE queue_id = %s", [queue_id])
    # Delete groups first: a group would get new heads as long as it has a row.
    for table in ("pgqueue_group", *LIVE, "pgqueue_unlogged"):
        cursor.execute(f"DELETE FROM {table} WHERE queue_id = %s", [queue_id])
    if source_id is not None:
        sources.leave(cursor, source_id)


def _drop(cursor: Any, queue_id: int) -> None:
    for parent in PARENTS:
        cursor.execute(f"DROP TABLE IF EXISTS {own_table(parent, queue_id)}")
    cursor.execute(f"DROP SEQUENCE IF EXISTS {wake_sequence(queue_id)}")
    bounds.drop_function(cursor, queue_id)


def _mark_dropped(cursor: Any, queue_id: int, name: str) -> None:
    """Write the purge mark: the last transaction that archived a message of the queue.

    Reads the whole archive before the lock, and under the lock only newer rows, by an index. Writes
    nothing before the migration that makes the marks' table: until then no stream reads queues.
    """
    archive = own_table(ARCHIVE, queue_id)
    newest = f"SELECT max(archive_xid) FROM {archive}"
    cursor.execute(
        f"SELECT ({newest}), pg_snapshot_xmin(pg_current_snapshot())::text::bigint, "
        "to_regclass('pgqueue_purge_mark') IS NOT NULL"
    )
    before, reached, has_marks = cursor.fetchone()
    if not has_marks:
        return
    cursor.execute(f"LOCK TABLE {archive} IN ACCESS EXCLUSIVE MODE")
    cursor.execute(
        "INSERT INTO pgqueue_purge_mark AS p (queue_id, dropped, below_xid) VALUES (%s, %s, "
        f"coalesce(greatest(%s::bigint, ({newest} WHERE archive_xid >= %s)) + 1, 0)) "
        "ON CONFLICT (queue_id) DO UPDATE SET purged_at = DEFAULT, dropped = excluded.dropped, "
        "below_xid = greatest(p.below_xid, excluded.below_xid)",
        [queue_id, name, before, reached],
    )
