"""Generates SQL functions from the engine's statements.

The parameters of a function are the queue's id and those of its statement. ``p_clock`` replaces
``statement_timestamp()``, which does not advance while a client polls.

Sessions cache the plans of statements on the tables that all queues share. Statements that name the
queue's own tables are planned at each call. If such a statement first deletes from a shared table,
it is split, and only its second half is planned at each call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from django_pgqueue.engine.columns import COMMON
from django_pgqueue.engine.read.reading import BATCHED, EACH, limit_names
from django_pgqueue.engine.statements import Part, render

__all__ = ["FUNCTIONS", "PINNED", "SOME_ID", "create"]

# Why enable_seqscan is off, ddl/pinned.sql says. A bitmap scan would sort the whole table.
PINNED = "SET enable_seqscan = off SET enable_bitmapscan = off"

# The types of parameters.
_TYPES = {
    name: kind
    for kind, names in {
        "bigint": "batch qty",
        "bigint[]": "ids read_ats",
        "boolean": "alone heed in_flight in_rounds",
        "integer": "groups max_deliveries process_id ran",
        "integer[]": "read_cts",
        "interval": "after vt",
        "jsonb": "bodies body conditional headers results",
        "text": "reason source state",
        "text[]": "errors passed",
        "timestamptz": "at",
    }.items()
    for name in names.split()
} | {column.name: column.type for column in COMMON}
_ID = "TABLE (id bigint)"
_DELIVERY = "SETOF pgmq._delivery"

_PARAMETER = re.compile(r"%\((\w+)\)s")
_CLOCK = "statement_timestamp()"
# A placeholder for the queue's id, which is known only when the function is called.
SOME_ID = 987654321


@dataclass(frozen=True)
class Function:
    """A function ``pgmq._<name>`` that runs a statement.

    Arguments:
        names: values of placeholders in the statement's text.
        types: types of parameters, where they differ from ``_TYPES``.
        values: SQL that replaces parameters by fixed values.
    """

    name: str
    statement: str
    returns: str = _ID
    names: Mapping[str, object] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)


# Leaves bodies, expiry and rechecks out of a read: functions.sql looks them up itself, bodies and
# expiry only for leased messages.
_NO_BODIES = {
    "read_columns": "",
    "no_columns": "",
    "read/turn": "",
    "read/note": "NULL::text",
    "read/bodies": "",
}
_NO_FENCE = {"settle/fence": Part("settle/chosen")}
_ANY_BODY = {"any_body": "true", "message": "(SELECT NULL::bigint AS id, NULL::jsonb AS body)"}
_MATCHING = {"any_body": "false"}
_LIMITS = limit_names(whole=True, slots=True, rate=True)
_DEAD = {"dead_message": "pgqueue_message_q%2$s", "dead_queue_id": "%2$s"}

# Reads from the start of the queue, not from the last message that this session took.
_FROM_START = {"rank": "(-101)::smallint", "after": "0", "due_after": "-6e16", "rechecked": "0"}

FUNCTIONS = (
    Function("send", "send/send", types={"group": "text"}),
    Function("send_batch", "send/send_batch", types={"group": "text[]"}),
    *(
        Function(
            name,
            "read/read_ready",
            _DELIVERY,
            names={**_NO_BODIES, **parts},
            values={**_FROM_START, **values},
        )
        for name, parts, values in (
            ("read_each", EACH, {}),
            ("read_batch", BATCHED, {}),
            ("take_ready", {"leased": "leased AS (SELECT)"}, {"vt": "interval '0'"}),
        )
    ),
    *(
        Function(name, "read/read", _DELIVERY, names=_NO_BODIES | condition | limits)
        for name, condition, limits in (
            ("read_due", _ANY_BODY, {}),
            ("read_matching", _MATCHING, {}),
            ("read_limited", _ANY_BODY, _LIMITS),
            ("read_limited_matching", _MATCHING, _LIMITS),
        )
    ),
    Function("heads_needed", "read/heads_needed", "TABLE (heads integer)"),
    Function("follow", "read/follow", _DELIVERY, names=_NO_BODIES),
    Function(
        "promote",
        "groups/promote",
        "TABLE (heads bigint, rechecked bigint, more boolean, passed text[])",
        values={"rechecked": "0"},
    ),
    Function("set_back", "groups/set_back"),
    Function("fail", "settle/fail"),
    Function("expire", "settle/expire", names=_NO_FENCE),
    Function("dead_letter", "settle/dead_letter", names=_DEAD, types={"dead_id": "integer"}),
    Function("archive_held", "settle/archive", names=_NO_FENCE),
    Function("archive_by_id", "settle/archive_by_id"),
    Function("delete_held", "settle/delete", names=_NO_FENCE),
    Function("delete_by_id", "settle/delete_by_id"),
    Function("set_vt_held", "settle/set_vt", names=_NO_FENCE),
    Function("set_vt_by_id", "settle/set_vt_by_id"),
    Function("unfold", "leases/unfold", "TABLE (number bigint)"),
    Function("purge", "settle/purge", "TABLE (number bigint)"),
)

# Matches a statement that deletes rows of a shared table, and then uses their columns.
_HALVES = re.compile(
    r"WITH gone AS \(\s+DELETE FROM (?P<table>\w+)(?P<where>(?:(?!RETURNING).)*)"
    r"RETURNING [\w,\s]*\)\n"
    r"(?P<rest>.*)",
    re.S,
)


def create(function: Function) -> str:
    """Return the CREATE statement of a function. Only the queue's id has no default."""
    text = render(function.statement, SOME_ID, tuple(function.names.items()))
    text = re.sub("^--.*\n", "", text, flags=re.M).rstrip()
    text = _PARAMETER.sub(lambda found: function.values.get(found[1], found[0]), text)
    types = {**_TYPES, **function.types}
    used = sorted({*_PARAMETER.findall(text), *({"dead_id"} & types.keys())})
    parameters = ["q_id integer", *(f"p_{name} {types[name]} = NULL" for name in used)]
    if _CLOCK in text:
        parameters.append("p_clock timestamptz = clock_timestamp()")
    declared = ""
    if f"_q{SOME_ID}" not in text:
        body = f"RETURN QUERY {_kept(text)};"
    elif halves := _HALVES.fullmatch(text):
        declared = f"DECLARE p_gone {halves['table']}[];\n"
        rest = halves["rest"].replace("FROM gone", "FROM unnest(%(gone)s) AS gone")
        body = (
            f"WITH gone AS (DELETE FROM {halves['table']}{_kept(halves['where'])}"
            f"RETURNING {halves['table']} AS row) SELECT array_agg(row) INTO p_gone FROM gone;\n"
            f"IF p_gone IS NOT NULL THEN\n{_planned(rest)}\nEND IF;"
        )
    else:
        body = _planned(text)
    return (
        f"CREATE OR REPLACE FUNCTION pgmq._{function.name}({', '.join(parameters)}) "
        f"RETURNS {function.returns} LANGUAGE plpgsql {PINNED} AS $pgmq$\n"
        f"#variable_conflict use_column\n{declared}BEGIN\n{body}\nEND $pgmq$;\n"
    )


def _kept(text: str) -> str:
    """Return a statement that uses the function's parameters. The session caches its plan."""
    text = _PARAMETER.sub(r"p_\1", text).replace(_CLOCK, "p_clock")
    return text.replace(str(SOME_ID), "q_id").replace("%%", "%")


def _planned(text: str) -> str:
    """Return an EXECUTE of a statement on the queue's own tables. It is planned at each call."""
    text = text.replace(_CLOCK, "%(clock)s")
    names = list(dict.fromkeys(_PARAMETER.findall(text)))
    text = _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", text)
    ids = "q_id, p_dead_id" if "%2$s" in text else "q_id"
    return (
        f"RETURN QUERY EXECUTE format($sql$\n{text.replace(str(SOME_ID), '%1$s')}\n$sql$, {ids}) "
        f"USING {', '.join(f'p_{name}' for name in names)};"
    )
