"""Installs and removes the schema ``pgmq``."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from django_pgqueue.engine.statements import load
from django_pgqueue.errors import ForeignSchema
from django_pgqueue.pgmq.functions import functions, quoted

__all__ = ["dropped", "install", "installed", "remove"]

# The comment on our schema, by which it is recognised.
_OURS = "PGMQ's functions on the queues of django_pgqueue. Remove: manage.py pgqueue_pgmq remove"

# The name of an internal function or type.
_INTERNAL = re.compile(r"\bpgmq\._\w+")


def installed(cursor: Any) -> bool:
    """Whether our schema is installed. Raises ForeignSchema if another ``pgmq`` schema is."""
    cursor.execute(
        "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = 'pgmq'"
    )
    found = cursor.fetchone()
    if found is not None and found[0] != _OURS:
        raise ForeignSchema
    return found is not None


def install(cursor: Any, queue_model: Any) -> None:
    """Install the schema, or replace its functions, in the caller's transaction.

    Public functions keep their oids and their rights. The names of internal functions and types end
    with a mark, a hash of the SQL. Functions with the previous mark stay until the next
    installation: calls that run during this installation still need them. The defaults of
    ``queue_model`` are the settings of a new queue.

    Raises ForeignSchema.
    """
    is_new = not installed(cursor)
    # The query of pgqueue_live: a consumer has rights on its tables, but not on the view.
    cursor.execute(
        "SELECT quote_ident(relnamespace::regnamespace::text), "
        "rtrim(pg_get_viewdef('pgqueue_live'::regclass), ';') "
        "FROM pg_class WHERE oid = 'pgqueue_queue'::regclass"
    )
    text = functions(queue_model, *cursor.fetchone())
    mark = f"_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    if is_new:
        cursor.execute("CREATE SCHEMA pgmq")
        cursor.execute(f"COMMENT ON SCHEMA pgmq IS {quoted(_OURS)}")
        cursor.execute(load("tables", __package__))
    before = _functions(cursor)
    cursor.execute(
        "SELECT substring(prosrc FROM 'pgmq\\._open(_[0-9a-f]{8})') FROM pg_proc "
        "WHERE oid = to_regprocedure('pgmq.pop(text, integer)')"
    )
    marks = [mark, *(cursor.fetchone() or ())]
    cursor.execute(_INTERNAL.sub(rf"\g<0>{mark}", text))
    _drop_older(cursor, before, marks)
    cursor.execute(f"SELECT pgmq._views{mark}(queue_name) FROM pgmq.list_queues()")


def _functions(cursor: Any) -> dict[str, str]:
    """Return the functions by signature, each with a value that changes if it is replaced."""
    cursor.execute(
        "SELECT oid::regprocedure::text, concat(xmin, ctid) FROM pg_proc "
        "WHERE pronamespace = 'pgmq'::regnamespace AND proname <> 'topic_regex'"
    )
    return dict(cursor.fetchall())


def _drop_older(cursor: Any, before: dict[str, str], marks: list[str]) -> None:
    """Drop functions and types without one of the marks, except functions that were replaced."""
    for function, version in _functions(cursor).items():
        if before.get(function) == version and not any(f"{mark}(" in function for mark in marks):
            cursor.execute(f"DROP FUNCTION {function}")
    cursor.execute(
        "SELECT oid::regtype::text FROM pg_type WHERE typnamespace = 'pgmq'::regnamespace "
        "AND typname ~ '^_(opened|delivery)_' AND right(typname, 9) <> ALL(%s)",
        [marks],
    )
    for (name,) in cursor.fetchall():
        cursor.execute(f"DROP TYPE {name}")


def remove(cursor: Any) -> bool:
    """Drop the schema and everything in it. Returns False if it is not installed.

    Messages and queues stay. Raises ForeignSchema.
    """
    if not installed(cursor):
        return False
    cursor.execute("DROP SCHEMA pgmq CASCADE")
    return True


def dropped(cursor: Any) -> list[int]:
    """Return the ids of queues that clients have dropped, but whose tables still exist."""
    cursor.execute("SELECT to_regclass('pgmq.own_queue') IS NOT NULL")
    if not cursor.fetchone()[0]:
        return []
    cursor.execute(
        "SELECT q.id FROM pgqueue_queue q JOIN pgmq.own_queue o "
        "ON o.queue_id = q.id AND o.created_at = q.created_at WHERE o.dropped"
    )
    return [pk for (pk,) in cursor.fetchall()]
