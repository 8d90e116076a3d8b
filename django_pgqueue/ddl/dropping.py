"""Drops what a queue has: its leaves, its rows beside those of others, what a conversion made."""

from __future__ import annotations

from typing import Any

from django_pgqueue.ddl.conversion import drop_conversion, stop_conversion
from django_pgqueue.ddl.partitions import drop_leaves, table_names

__all__ = ["drop_queue"]


def drop_queue(cursor: Any, queue_id: int, *, name: str, unlogged: bool) -> None:
    """All but the queue's own row. Takes ACCESS EXCLUSIVE on the parents of its leaves.

    A mark with the queue's name stays, so that streams of the archive know of their loss.
    """
    tables = table_names(queue_id, unlogged=unlogged)
    _mark_dropped(cursor, queue_id, name, tables["archive"])
    drop_leaves(cursor, queue_id)
    stop_conversion(cursor, queue_id)
    drop_conversion(cursor, queue_id)
    # The groups first: what is left of them must not bring up new heads.
    for hot in ("group", "recheck", "waiting", "ready", "deferred", "lease", "dedup"):
        cursor.execute(f"DELETE FROM {tables[hot]} WHERE queue_id = %s", [queue_id])


def _mark_dropped(cursor: Any, queue_id: int, name: str, archive: object) -> None:
    """Note up to which transaction archived messages go. Reads the archive before the lock, and
    only what is new since, which its index finds, under it."""
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
