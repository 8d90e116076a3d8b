"""Drops what a queue has: its leaves, its rows beside those of others, what a conversion made."""

from __future__ import annotations

from typing import Any

from django_pgqueue.ddl.conversion import drop_conversion, stop_conversion
from django_pgqueue.ddl.partitions import drop_leaves, table_names

__all__ = ["drop_queue"]


def drop_queue(cursor: Any, queue_id: int, *, unlogged: bool) -> None:
    """All but the queue's own row. Takes ACCESS EXCLUSIVE on the parents of its leaves."""
    tables = table_names(queue_id, unlogged=unlogged)
    drop_leaves(cursor, queue_id)
    stop_conversion(cursor, queue_id)
    drop_conversion(cursor, queue_id)
    # The groups first: what is left of them must not bring up new heads.
    for hot in ("group", "recheck", "waiting", "ready", "deferred", "lease", "dedup"):
        cursor.execute(f"DELETE FROM {tables[hot]} WHERE queue_id = %s", [queue_id])
