"""Builds the SQL that makes the schema's functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from django_pgqueue.ddl import grants
from django_pgqueue.engine.arguments import LONGEST, SHORTEST
from django_pgqueue.engine.statements import load
from django_pgqueue.maintenance import tables
from django_pgqueue.pgmq.statements import FUNCTIONS, PINNED, SOME_ID, create

__all__ = ["functions", "quoted"]

# Matches a public function's CREATE up to its body. Its search path is inserted there.
_PUBLIC = re.compile(r"FUNCTION pgmq\.(?!_)\w+\([^$]*?LANGUAGE (?:plpgsql|sql)[^$]*?(?= AS \$\$)")

_MESSAGES = "SETOF pgmq.message_record"
_READ = "queue_name text, vt integer, qty integer"
_POLL = "max_poll_seconds integer DEFAULT 5, poll_interval_ms integer DEFAULT 100"
_GROUPED = {"read_grouped": "groups", "read_grouped_rr": "rounds", "read_grouped_head": "heads"}

_NOW = "clock_timestamp()"

# SQL that converts a delay to a time, by the delay's type. A value without a type counts as text.
_DELAYS = {
    "integer": "clock_timestamp() + make_interval(secs => {})",
    "timestamptz": "{}",
    "text": "pgmq._moment({})",
}


def functions(queue_model: Any, schema: str, live: str) -> str:
    """Return SQL that makes the internal types, the functions and the views, or replaces them.

    Arguments:
        queue_model: the model whose defaults are the settings of a new queue.
        schema: the schema of the queues' tables.
        live: the query of the view ``pgqueue_live``.
    """
    fields = [
        field
        for field in queue_model._meta.concrete_fields
        if field.has_default() and field.name != "unlogged"
    ]
    texts = {
        "statements": "\n".join(map(create, FUNCTIONS)),
        "columns": ", ".join(field.column for field in fields),
        "values": ", ".join(str(field.get_default()) for field in fields),
        "create_logged": _tables(unlogged=False),
        "create_unlogged": _tables(unlogged=True),
        "inherited": grants.INHERITED.replace("%(queue_id)s", "made"),
        "live": live,
        "span": f"'{SHORTEST.total_seconds()} s' AND '{LONGEST.days} days'",
        "pinned": PINNED,
        "settle": "\n".join(
            load("settle", __package__).replace("{operation}", each)
            for each in ("archive", "delete")
        ),
        "overloads": "\n".join((*_sends(), *_reads(), *_set_vts())),
    }
    text = load("functions", __package__)
    for name, value in texts.items():
        text = text.replace(f"{{{name}}}", value)
    return _PUBLIC.sub(rf"\g<0> SET search_path = {schema}, pg_temp", text)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _sends() -> Iterator[str]:
    """Yield the sends with fewer arguments, or with a delay of another type."""
    for name, first, kind, returns in (
        ("send", "queue_name text, msg jsonb", "jsonb", "SETOF bigint"),
        ("send_batch", "queue_name text, msgs jsonb[]", "jsonb[]", "SETOF bigint"),
        (
            "send_batch_topic",
            "routing_key text, msgs jsonb[]",
            "jsonb[]",
            "TABLE (queue_name text, msg_id bigint)",
        ),
    ):
        for headers, given in (("", "NULL"), (f", headers {kind}", "$3")):
            yield _calling(name, first + headers, returns, f"{name}($1, $2, {given}, {_NOW})")
            for delay, moment in _DELAYS.items():
                if (given, delay) != ("$3", "timestamptz"):
                    parameters = f"{first}{headers}, delay {delay}"
                    time = moment.format(f"${parameters.count(',') + 1}")
                    yield _calling(name, parameters, returns, f"{name}($1, $2, {given}, {time})")


def _reads() -> Iterator[str]:
    """Yield the grouped reads, and the polls."""
    condition = ", conditional jsonb DEFAULT '{}'"
    call = "_poll('read', $1, $2, $3, $4, $5, $6)"
    yield _calling("read_with_poll", f"{_READ}, {_POLL}{condition}", _MESSAGES, call)
    for name, kind in _GROUPED.items():
        yield _calling(name, _READ, _MESSAGES, f"_grouped($1, $2, $3, '{kind}')")
        call = f"_poll('{kind}', $1, $2, $3, $4, $5)"
        yield _calling(f"{name}_with_poll", f"{_READ}, {_POLL}", _MESSAGES, call)


def _set_vts() -> Iterator[str]:
    for ids, value in (("msg_id bigint", "ARRAY[$2]"), ("msg_ids bigint[]", "$2")):
        for kind, delay in _DELAYS.items():
            if (value, kind) != ("$2", "timestamptz"):
                parameters = f"queue_name text, {ids}, vt {kind}"
                call = f"set_vt($1, {value}, {delay.format('$3')})"
                yield _calling("set_vt", parameters, _MESSAGES, call)
    # An untyped msg_id arrives as text: one id, or an array such as {1,2}.
    call = "set_vt($1, string_to_array(btrim($2, '{}'), ',')::bigint[], $3)"
    yield _calling("set_vt", "queue_name text, msg_id text, vt text", _MESSAGES, call)


def _calling(name: str, parameters: str, returns: str, call: str) -> str:
    return (
        f"CREATE OR REPLACE FUNCTION pgmq.{name}({parameters}) RETURNS {returns} "
        f"LANGUAGE plpgsql AS $$ BEGIN RETURN QUERY SELECT * FROM pgmq.{call}; END $$;"
    )


class _Recorder:
    """A cursor that records statements. Queries find nothing."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def execute(self, statement: str, params: Any = None) -> None:
        if not statement.lstrip().startswith("SELECT"):
            self.statements.append(statement % tuple(params) if params else statement)

    def fetchone(self) -> tuple[bool]:
        return (False,)

    def fetchall(self) -> list[Any]:
        return []


def _tables(*, unlogged: bool) -> str:
    """Return an SQL array of statements that make a queue's tables; ``%1$s`` is the queue's id."""
    recorder = _Recorder()
    tables.create_tables(recorder, SOME_ID, unlogged=unlogged)
    texts = [text.replace("%", "%%").replace(str(SOME_ID), "%1$s") for text in recorder.statements]
    return f"ARRAY[{', '.join(map(quoted, texts))}]"
