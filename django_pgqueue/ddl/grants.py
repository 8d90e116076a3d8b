"""Rights on the queues' tables for database roles that do not own them.

Only the server stores rights. Rights on all queues include rights on the two parent tables, which
are copied to the tables of each new queue.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from django_pgqueue.ddl import planting
from django_pgqueue.engine.columns import COLUMNS
from django_pgqueue.engine.names import MESSAGE, PARENTS, own_table

__all__ = ["INHERITED", "KINDS", "copy", "extend", "inherit", "role_exists", "statements"]

_KEPT = "SELECT, INSERT, UPDATE, DELETE"

# The columns that a sender writes: without enqueued_at, so that no sender can backdate a message.
_SENT = f"INSERT ({', '.join(each.name for each in COLUMNS if each.set_by != 'server')})"

# The columns of the audit log that a role writes: without the time and the role's name. It adds to
# the count of an operation in steps until the operation has ended.
_RECORDED = (
    "INSERT (operation, queue_id, queue_name, arguments, count, ended_at, who, place, program, "
    "host), UPDATE (count, ended_at)"
)

# The columns of a batch that its sender changes, and those that a count or a cancel changes: never
# the callback, which a consumer sends with the consumer's rights.
_SEALED = "members, sealed_at, callback_id, done_at, error"
_COUNTED = (
    f"{_SEALED}, passed, completed, failed, dead_lettered, cancelled, expired, replaced, deleted, "
    "cancelled_at, abandoned, looked_at"
)

# The rights of each kind of role, by table name without its prefix. Triggers run with the rights of
# the role whose statement fires them, so a sender needs rights on the live tables.
_SENDER = {
    "queue": "SELECT",
    "binding": "SELECT",
    "message": f"SELECT (id, expires_at), {_SENT}",
    "message_id_seq": "USAGE",
    "wake": "SELECT, UPDATE",
    # INSERT to send; SELECT on the columns that tell whether a message holds its unique key.
    "ready": "INSERT, SELECT (id, turn, queue_id, priority)",
    "deferred": "INSERT, SELECT (id, vt, queue_id, first_read_at, state)",
    "waiting": "INSERT, SELECT (id, queue_id, first_read_at, group_key)",
    "lease": "SELECT (head, tail, vt, queue_id, ids)",
    "group": "SELECT (head, queue_id, group_key, turn)",
    "recheck": "INSERT",
    "claim": _KEPT,
    "unlogged": "SELECT",
    "batch": f"SELECT, INSERT, UPDATE ({_SEALED})",
    "batch_part": "SELECT, INSERT",
}
_CONSUMER = {
    **_SENDER,
    "unlogged": "SELECT, INSERT",
    "message": f"SELECT, DELETE, {_SENT}",
    "archive": "SELECT, INSERT",
    **dict.fromkeys(("ready", "deferred", "lease", "waiting", "group", "recheck", "cursor"), _KEPT),
    "group_setting": "SELECT",
    "turn_seq": "USAGE",
    "process": _KEPT,
    "history": "SELECT, INSERT, UPDATE",
    "mark": "SELECT, INSERT",
    "attempt": "SELECT, INSERT, DELETE",
    "step": _KEPT,
    "note": _KEPT,
    "wait": _KEPT,
    "signal": _KEPT,
    "batch": f"SELECT, INSERT, DELETE, UPDATE ({_COUNTED})",
    "batch_part": _KEPT,
    "schedule": "SELECT, INSERT, UPDATE",
    "audit": f"SELECT (id, count, ended_at), {_RECORDED}",
}
_ANALYST = dict.fromkeys(
    (
        *("queue", "binding", "process", "message", "archive", "live", "message_id_seq", "wake"),
        *("ready", "deferred", "lease", "waiting", "group", "recheck", "claim", "unlogged"),
        *("rollup", "rollup_run", "lake", "export_run", "purge_mark", "attempt", "schedule"),
        *("bulk_action", "bulk_action_part", "group_setting", "history", "audit"),
        *("mark", "acknowledgement", "cursor", "step", "note", "wait", "signal"),
        *("batch", "batch_part"),
    ),
    "SELECT",
)
_OPERATOR = {
    **_ANALYST,
    **_CONSUMER,
    "archive": "SELECT, INSERT, DELETE, UPDATE (failure)",
    "queue": "SELECT, UPDATE",
    "binding": _KEPT,
    "group_setting": _KEPT,
    "schedule": _KEPT,
    "audit": f"SELECT, {_RECORDED}",
    **dict.fromkeys(("bulk_action", "bulk_action_part", "mark", "acknowledgement"), _KEPT),
    "message_id_seq": "SELECT, USAGE",
}

_SPARK = {
    **_ANALYST,
    **_CONSUMER,
    **dict.fromkeys(
        (
            *("staging", "spark_txn", "stream", "refusal"),
            *("lake", "export_run", "rollup", "rollup_run"),
        ),
        _KEPT,
    ),
    "message_id_seq": "SELECT, USAGE",
    "audit": f"SELECT, {_RECORDED}",
}

_RIGHTS = {
    "sender": _SENDER,
    "consumer": _CONSUMER,
    "operator": _OPERATOR,
    "analyst": _ANALYST,
    "spark": _SPARK,
}
KINDS = tuple(_RIGHTS)
# The kinds of roles that settle messages.
_KEEPERS = ("consumer", "operator", "spark")

# The functions of limits (slots.sql, whole_queue.sql) that reads and settlements call.
_SLOTS = (
    "spacing|group_rule|slots_of|lock_slots|look_at_slots|give_slots|end_slots|empty_slots|follow_on|"
    "close_slots|fill_slots|usual_groups|fill_usual|fill_groups|fill_some|slots_freed|may_start|"
    "started|leased|admit|admitted|need_read_committed"
)

_HEADS = "first_heads|next_heads|alive_groups|recheck_id"

# The functions of subscriptions (subscriptions.sql).
_SUBSCRIPTIONS = "shows|passed|own_snapshot|reader_asleep|leave_lease"

# The functions of reads, settlements and signals.
_READ = f"signal|may|audit|wake|sent|fall_asleep|go_on|{_HEADS}|{_SLOTS}|{_SUBSCRIPTIONS}"

# Functions that triggers, policies and statements call with the rights of the role.
_FUNCTIONS = {
    "sender": "^pgqueue_(wake|sent|may)$",
    "consumer": f"^pgqueue_({_READ})$",
    "operator": f"^pgqueue_(apply_limits|{_READ})$",
    "analyst": "^pgqueue_(may|spacing|group_rule|shows|passed)$",
    "spark": f"^pgqueue_({_READ})$",
}

# A right that identifies each kind of role, the widest kind first. Every database has these tables.
_MARKS = (
    ("operator", "pgqueue_queue", "UPDATE"),
    ("spark", "pgqueue_staging", "INSERT"),
    ("consumer", "pgqueue_deferred", "DELETE"),
    ("analyst", "pgqueue_live", "SELECT"),
    ("sender", "pgqueue_ready", "INSERT"),
)

_RIGHTS_OF_OTHERS = """(
    SELECT c.oid AS id,
           a.privilege_type || coalesce(' (' || quote_ident(a.attname) || ')', '') AS privilege,
           CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
               AS role,
           CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END AS option
    FROM pg_class c CROSS JOIN LATERAL (
        SELECT NULL::name AS attname, e.* FROM aclexplode(c.relacl) e UNION ALL
        SELECT t.attname, e.* FROM pg_attribute t, aclexplode(t.attacl) e
        WHERE t.attrelid = c.oid AND NOT t.attisdropped) a
    WHERE a.grantee <> c.relowner) r"""

#: The GRANTs on a new queue's tables. A role that may INSERT is also allowed to wake consumers.
INHERITED = f"""
SELECT concat('GRANT ', privilege, ' ON ', p.parent, '_q', %(queue_id)s::integer, ' TO ',
              role, option)
FROM unnest(ARRAY{list(PARENTS)}) AS p (parent)
JOIN {_RIGHTS_OF_OTHERS} ON r.id = p.parent::regclass
UNION
SELECT concat('GRANT ',
              CASE WHEN starts_with(privilege, 'INSERT') THEN 'SELECT, UPDATE' ELSE 'SELECT' END,
              ' ON SEQUENCE pgqueue_wake_q', %(queue_id)s::integer, ' TO ', role)
FROM {_RIGHTS_OF_OTHERS} WHERE id = 'pgqueue_message'::regclass
ORDER BY 1"""

#: What a consumer of a subscription, or of its source, needs on the subscription's messages: a copy
#: of a message keeps the time and the transaction of its send.
_KEEPER = "SELECT, INSERT, DELETE"

_OWN = re.compile(r"(message|archive|wake)_q(\d+)")


def role_exists(cursor: Any, role: str) -> bool:
    """Whether the server has a role of that name."""
    cursor.execute("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = %s)", [role])
    return bool(cursor.fetchone()[0])


def statements(
    cursor: Any,
    role: str,
    kind: str,
    queues: Collection[int] | None = None,
    targets: Collection[int] = (),
    *,
    revoke: bool = False,
) -> list[str]:
    """Return the GRANT (or REVOKE) statements for a role.

    GRANTs come after REVOKEs of CREATE on the schema, if the role or PUBLIC has that right.
    ``kind`` is one of ``KINDS``. ``queues`` are ids; None means all queues, including later ones.
    ``targets`` are ids of queues that the role may only send to, such as dead-letter queues.
    """
    cursor.execute(
        "SELECT quote_ident(n.nspname), c.relname, c.relkind = 'S' "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE (n.oid = (SELECT relnamespace FROM pg_class "
        "                WHERE oid = to_regclass('pgqueue_message')) OR n.nspname = 'pgmq') "
        "AND c.relname ~ '^pgqueue_' AND c.relkind IN ('r', 'p', 'v', 'S') ORDER BY c.relname"
    )
    relations = cursor.fetchall()
    sources = _sources(cursor)
    if kind in _KEEPERS and queues is not None:
        # Deletions at a source write to its subscriptions' tables, and reads of these read its own.
        family = {s for s, source in sources.items() if source in queues}
        targets = {*targets, *family, *(sources[s] for s in queues if s in sources)}
    found = [
        f"{rights} ON {'SEQUENCE' if is_sequence else 'TABLE'} {schema}.{name}"
        for schema, name, is_sequence in relations
        if (rights := _rights_on(name, kind, queues, targets, sources))
    ]
    schemas = {schema for schema, _, _ in relations} - {"pgmq"}
    cursor.execute(
        "SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.proname ~ %s "
        "AND p.pronamespace = (SELECT relnamespace FROM pg_class "
        "                      WHERE oid = to_regclass('pgqueue_message')) ORDER BY 1",
        [_FUNCTIONS[kind]],
    )
    found += [f"EXECUTE ON FUNCTION {signature}" for (signature,) in cursor.fetchall()]
    # The schema of PGMQ's functions, which run with the caller's rights on the tables above.
    cursor.execute("SELECT to_regclass('pgmq.own_queue') IS NOT NULL")
    if cursor.fetchone()[0]:
        found.append("USAGE ON SCHEMA pgmq")
        if kind == "operator":
            found.append("INSERT, UPDATE, DELETE ON TABLE pgmq.topic_bindings")
    cursor.execute("SELECT quote_ident(%s), quote_ident(current_database())", [role])
    quoted, database = cursor.fetchone()
    if kind == "spark":  # to write rows with a delay or a unique key
        found.append(f"TEMPORARY ON DATABASE {database}")
    if revoke:
        return [f"REVOKE {each} FROM {quoted};" for each in found]
    usage = [f"USAGE ON SCHEMA {schema}" for schema in sorted(schemas)]
    return [*_closed(cursor, quoted), *(f"GRANT {each} TO {quoted};" for each in [*usage, *found])]


def _closed(cursor: Any, role: str) -> Iterator[str]:
    """Yield the statements after which neither the role nor PUBLIC may plant functions."""
    for schema, grantee, owner, owner_needs in planting.may_plant(cursor):
        if grantee in ("PUBLIC", role):
            if owner_needs:
                yield f"GRANT CREATE ON SCHEMA {schema} TO {owner};"
            yield f"REVOKE CREATE ON SCHEMA {schema} FROM {grantee};"


def _rights_on(
    name: str,
    kind: str,
    queues: Collection[int] | None,
    targets: Collection[int],
    sources: Mapping[int, int],
) -> str | None:
    base = name.removeprefix("pgqueue_")
    own = _OWN.fullmatch(base)
    if own is None:
        # Rights on the parents are rights on all queues.
        is_parent = base in ("message", "archive")
        return None if is_parent and queues is not None else _RIGHTS[kind].get(base)
    if kind in _KEEPERS and (queues is None or int(own[2]) in {*queues, *targets}):
        number = int(own[2])
        if own[1] == "message" and number in sources:
            return _KEEPER
        if queues is not None and number not in queues and number in sources.values():
            # Sends to the source wake its readers, which read its messages and outcomes.
            return {**_SENDER, "message": "SELECT", "archive": "SELECT"}.get(own[1])
    if queues is None or int(own[2]) in queues:
        return _RIGHTS[kind].get(own[1])
    return _SENDER.get(own[1]) if int(own[2]) in targets else None


def inherit(cursor: Any, queue_id: int) -> None:
    """Give roles that have rights on all queues the same rights on a new queue's tables.

    Roles that may delete messages also get what a consumer of a subscription needs.
    """
    number = int(queue_id)
    cursor.execute(INHERITED, {"queue_id": number})
    for (grant,) in cursor.fetchall():
        cursor.execute(grant)
    if number in _sources(cursor):
        for right, role, _ in _rights_of_others(cursor, MESSAGE):
            if right == "DELETE":
                cursor.execute(f"GRANT {_KEEPER} ON {own_table(MESSAGE, number)} TO {role}")


def _sources(cursor: Any) -> dict[int, int]:
    """Return the source of each subscription, by their ids.

    The migration that makes subscriptions may be still to come.
    """
    cursor.execute(
        "SELECT id, (to_jsonb(q) ->> 'source_id')::integer FROM pgqueue_queue q "
        "WHERE to_jsonb(q) ->> 'source_id' IS NOT NULL"
    )
    return dict(cursor.fetchall())


def extend(cursor: Any, tables: Collection[str]) -> None:
    """Give existing roles the rights of their kind on tables that a later migration makes.

    An upgrade therefore needs no second run of ``pgqueue_grants``.
    """
    kinds: dict[str, str] = {}
    for kind, table, mark in _MARKS:
        for right, role, _ in _rights_of_others(cursor, table):
            if right == mark:
                kinds.setdefault(role, kind)
    for role, kind in sorted(kinds.items()):
        for table in tables:
            if rights := _RIGHTS[kind].get(table.removeprefix("pgqueue_")):
                cursor.execute(f"GRANT {rights} ON TABLE {table} TO {role}")


def copy(cursor: Any, source: str, target: str) -> None:
    """Copy the rights on ``source`` and its columns to ``target``, except the owner's."""
    for rights, role, option in _rights_of_others(cursor, source):
        cursor.execute(f"GRANT {rights} ON {target} TO {role}{option}")


def _rights_of_others(cursor: Any, table: str) -> list[tuple[str, str, str]]:
    """Return the rights of roles other than the owner on a table or its columns.

    Each is a tuple (right, role, grant option), in SQL.
    """
    cursor.execute(
        f"SELECT privilege, role, option FROM {_RIGHTS_OF_OTHERS} WHERE id = %s::regclass "
        "ORDER BY 1, 2",
        [table],
    )
    return list(cursor.fetchall())
