"""The tables that a queue has of its own: made with it, and dropped with it."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django_pgqueue.ddl import grants
from django_pgqueue.ddl.names import (
    ARCHIVE,
    LIVE,
    MESSAGE,
    PARENTS,
    own_table,
    wake_sequence,
)
from django_pgqueue.ddl.times import server_time
from django_pgqueue.maintenance import bounds
from django_pgqueue.maintenance.partitions import (
    add_send_trigger,
    create_partition,
    make_partitioned,
    make_table,
    time_ranges,
)

__all__ = ["create_tables", "drop_tables"]


def create_tables(
    cursor: Any,
    queue_id: int,
    *,
    unlogged: bool = False,
    partition_interval: dt.timedelta | None = None,
) -> None:
    """Make and attach the tables of one queue, inside the caller's transaction.

    With a ``partition_interval`` they have a partition for the present interval and for the next
    ``AHEAD``. Tables that an earlier queue of this id left (after a TRUNCATE of the queue table,
    as test suites do) are dropped first. Attaching locks the parents in SHARE UPDATE EXCLUSIVE
    mode, which neither senders nor readers wait for.
    """
    number = int(queue_id)
    _drop(cursor, number)
    # Logged, whatever the queue is: an unlogged one is unusable on a promoted standby.
    cursor.execute(f"CREATE SEQUENCE {wake_sequence(number)} AS bigint")
    message, archive = own_table(MESSAGE, number), own_table(ARCHIVE, number)
    if partition_interval is None:
        make_table(cursor, message, MESSAGE, unlogged=unlogged)
        make_table(cursor, archive, ARCHIVE, unlogged=unlogged)
        add_send_trigger(cursor, message)
    else:
        make_partitioned(cursor, message, MESSAGE, number, unlogged=unlogged)
        make_partitioned(cursor, archive, ARCHIVE, number, unlogged=unlogged)
        for start, end in time_ranges(server_time(cursor), partition_interval):
            create_partition(cursor, number, start, end, unlogged=unlogged)
    for parent in PARENTS:
        cursor.execute(
            f"ALTER TABLE {parent} ATTACH PARTITION {own_table(parent, number)} "
            f"FOR VALUES IN ({number})"
        )
    if unlogged:
        cursor.execute("INSERT INTO pgqueue_unlogged VALUES (%s)", [number])
    grants.inherit(cursor, number)


def drop_tables(cursor: Any, queue_id: int, *, name: str) -> None:
    """Drop all that a queue has but its own row, inside the caller's transaction.

    Takes ACCESS EXCLUSIVE on both parents until the end of the transaction: no other session can
    use any queue meanwhile, so set ``lock_timeout``. A mark with the queue's name stays, so that
    streams of the archive know of their loss.
    """
    _mark_dropped(cursor, queue_id, name, own_table(ARCHIVE, queue_id))
    _drop(cursor, queue_id)
    # Groups first: a group that is left would get a new head.
    for table in ("pgqueue_group", *LIVE, "pgqueue_unlogged"):
        cursor.execute(f"DELETE FROM {table} WHERE queue_id = %s", [queue_id])


def _drop(cursor: Any, queue_id: int) -> None:
    for parent in PARENTS:
        cursor.execute(f"DROP TABLE IF EXISTS {own_table(parent, queue_id)}")
    cursor.execute(f"DROP SEQUENCE IF EXISTS {wake_sequence(queue_id)}")
    bounds.drop_function(cursor, queue_id)


def _mark_dropped(cursor: Any, queue_id: int, name: str, archive: str) -> None:
    """Note up to which transaction archived messages go.

    Reads the archive before the lock, and under it only rows that are new since, by their index.
    """
    newest = f"SELECT max(archive_xid) FROM {archive}"
    cursor.execute(f"SELECT ({newest}), pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
    before, reached = cursor.fetchone()
    cursor.execute(f"LOCK TABLE {archive} IN ACCESS EXCLUSIVE MODE")
    cursor.execute(f"{newest} WHERE archive_xid >= %s", [reached])
    (since,) = cursor.fetchone()
    if before is not None or since is not None:
        cursor.execute(
            "INSERT INTO pgqueue_purge_mark AS p (queue_id, below_xid, dropped) "
            "VALUES (%s, %s, %s) "
            "ON CONFLICT (queue_id) DO UPDATE SET purged_at = DEFAULT, dropped = excluded.dropped, "
            "below_xid = greatest(p.below_xid, excluded.below_xid)",
            [queue_id, max(before or 0, since or 0) + 1, name],
        )
