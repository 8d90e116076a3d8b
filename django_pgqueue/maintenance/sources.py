"""What a queue's tables have while it has subscriptions, and what a subscription's have."""

from __future__ import annotations

from typing import Any

from django_pgqueue.database.locks import milliseconds
from django_pgqueue.ddl.triggers import (
    LEAVE_TRIGGER,
    SEND_TRIGGER,
    keep_trigger,
    leave_trigger,
)
from django_pgqueue.engine.names import ARCHIVE, MESSAGE, own_table
from django_pgqueue.errors import InvalidArgument

__all__ = ["has_readers", "index", "leave", "prepare", "read_by", "refuse", "watch"]

#: The size in bytes from which a table's index is built without blocking senders.
_BIG = 32 * 2**20
#: The order in which subscriptions read, and which messages they skip: columns and condition of an
#: index on each table of a source.
_ORDER = "(enqueued_xid, id)"
_WITHDRAWN = "(id) WHERE state IN ('CANCELLED', 'REPLACED')"

# The indexes of a table whose columns are those of _ORDER; or of a table of outcomes, its partial
# index of withdrawn messages.
_FOUND = """
    SELECT i.indexrelid::regclass::text, i.indisvalid FROM pg_index i
    WHERE i.indrelid = %s::regclass AND (
        pg_get_indexdef(i.indexrelid) LIKE '%% btree (enqueued_xid, id)'
        OR pg_get_indexdef(i.indexrelid) LIKE '%% btree (id) WHERE %%CANCELLED%%')
"""


def refuse(source: Any, name: str) -> None:
    """Raise InvalidArgument if a queue cannot be the source of a subscription of this name."""
    if source.source_id is not None:
        raise InvalidArgument(
            f"queue {source.name!r} is a subscription, which has no messages of its own to read: "
            f"subscribe to its source"
        )
    if source.name.lower() == name.lower():
        raise InvalidArgument(
            f"queue {name!r} cannot subscribe to itself: name another queue as to="
        )


def has_readers(cursor: Any, queue_id: int) -> bool:
    """Whether a queue has subscriptions. The migration of their column may be still to come."""
    cursor.execute(
        "SELECT EXISTS (SELECT FROM pgqueue_queue q "
        "WHERE to_jsonb(q) ->> 'source_id' = %s::integer::text)",
        [queue_id],
    )
    return bool(cursor.fetchone()[0])


def index(cursor: Any, source_id: int, seconds: float) -> None:
    """Build the index by which subscriptions read a source, without blocking its senders.

    Call it outside a transaction. Leaves small tables to :func:`prepare`, which takes a moment. It
    does nothing if the index exists; one that an interrupted call has left is built again.

    Raises the error LOCK_NOT_AVAILABLE if it has to wait for other transactions, of any table, for
    longer than ``seconds``.
    """
    cursor.execute("SELECT current_setting('lock_timeout')")
    [usual] = cursor.fetchone()
    cursor.execute("SELECT set_config('lock_timeout', %s, false)", [milliseconds(seconds)])
    try:
        _index(cursor, source_id)
    finally:
        cursor.execute("SELECT set_config('lock_timeout', %s, false)", [usual])


def _index(cursor: Any, source_id: int) -> None:
    tables = [(table, _ORDER) for table in _leaves(cursor, source_id)]
    tables += [(table, _WITHDRAWN) for table in _leaves(cursor, source_id, ARCHIVE)]
    for table, columns in tables:
        cursor.execute("SELECT pg_relation_size(%s)", [table])
        if cursor.fetchone()[0] < _BIG:
            continue
        found = _indexes(cursor, table)
        for name, is_valid in found:
            if not is_valid:
                cursor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        if not any(is_valid for _, is_valid in found):
            cursor.execute(f"CREATE INDEX CONCURRENTLY ON {table} {columns}")


def read_by(cursor: Any, source_id: int, queue_id: int) -> None:
    """Prepare a source's tables and a new subscription's, in the caller's transaction."""
    table = own_table(MESSAGE, queue_id)
    cursor.execute(f"DROP TRIGGER {SEND_TRIGGER} ON {table}")
    cursor.execute(keep_trigger(table))
    prepare(cursor, source_id)


def prepare(cursor: Any, source_id: int) -> None:
    """Make what the tables of a source need, unless they have it.

    A missing index blocks sends to the source while it is built, and the trigger waits for the
    transactions that write to its tables: set ``lock_timeout``.
    """
    message, archive = own_table(MESSAGE, source_id), own_table(ARCHIVE, source_id)
    for table, columns in ((message, _ORDER), (archive, _WITHDRAWN)):
        found = _indexes(cursor, table)
        if not any(is_valid for _, is_valid in found):
            for name, _ in found:  # an interrupted build has left it
                cursor.execute(f"DROP INDEX {name}")
            cursor.execute(f"CREATE INDEX ON {table} {columns}")
    for table in {message, *_leaves(cursor, source_id)}:
        watch(cursor, table)


def watch(cursor: Any, table: str) -> None:
    """Let messages that leave a table of a source become its subscriptions' own."""
    cursor.execute(
        "SELECT FROM pg_trigger WHERE tgrelid = %s::regclass AND tgname = %s",
        [table, LEAVE_TRIGGER],
    )
    if cursor.fetchone() is None:
        cursor.execute(leave_trigger(table))


def leave(cursor: Any, source_id: int) -> None:
    """Remove what :func:`prepare` made for a source, if it has no subscription left."""
    if has_readers(cursor, source_id):
        return
    message, archive = own_table(MESSAGE, source_id), own_table(ARCHIVE, source_id)
    for table in (message, archive):
        for name, _is_valid in _indexes(cursor, table):
            cursor.execute(f"DROP INDEX {name}")
    for table in {message, *_leaves(cursor, source_id)}:
        cursor.execute(f"DROP TRIGGER IF EXISTS {LEAVE_TRIGGER} ON {table}")


def _leaves(cursor: Any, source_id: int, parent: str = MESSAGE) -> list[str]:
    """Return the tables that have a source's messages, or outcomes."""
    cursor.execute(
        "SELECT relid::regclass::text FROM pg_partition_tree(%s) WHERE isleaf ORDER BY 1",
        [own_table(parent, source_id)],
    )
    return [table for (table,) in cursor.fetchall()]


def _indexes(cursor: Any, table: str) -> list[tuple[str, bool]]:
    """Return the indexes of subscriptions on a table, and whether each is valid."""
    cursor.execute(_FOUND, [table])
    return list(cursor.fetchall())
