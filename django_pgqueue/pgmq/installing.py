"""Installs and removes the schema ``pgmq``."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from typing import Any

from django_pgqueue.ddl import grants
from django_pgqueue.errors import ForeignSchema
from django_pgqueue.maintenance import tables
from django_pgqueue.pgmq.statements import FUNCTIONS, create

__all__ = ["dropped", "install", "installed", "remove"]

# The comment by which our schema is known.
_OURS = "PGMQ's functions on the queues of django_pgqueue. Remove: manage.py pgqueue_pgmq remove"

# Stands for the id of a queue that is not made yet.
_SOME_ID = 987654321

_INTERNAL = re.compile(r"\bpgmq\._\w+")
_HEADER = re.compile(
    r"(?P<start>FUNCTION pgmq\.(?P<name>\w+)\([^$]*?LANGUAGE (?:plpgsql|sql)[^$]*?)(?= AS \$\$)"
)


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

    Public functions keep their oid and their rights. Internal ones, and types, have a mark of their
    text in their names. The last ones stay beside the new ones: a call that is under way goes on
    with those that it began with. ``queue_model`` has the settings of a new queue.

    Raises ForeignSchema.
    """
    is_new = not installed(cursor)
    # A consumer has no right on the view pgqueue_live, but on its tables.
    cursor.execute(
        "SELECT quote_ident(relnamespace::regnamespace::text), "
        "rtrim(pg_get_viewdef('pgqueue_live'::regclass), ';') "
        "FROM pg_class WHERE oid = 'pgqueue_queue'::regclass"
    )
    schema, live = cursor.fetchone()
    if is_new:
        cursor.execute("CREATE SCHEMA pgmq")
        cursor.execute(f"COMMENT ON SCHEMA pgmq IS {_quoted(_OURS)}")
        cursor.execute(_read("tables"))
    text = _text(queue_model, schema, live)
    mark = f"_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    cursor.execute(
        "SELECT substring(prosrc FROM 'pgmq\\._open(_[0-9a-f]{8})') FROM pg_proc "
        "WHERE oid = to_regprocedure('pgmq.pop(text, integer)')"
    )
    last = cursor.fetchone() or (mark,)
    before = _functions(cursor)
    cursor.execute(_INTERNAL.sub(rf"\g<0>{mark}", text))
    _drop_older(cursor, before, (mark, *last))
    cursor.execute(f"SELECT pgmq._views{mark}(queue_name) FROM pgmq.list_queues()")


def _drop_older(cursor: Any, before: dict[str, str], marks: tuple[str, ...]) -> None:
    """Drop the functions that were not replaced, except internal ones with one of these marks."""
    now = _functions(cursor)
    for function in before.keys() & now.keys():
        if before[function] == now[function] and not any(f"{mark}(" in function for mark in marks):
            cursor.execute(f"DROP FUNCTION {function}")
    cursor.execute(
        "SELECT oid::regtype::text FROM pg_type WHERE typnamespace = 'pgmq'::regnamespace "
        "AND typname ~ '^_(opened|delivery)_' AND right(typname, 9) <> ALL(%s)", [list(marks)]
    )
    for (name,) in cursor.fetchall():
        cursor.execute(f"DROP TYPE {name}")


def remove(cursor: Any) -> bool:
    """Remove the schema with all that it keeps. Returns False if it is not installed.

    Messages and queues stay. Raises ForeignSchema.
    """
    if not installed(cursor):
        return False
    cursor.execute("DROP SCHEMA pgmq CASCADE")
    return True


def dropped(cursor: Any) -> list[int]:
    """The ids of queues that clients have dropped, whose tables are still there."""
    cursor.execute("SELECT to_regclass('pgmq.own_queue') IS NOT NULL")
    if not cursor.fetchone()[0]:
        return []
    cursor.execute(
        "SELECT q.id FROM pgqueue_queue q JOIN pgmq.own_queue o "
        "ON o.queue_id = q.id AND o.created_at = q.created_at WHERE o.dropped"
    )
    return [pk for (pk,) in cursor.fetchall()]


def _functions(cursor: Any) -> dict[str, str]:
    """The functions by their signatures, with a value that changes when one is replaced."""
    cursor.execute(
        "SELECT p.oid::regprocedure::text, concat(p.xmin, p.ctid) FROM pg_proc p "
        "WHERE p.pronamespace = 'pgmq'::regnamespace AND p.proname <> 'topic_regex'"
    )
    return dict(cursor.fetchall())


def _text(queue_model: Any, schema: str, live: str) -> str:
    """The statements that make the types, functions and views, without the release's mark."""
    fields = [
        field
        for field in queue_model._meta.concrete_fields
        if field.has_default() and field.name != "unlogged"
    ]
    texts = {
        "columns": ", ".join(field.column for field in fields),
        "values": ", ".join(str(field.get_default()) for field in fields),
        "create_logged": _made(unlogged=False),
        "create_unlogged": _made(unlogged=True),
        "inherited": grants.INHERITED.replace("%(queue_id)s", "made"),
        "send_overloads": _overloads("send", "queue_name text, msg jsonb", "jsonb"),
        "send_batch_overloads": _overloads(
            "send_batch", "queue_name text, msgs jsonb[]", "jsonb[]"
        ),
        "send_batch_topic_overloads": _overloads(
            "send_batch_topic",
            "routing_key text, msgs jsonb[]",
            "jsonb[]",
            "TABLE (queue_name text, msg_id bigint)",
        ),
        "set_vt_overloads": _set_vt_overloads(),
        "grouped_reads": _grouped_reads(),
        "statements": "\n".join(map(create, FUNCTIONS)),
        "live": live,
    }
    text = _read("functions")
    for name, value in texts.items():
        text = text.replace(f"{{{name}}}", value)
    return _HEADER.sub(lambda found: _with_path(found, schema), text)


def _with_path(found: re.Match[str], schema: str) -> str:
    if found["name"].startswith("_"):
        return found["start"]
    return f"{found['start']} SET search_path = {schema}, pg_temp"


def _overloads(name: str, fixed: str, headers: str, returns: str = "SETOF bigint") -> str:
    """The functions with fewer arguments than all, and with a delay of other types.

    A client that names no types finds the one whose delay is text.
    """
    ends = {"": ("clock_timestamp()", "")}
    for kind in ("integer", "timestamptz", "text"):
        ends[f", delay {kind}"] = (_DELAYS[kind], kind)
    made = []
    for given in (False, True):
        for more, (delay, kind) in ends.items():
            if given and kind == "timestamptz":
                continue  # the function that the others call
            parameters = f"{fixed}{f', headers {headers}' if given else ''}{more}"
            last = f"${parameters.count(',') + 1}"
            values = f"$1, $2, {'$3' if given else 'NULL'}, {delay.replace('$n', last)}"
            made.append(
                f"CREATE OR REPLACE FUNCTION pgmq.{name}({parameters}) RETURNS {returns} "
                f"LANGUAGE plpgsql AS $$ BEGIN RETURN QUERY SELECT * FROM pgmq.{name}({values}); "
                "END $$;"
            )
    return "\n".join(made)


_DELAYS = {
    "integer": "clock_timestamp() + make_interval(secs => $n)",
    "timestamptz": "$n",
    "text": "pgmq._moment($n)",
}


def _set_vt_overloads() -> str:
    return "\n".join(
        f"CREATE OR REPLACE FUNCTION pgmq.set_vt(queue_name text, {ids}, vt {kind}) "
        "RETURNS SETOF pgmq.message_record LANGUAGE plpgsql AS $$ BEGIN RETURN QUERY "
        f"SELECT * FROM pgmq.set_vt($1, {value}, {delay.replace('$n', '$3')}); END $$;"
        for ids, value in (("msg_id bigint", "ARRAY[$2]"), ("msg_ids bigint[]", "$2"))
        for kind, delay in _DELAYS.items()
        if not (kind == "timestamptz" and value == "$2")
    )


def _grouped_reads() -> str:
    """The reads by group, and each read as a poll. A poll's function has the read's last arguments."""
    made = []
    poll = "max_poll_seconds integer DEFAULT 5, poll_interval_ms integer DEFAULT 100"
    for name, kind in _READS.items():
        more, condition = (", conditional jsonb DEFAULT '{}'", "$6") if kind == "read" else ("", "NULL")
        if kind != "read":
            made.append((name, "", f"_grouped($1, $2, $3, '{kind}')"))
        made.append((f"{name}_with_poll", f", {poll}{more}", f"_poll('{kind}', $1, $2, $3, $4, $5, {condition})"))
    return "\n".join(
        f"CREATE OR REPLACE FUNCTION pgmq.{name}(queue_name text, vt integer, qty integer{more}) "
        "RETURNS SETOF pgmq.message_record LANGUAGE plpgsql AS $$ BEGIN RETURN QUERY SELECT * "
        f"FROM pgmq.{call}; END $$;"
        for name, more, call in made
    )


_READS = {"read": "read", "read_grouped": "groups", "read_grouped_rr": "rounds", "read_grouped_head": "heads"}


class _Recorder:
    """A cursor that keeps the statements, and finds nothing."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def execute(self, statement: str, params: Any = None) -> None:
        if not statement.lstrip().startswith("SELECT"):
            self.statements.append(statement % tuple(params) if params else statement)

    def fetchall(self) -> list[Any]:
        return []


def _made(*, unlogged: bool) -> str:
    """An array of the statements that make a queue's tables, with ``%1$s`` for the queue's id."""
    recorder = _Recorder()
    tables.create_tables(recorder, _SOME_ID, unlogged=unlogged)
    texts = [text.replace("%", "%%").replace(str(_SOME_ID), "%1$s") for text in recorder.statements]
    return f"ARRAY[{', '.join(map(_quoted, texts))}]"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _read(name: str) -> str:
    return files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
