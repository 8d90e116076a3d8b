"""A queue's own leaves of the message and archive tables, and its wake-up mark.

Only the integer id of a queue ever reaches an identifier. A leaf is made on its own and then
attached: ``PARTITION OF`` would take ACCESS EXCLUSIVE on the parent, and one long reader would
make every queue wait.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

__all__ = ["create_leaves", "drop_leaves", "table_names", "time_slices"]

PARENTS = ("pgqueue_message", "pgqueue_archive")

#: How many intervals ahead of the present one have a leaf from the start.
AHEAD = 4

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)

# A leaf is only ever appended to and pruned.
_STORAGE = "WITH (fillfactor = 100, autovacuum_vacuum_insert_scale_factor = 0.2)"


def shared_names(*, unlogged: bool) -> dict[str, Any]:
    """What stands for the objects that all logged, or all unlogged, queues share."""
    twin = "_unlogged" if unlogged else ""
    return {
        "ready": f"pgqueue_ready{twin}",
        "deferred": f"pgqueue_deferred{twin}",
        "waiting": f"pgqueue_waiting{twin}",
        "group": f"pgqueue_group{twin}",
        "recheck": f"pgqueue_recheck{twin}",
        "dedup": f"pgqueue_dedup{twin}",
        "next_head": f"pgqueue_next_head{twin}",
        "unlogged": str(unlogged).lower(),
    }


def table_names(queue_id: int, *, unlogged: bool = False) -> dict[str, Any]:
    """What stands for the tables of one queue in the text of its queries.

    >>> table_names(7)["message"], table_names(7, unlogged=True)["ready"]
    ('pgqueue_message_q7', 'pgqueue_ready_unlogged')
    """
    number = int(queue_id)
    return {
        **shared_names(unlogged=unlogged),
        "queue_id": number,
        "message": f"pgqueue_message_q{number}",
        "archive": f"pgqueue_archive_q{number}",
        "wake": f"pgqueue_wake_q{number}",
    }


def time_slices(
    now: dt.datetime, interval: dt.timedelta, ahead: int = AHEAD
) -> list[tuple[dt.datetime, dt.datetime]]:
    """The spans, each one interval long and aligned to the epoch, from now's to ``ahead`` on.

    >>> now = dt.datetime(2026, 11, 21, 15, tzinfo=dt.timezone.utc)
    >>> [start.day for start, _ in time_slices(now, dt.timedelta(days=1), ahead=2)]
    [21, 22, 23]
    """
    first = _EPOCH + (now - _EPOCH) // interval * interval
    starts = [first + step * interval for step in range(ahead + 1)]
    return [(start, start + interval) for start in starts]


def create_leaves(
    cursor: Any,
    queue_id: int,
    *,
    unlogged: bool = False,
    partition_interval: dt.timedelta | None = None,
) -> None:
    """Make and attach the leaves of one queue, inside the caller's transaction.

    Whatever an earlier queue of this id left behind (after a TRUNCATE of the queue table, as
    test suites do) goes first.
    """
    drop_leaves(cursor, queue_id)
    number = int(queue_id)
    cursor.execute(f"CREATE UNLOGGED SEQUENCE pgqueue_wake_q{number} AS bigint")
    for parent in PARENTS:
        leaf = f"{parent}_q{number}"
        if partition_interval is None:
            kind = "UNLOGGED TABLE" if unlogged else "TABLE"
            cursor.execute(f"CREATE {kind} {leaf} (LIKE {parent} INCLUDING ALL) {_STORAGE}")
        else:
            _create_time_leaves(cursor, parent, leaf, unlogged, partition_interval)
        if parent == "pgqueue_message":
            _make_inserts_sends(cursor, leaf, number)
        cursor.execute(f"ALTER TABLE {parent} ATTACH PARTITION {leaf} FOR VALUES IN ({number})")
    if partition_interval is not None:
        # A statement fires the trigger of the table it names, and no other: each slice needs one.
        cursor.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass",
            [f"pgqueue_message_q{number}"],
        )
        for (slice_leaf,) in cursor.fetchall():
            _make_inserts_sends(cursor, slice_leaf, number)


def _make_inserts_sends(cursor: Any, leaf: str, queue_id: int) -> None:
    cursor.execute(
        f"CREATE TRIGGER pgqueue_message_inserted AFTER INSERT ON {leaf} "
        f"REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT "
        f"EXECUTE FUNCTION pgqueue_message_inserted('{queue_id}')"
    )


def _create_time_leaves(
    cursor: Any, parent: str, leaf: str, unlogged: bool, interval: dt.timedelta
) -> None:
    kind = "UNLOGGED TABLE" if unlogged else "TABLE"
    cursor.execute(
        f"CREATE TABLE {leaf} (LIKE {parent} INCLUDING ALL) PARTITION BY RANGE (enqueued_at)"
    )
    # The default leaf takes what no other does: a missing future leaf never fails a send.
    cursor.execute(f"CREATE {kind} {leaf}_default (LIKE {leaf} INCLUDING ALL) {_STORAGE}")
    cursor.execute(f"ALTER TABLE {leaf} ATTACH PARTITION {leaf}_default DEFAULT")
    cursor.execute("SELECT statement_timestamp()")
    (now,) = cursor.fetchone()
    for start, end in time_slices(now, interval):
        slice_leaf = f"{leaf}_p{start:%Y%m%d%H%M%S}"
        cursor.execute(f"CREATE {kind} {slice_leaf} (LIKE {leaf} INCLUDING ALL) {_STORAGE}")
        cursor.execute(
            f"ALTER TABLE {leaf} ATTACH PARTITION {slice_leaf} "
            f"FOR VALUES FROM ('{start.isoformat()}') TO ('{end.isoformat()}')"
        )


def drop_leaves(cursor: Any, queue_id: int) -> None:
    """Drop what one queue has of its own. Takes ACCESS EXCLUSIVE on the parents."""
    number = int(queue_id)
    for parent in PARENTS:
        cursor.execute(f"DROP TABLE IF EXISTS {parent}_q{number}")
    cursor.execute(f"DROP SEQUENCE IF EXISTS pgqueue_wake_q{number}")
