"""A queue's own leaves of the message and archive tables, and its wake-up mark.

Only the integer id of a queue ever reaches an identifier. A leaf is made on its own and then
attached: ``PARTITION OF`` would take ACCESS EXCLUSIVE on the parent, and one long reader would
make every queue wait.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from django_pgqueue.ddl import grants

__all__ = [
    "Leaf",
    "create_leaves",
    "create_slice",
    "drop_leaves",
    "drop_slice",
    "leaves",
    "lock_slice_alone",
    "lock_slices",
    "make_inserts_sends",
    "make_leaf",
    "make_sliced",
    "missing_slices",
    "moment",
    "own_table",
    "server_time",
    "table_names",
    "time_slices",
]

PARENTS = MESSAGE, ARCHIVE = "pgqueue_message", "pgqueue_archive"

#: How many intervals ahead of the present one have a leaf from the start.
AHEAD = 4

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_MICROSECONDS = "(extract(epoch FROM {}) * 1000000)::bigint"

# A leaf is only ever appended to and pruned.
_STORAGE = "WITH (fillfactor = 100, autovacuum_vacuum_insert_scale_factor = 0.2)"


@dataclass(frozen=True)
class Leaf:
    """A table of messages and the table of their outcomes, with no partitions below.

    A slice has a span of time, from ``start`` to before ``end`` (None: without end). The default
    leaf of a queue, and the only one of a queue without slices, has none.
    """

    message: str
    archive: str
    is_slice: bool = False
    start: dt.datetime | None = None
    end: dt.datetime | None = None


def shared_names(*, unlogged: bool) -> dict[str, Any]:
    """What stands for the objects that all logged, or all unlogged, queues share."""
    twin = "_unlogged" if unlogged else ""
    return {
        "ready": f"pgqueue_ready{twin}",
        "deferred": f"pgqueue_deferred{twin}",
        "lease": f"pgqueue_lease{twin}",
        "waiting": f"pgqueue_waiting{twin}",
        "group": f"pgqueue_group{twin}",
        "recheck": f"pgqueue_recheck{twin}",
        "dedup": f"pgqueue_dedup{twin}",
        "next_heads": f"pgqueue_next_heads{twin}",
        "unlogged": str(unlogged).lower(),
    }


def names_for_any(*, unlogged: bool) -> dict[str, Any]:
    """The same for a text that serves all of these queues; which one it is, is a value.

    Messages and outcomes are inserted by way of the parents, which costs little. Looking
    something up there would go to the leaves of all queues. The value is hidden from the planner,
    which would plan anew for each queue that has less than others.
    """
    return {
        **shared_names(unlogged=unlogged),
        "queue_id": "(SELECT %(queue_id)s::integer)",
        "message": MESSAGE,
        "archive": ARCHIVE,
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
        "message": own_table(MESSAGE, number),
        "archive": own_table(ARCHIVE, number),
        "wake": f"pgqueue_wake_q{number}",
    }


def server_time(cursor: Any) -> dt.datetime:
    """Now, by the server's clock; aware also where Django is told to use no time zones."""
    cursor.execute(f"SELECT {_MICROSECONDS.format('statement_timestamp()')}")
    (microseconds,) = cursor.fetchone()
    return moment(microseconds)


def moment(microseconds: int) -> dt.datetime:
    """So long after 1970. Read as a number, a time is the same whatever Django does to dates.

    >>> moment(1_500_000).isoformat()
    '1970-01-01T00:00:01.500000+00:00'
    """
    return _EPOCH + dt.timedelta(microseconds=microseconds)


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


def missing_slices(
    found: list[Leaf],
    now: dt.datetime,
    interval: dt.timedelta,
    not_before: dt.datetime | None = None,
) -> list[tuple[dt.datetime, dt.datetime]]:
    """The spans from now's on that no slice covers; parts of them where other slices lie across."""
    taken = [(leaf.start, leaf.end) for leaf in found if leaf.is_slice]
    return [
        free
        for start, end in time_slices(now, interval)
        for free in _free_parts(max(start, not_before or start), end, taken)
    ]


def _free_parts(
    start: dt.datetime,
    end: dt.datetime,
    taken: list[tuple[dt.datetime | None, dt.datetime | None]],
) -> list[tuple[dt.datetime, dt.datetime]]:
    """What is left of a span beside others, which are in order and do not overlap."""
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
        if partition_interval is None:
            make_leaf(cursor, own_table(parent, number), parent, unlogged=unlogged)
        else:
            make_sliced(cursor, own_table(parent, number), parent, number, unlogged=unlogged)
    if partition_interval is None:
        make_inserts_sends(cursor, own_table(MESSAGE, number), number, unlogged=unlogged)
    else:
        for start, end in time_slices(server_time(cursor), partition_interval):
            create_slice(cursor, number, start, end, unlogged=unlogged)
    for parent in PARENTS:
        cursor.execute(
            f"ALTER TABLE {parent} ATTACH PARTITION {own_table(parent, number)} "
            f"FOR VALUES IN ({number})"
        )
    grants.inherit(cursor, number)


def make_leaf(cursor: Any, name: str, parent: str, *, unlogged: bool) -> None:
    """Make a table for rows of a queue, to be attached."""
    kind = "UNLOGGED TABLE" if unlogged else "TABLE"
    cursor.execute(f"CREATE {kind} {name} (LIKE {parent} INCLUDING ALL) {_STORAGE}")


def make_sliced(cursor: Any, name: str, parent: str, queue_id: int, *, unlogged: bool) -> None:
    """Make a table of slices, to be attached, that has none but the default leaf.

    It takes what no other does: a missing future leaf never fails a send.
    """
    default = f"{own_table(parent, queue_id)}_default"
    cursor.execute(
        f"CREATE TABLE {name} (LIKE {parent} INCLUDING ALL) PARTITION BY RANGE (enqueued_at)"
    )
    make_leaf(cursor, default, parent, unlogged=unlogged)
    if parent == MESSAGE:
        make_inserts_sends(cursor, default, queue_id, unlogged=unlogged)
        make_inserts_sends(cursor, name, queue_id, unlogged=unlogged)
    cursor.execute(f"ALTER TABLE {name} ATTACH PARTITION {default} DEFAULT")


def create_slice(
    cursor: Any,
    queue_id: int,
    start: dt.datetime,
    end: dt.datetime,
    *,
    unlogged: bool = False,
    parents: tuple[str, str] | None = None,
) -> Leaf:
    """Make and attach the leaves of one span of time, for messages and for their outcomes.

    Inside the caller's transaction, so that there are both or none. ``parents`` are the queue's
    two partitioned tables, where they have other names than usual. Attaching takes SHARE UPDATE
    EXCLUSIVE on them, which stops nobody, and for the moment of looking through the default
    leaves ACCESS EXCLUSIVE on those: set ``lock_timeout``, and see to it that they are small.

    Raises what PostgreSQL does: CheckViolation when a default leaf has rows of that span,
    InvalidObjectDefinition when another slice overlaps it.
    """
    utc = start.astimezone(dt.timezone.utc)
    made = []
    usual = _own_tables(queue_id)
    for parent, table in zip(parents or usual, usual, strict=True):
        leaf = f"{table}_p{utc:%Y%m%d%H%M%S}"
        make_leaf(cursor, leaf, parent, unlogged=unlogged)
        made.append((parent, leaf))
    # A statement fires the trigger of the table it names, and no other.
    make_inserts_sends(cursor, made[0][1], queue_id, unlogged=unlogged)
    for parent, leaf in made:
        cursor.execute(
            f"ALTER TABLE {parent} ATTACH PARTITION {leaf} "
            f"FOR VALUES FROM ('{start.isoformat()}') TO ('{end.isoformat()}')"
        )
    return Leaf(made[0][1], made[1][1], True, start, end)


def lock_slices(cursor: Any, queue_id: int) -> None:
    """Let one at a time change which slices a queue has, and hinder nobody else."""
    message, archive = _own_tables(queue_id)
    cursor.execute(f"LOCK TABLE ONLY {message}, ONLY {archive} IN SHARE UPDATE EXCLUSIVE MODE")


def lock_slice_alone(cursor: Any, queue_id: int, leaf: Leaf) -> bool:
    """Take every lock that dropping a slice needs; False when it is no slice of the queue any more.

    Until the end of the transaction nobody can use the queue's tables: set ``lock_timeout``, and
    be quick.
    """
    default = [found for found in leaves(cursor, queue_id) if not found.is_slice]
    message, archive = _own_tables(queue_id)
    tables = [f"ONLY {message}", f"ONLY {archive}"]
    for each in [*default, leaf]:
        tables += [each.message, each.archive]
    cursor.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")
    return leaf in leaves(cursor, queue_id)


def drop_slice(cursor: Any, leaf: Leaf) -> None:
    """Drop the leaves of one span, messages and outcomes."""
    cursor.execute(f"DROP TABLE {leaf.message}, {leaf.archive}")


def leaves(cursor: Any, queue_id: int) -> list[Leaf]:
    """The leaves that a queue has now: its slices in the order of time, and its default leaf.

    They are known by their bounds and not by their names. A slice of messages without a slice of
    outcomes for the same span, as in the midst of a change, is left out.
    """
    message, archive = _own_tables(queue_id)
    cursor.execute(
        "SELECT parent.relname, leaf.relname, bound = 'DEFAULT', "
        f"{_MICROSECONDS.format(_bound('FROM'))}, {_MICROSECONDS.format(_bound('TO'))} "
        "FROM pg_class parent "
        "LEFT JOIN (pg_inherits i JOIN pg_class leaf ON leaf.oid = i.inhrelid "
        "CROSS JOIN LATERAL pg_get_expr(leaf.relpartbound, leaf.oid) AS b (bound)) "
        "ON i.inhparent = parent.oid "
        # One that is dropped at this moment has no bound any more.
        "WHERE parent.oid IN (to_regclass(%s), to_regclass(%s)) "
        "AND (leaf.oid IS NULL OR bound IS NOT NULL)",
        [message, archive],
    )
    found: dict[str, dict[tuple[Any, ...], str]] = {message: {}, archive: {}}
    for parent, leaf, is_default, *bounds in cursor.fetchall():
        start, end = (None if bound is None else moment(bound) for bound in bounds)
        if leaf is None:
            found[parent][True, None, None] = parent
        else:
            found[parent][is_default, start, end] = leaf
    both = found[message].keys() & found[archive].keys()
    first = dt.datetime.min.replace(tzinfo=dt.timezone.utc)
    return [
        Leaf(found[message][key], found[archive][key], not key[0], key[1], key[2])
        for key in sorted(both, key=lambda key: (key[0], key[1] or first))
    ]


def _bound(side: str) -> str:
    return f"substring(bound FROM $${side} \\('([^']+)'\\)$$)::timestamptz"


def own_table(parent: str, queue_id: int) -> str:
    """What a queue has of a parent: a leaf, or a table of slices."""
    return f"{parent}_q{int(queue_id)}"


def _own_tables(queue_id: int) -> tuple[str, str]:
    return own_table(MESSAGE, queue_id), own_table(ARCHIVE, queue_id)


def make_inserts_sends(cursor: Any, leaf: str, queue_id: int, *, unlogged: bool) -> None:
    """Let an INSERT into a table of messages make them ready, and wake consumers."""
    cursor.execute(
        f"CREATE TRIGGER pgqueue_message_inserted AFTER INSERT ON {leaf} "
        f"REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT "
        f"EXECUTE FUNCTION pgqueue_message_inserted('{int(queue_id)}', '{unlogged}')"
    )


def drop_leaves(cursor: Any, queue_id: int) -> None:
    """Drop what one queue has of its own. Takes ACCESS EXCLUSIVE on the parents."""
    for parent in PARENTS:
        cursor.execute(f"DROP TABLE IF EXISTS {own_table(parent, queue_id)}")
    cursor.execute(f"DROP SEQUENCE IF EXISTS pgqueue_wake_q{int(queue_id)}")
