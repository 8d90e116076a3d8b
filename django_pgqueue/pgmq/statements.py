"""Makes SQL functions of the engine's statements.

Each function has the parameters of its statement, and the id of the queue. ``p_clock`` is the
time in place of ``statement_timestamp()``, which stands still while a client polls.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from django_pgqueue.ddl.names import table_names
from django_pgqueue.engine.statements import Part, compose

__all__ = ["FUNCTIONS", "create"]

_TYPES = {
    "after": "interval",
    "at": "timestamptz",
    "alone": "boolean",
    "batch": "bigint",
    "batched": "boolean",
    "bodies": "jsonb",
    "body": "jsonb",
    "conditional": "jsonb",
    "due_after": "float8",
    "errors": "text[]",
    "groups": "integer",
    "heads": "bigint[]",
    "headers": "jsonb",
    "heed": "boolean",
    "ids": "bigint[]",
    "in_flight": "boolean",
    "in_rounds": "boolean",
    "max_deliveries": "integer",
    "members": "text[]",
    "priority": "smallint",
    "process_id": "integer",
    "qty": "bigint",
    "ran": "integer",
    "rank": "smallint",
    "read_ats": "bigint[]",
    "read_cts": "integer[]",
    "reason": "text",
    "results": "text[]",
    "source": "text",
    "state": "text",
    "vt": "interval",
}
_ID = "TABLE (id bigint)"
_DELIVERY = "SETOF pgmq._delivery"
_READ = (
    "TABLE (note text, id bigint, read_ct integer, read_at bigint, body jsonb, headers jsonb, "
    "enqueued_at timestamptz, priority smallint, group_key text, attempts integer, vt bigint, "
    "first_read_at bigint, scheduled_at timestamptz)"
)

_PARAMETER = re.compile(r"%\((\w+)\)s")
_CLOCK = "statement_timestamp()"
# Stands for the queue's id in a statement until it is known.
_SOME_ID = 987654321


@dataclass(frozen=True)
class Function:
    """A function ``pgmq._<name>`` that runs a statement.

    A ``dynamic`` one names the queue's own tables, so it is planned at each call. ``types`` are
    parameters whose type is not the usual one.
    """

    name: str
    statement: str
    returns: str = _ID
    dynamic: bool = True
    names: Mapping[str, object] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)


# Bodies are read when it is known which messages are leased.
_NO_BODIES = {
    "read/bodies": "CROSS JOIN (SELECT NULL::jsonb AS body, NULL::jsonb AS headers, "
    "NULL::timestamptz AS scheduled_at) m"
}
_NO_FENCE = {"settle/fence": "true"}
_ANY_BODY = {"any_body": "true", "message": "(SELECT NULL::bigint AS id, NULL::jsonb AS body)"}
_DEAD = {"dead_message": "pgqueue_message_q%2$s", "dead_queue_id": "%2$s"}

FUNCTIONS = (
    Function("send", "send/send", types={"group": "text"}),
    Function("send_batch", "send/send_batch", types={"group": "text[]"}),
    Function(
        "read_each",
        "read/read_ready",
        _DELIVERY,
        dynamic=False,
        names={**_NO_BODIES, "leased": Part("read/lease_each")},
        types={"after": "bigint"},
    ),
    Function(
        "read_batch",
        "read/read_ready",
        _DELIVERY,
        dynamic=False,
        names={**_NO_BODIES, "leased": Part("read/lease_batch")},
        types={"after": "bigint"},
    ),
    Function("read_due", "read/read", _READ, dynamic=False, names=_NO_BODIES | _ANY_BODY),
    Function("read_matching", "read/read", _READ, names={**_NO_BODIES, "any_body": "false"}),
    Function("heads_needed", "read/heads_needed", "TABLE (heads integer)", dynamic=False),
    Function("follow", "read/follow", _DELIVERY, dynamic=False, names=_NO_BODIES),
    Function("promote", "groups/promote", "TABLE (heads bigint, rechecks bigint)", dynamic=False),
    Function("set_back", "groups/set_back", dynamic=False),
    Function("fail", "settle/fail"),
    Function("dead_letter", "settle/dead_letter", names=_DEAD, types={"dead_id": "integer"}),
    Function("archive_batch", "leases/archive_batch"),
    Function("archive_held", "settle/archive", names=_NO_FENCE),
    Function("archive_by_id", "settle/archive_by_id"),
    Function("delete_held", "settle/delete", names=_NO_FENCE),
    Function("delete_by_id", "settle/delete_by_id"),
    Function("set_vt_held", "settle/set_vt", dynamic=False, names=_NO_FENCE),
    Function("set_vt_by_id", "settle/set_vt_by_id"),
    Function("unfold", "leases/unfold", "TABLE (number bigint)", dynamic=False),
    Function("purge", "settle/purge", "TABLE (number bigint)"),
)


def create(function: Function) -> str:
    """The CREATE statement of one function. Every parameter but the queue's id has a default."""
    tables: dict[str, object] = dict(table_names(_SOME_ID)) | {"of": _SOME_ID}
    names = {**tables, "own_transaction": "false", **function.names}
    text = re.sub("^--.*\n", "", compose(function.statement, names), flags=re.M).rstrip()
    types = {**_TYPES, **function.types}
    used = sorted({*_PARAMETER.findall(text), *({"dead_id"} & types.keys())})
    clock = _CLOCK in text
    parameters = ["q_id integer", *(f"p_{name} {types[name]} = NULL" for name in used)]
    if clock:
        parameters.append("p_clock timestamptz = clock_timestamp()")
    head = f"CREATE OR REPLACE FUNCTION pgmq._{function.name}({', '.join(parameters)}) "
    head += f"RETURNS {function.returns} LANGUAGE plpgsql"
    if not function.dynamic:
        text = _PARAMETER.sub(r"p_\1", text).replace(_CLOCK, "p_clock")
        text = text.replace(str(_SOME_ID), "q_id").replace("%%", "%")
        # Sessions keep plans: one made while a table was empty would scan it for good.
        return (
            f"{head} SET enable_seqscan = off AS $pgmq$\n#variable_conflict use_column\nBEGIN\n"
            f"RETURN QUERY\n{text};\nEND $pgmq$;\n"
        )
    places = {name: f"${place}" for place, name in enumerate(used, 1)}
    text = _PARAMETER.sub(lambda found: places[found[1]], text)
    text = text.replace(_CLOCK, f"${len(used) + 1}").replace(str(_SOME_ID), "%1$s")
    values = [f"p_{name}" for name in used] + ["p_clock"] * clock
    ids = "q_id, p_dead_id" if "dead_id" in used else "q_id"
    return (
        f"{head} AS $pgmq$\nBEGIN\nRETURN QUERY EXECUTE format($sql$\n{text}\n$sql$, {ids})\n"
        f"USING {', '.join(values)};\nEND $pgmq$;\n"
    )
