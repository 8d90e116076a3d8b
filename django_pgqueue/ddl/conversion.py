"""Turns the leaf of a queue into slices of time and back, while it is used.

Into slices nothing is copied: the leaf becomes the first slice of a new partitioned table. For
that its rows must be known to lie before a bound; a CHECK constraint tells, which PostgreSQL
validates while everybody goes on. Back, the rows are copied into a table of their own, while
triggers bring it up to date. Either way the change itself is a few catalog rows under a lock.

What a conversion has begun is known by the names it makes. ``..._new`` is what will take the
queue's name, ``..._gone`` keys of rows deleted since they may have been copied, ``..._old`` what
had the name before.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from django_pgqueue.ddl import grants
from django_pgqueue.ddl.partitions import (
    MESSAGE,
    PARENTS,
    Leaf,
    create_slice,
    drop_slice,
    leaves,
    make_inserts_sends,
    make_leaf,
    make_sliced,
    missing_slices,
    own_table,
)

__all__ = [
    "PARENTS",
    "add_bound",
    "analyze_copy",
    "begin_copy",
    "bounds",
    "build_slices",
    "check_bound",
    "copy_rows",
    "drop_conversion",
    "drop_strangers",
    "estimate",
    "forget_gone",
    "has_copy",
    "highest_id",
    "is_begun",
    "is_sliced",
    "lock_alone",
    "lock_tables",
    "replace_slices",
    "stop_conversion",
    "switch_to_copy",
    "switch_to_slices",
]

_BOUND = "pgqueue_bound_"
_SECONDS = "%Y%m%d%H%M%S"


def is_sliced(cursor: Any, queue_id: int) -> bool:
    """Whether a queue's tables are partitioned by time."""
    cursor.execute(
        "SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass(%s)",
        [own_table(MESSAGE, queue_id)],
    )
    [(sliced,)] = cursor.fetchall() or [(False,)]
    return bool(sliced)


def is_begun(cursor: Any, queue_id: int) -> bool:
    """Whether a conversion was begun and not finished, or left something over."""
    cursor.execute(
        "SELECT EXISTS (SELECT FROM unnest(%s::text[]) t WHERE to_regclass(t) IS NOT NULL) "
        "OR EXISTS (SELECT FROM unnest(%s::text[]) f WHERE to_regproc(f) IS NOT NULL)",
        [_tables_made(queue_id), _functions_made(queue_id)],
    )
    (begun,) = cursor.fetchone()
    return bool(begun)


def estimate(cursor: Any, queue_id: int, parent: str) -> int:
    """How many rows a table of the queue has, more or less."""
    cursor.execute(
        "SELECT coalesce(sum(pg_stat_get_live_tuples(relid)), 0)::bigint "
        "FROM pg_partition_tree(to_regclass(%s))",
        [own_table(parent, queue_id)],
    )
    (rows,) = cursor.fetchone()
    return int(rows)


def lock_tables(cursor: Any, queue_id: int, mode: str) -> None:
    """Lock the queue's tables in one statement: its ``statement_timeout`` is for all of them."""
    tables = [own_table(parent, queue_id) for parent in PARENTS]
    cursor.execute(f"LOCK TABLE {', '.join(tables)} IN {mode} MODE")


def lock_alone(cursor: Any, queue_id: int) -> None:
    """Take all that putting another table in a queue's place needs."""
    tables = [f"ONLY {parent}, {own_table(parent, queue_id)}" for parent in PARENTS]
    cursor.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")


# Into slices


def bounds(cursor: Any, queue_id: int) -> dict[str, tuple[dt.datetime, bool]]:
    """By parent: before which moment its rows are known to lie, and whether that was checked."""
    found = {}
    for parent in PARENTS:
        cursor.execute(
            "SELECT conname, convalidated FROM pg_constraint "
            "WHERE conrelid = to_regclass(%s) AND starts_with(conname, %s)",
            [own_table(parent, queue_id), _BOUND],
        )
        for name, validated in cursor.fetchall():
            moment = dt.datetime.strptime(name.removeprefix(_BOUND), _SECONDS)
            found[parent] = moment.replace(tzinfo=dt.timezone.utc), validated
    return found


def add_bound(cursor: Any, queue_id: int, parent: str, until: dt.datetime) -> None:
    """From now on no row of a leaf is as late as the bound. Takes ACCESS EXCLUSIVE, and no time.

    Should the conversion end here and never go on, sends must not fail when that moment comes:
    then they are dated right before it.
    """
    leaf, number = own_table(parent, queue_id), int(queue_id)
    if parent == MESSAGE:
        cursor.execute(
            f"CREATE OR REPLACE FUNCTION pgqueue_bound_q{number}() RETURNS trigger "
            f"LANGUAGE plpgsql AS $$ BEGIN "
            f"NEW.enqueued_at := '{until.isoformat()}'::timestamptz - interval '1 us'; "
            f"RETURN NEW; END $$"
        )
        cursor.execute(
            f"CREATE TRIGGER pgqueue_bound BEFORE INSERT ON {leaf} FOR EACH ROW "
            f"WHEN (NEW.enqueued_at >= '{until.isoformat()}') "
            f"EXECUTE FUNCTION pgqueue_bound_q{number}()"
        )
    cursor.execute(
        f"ALTER TABLE {leaf} ADD CONSTRAINT {_bound(until)} "
        f"CHECK (queue_id = {number} AND enqueued_at < '{until.isoformat()}') NOT VALID"
    )


def check_bound(cursor: Any, queue_id: int, parent: str, until: dt.datetime) -> None:
    """Look through all rows of a leaf; stops nobody. Raises CheckViolation for one too late."""
    cursor.execute(f"ALTER TABLE {own_table(parent, queue_id)} VALIDATE CONSTRAINT {_bound(until)}")


def build_slices(
    cursor: Any,
    queue_id: int,
    until: dt.datetime,
    now: dt.datetime,
    interval: dt.timedelta,
    *,
    unlogged: bool,
) -> None:
    """Make the partitioned tables beside the leaf, with slices from the bound on."""
    message, archive = (own_table(parent, queue_id) for parent in PARENTS)
    for parent in PARENTS:
        table = f"{own_table(parent, queue_id)}_new"
        make_sliced(cursor, table, parent, queue_id, unlogged=unlogged)
    old = Leaf(message, archive, True, None, until)
    for start, end in missing_slices([old], max(now, until), interval):
        create_slice(
            cursor,
            queue_id,
            start,
            end,
            unlogged=unlogged,
            parents=(f"{message}_new", f"{archive}_new"),
        )


def switch_to_slices(
    cursor: Any, queue_id: int, until: dt.datetime, interval: dt.timedelta
) -> None:
    """The new tables take the place of the leaves, which become their first slices."""
    number = int(queue_id)
    for parent in PARENTS:
        table = own_table(parent, number)
        first = f"{table}_until_{until.astimezone(dt.timezone.utc):{_SECONDS}}"
        _copy_rights(cursor, table, f"{table}_new")
        cursor.execute(f"ALTER TABLE {parent} DETACH PARTITION {table}")
        cursor.execute(f"ALTER TABLE {table} RENAME TO {first}")
        cursor.execute(f"ALTER TABLE {table}_new RENAME TO {table}")
        cursor.execute(
            f"ALTER TABLE {table} ATTACH PARTITION {first} "
            f"FOR VALUES FROM (MINVALUE) TO ('{until.isoformat()}')"
        )
        cursor.execute(f"ALTER TABLE {parent} ATTACH PARTITION {table} FOR VALUES IN ({number})")
        cursor.execute(f"ALTER TABLE {first} DROP CONSTRAINT {_bound(until)}")
    cursor.execute(f"DROP FUNCTION pgqueue_bound_q{number}() CASCADE")
    _set_interval(cursor, number, interval)


def replace_slices(
    cursor: Any, queue_id: int, now: dt.datetime, interval: dt.timedelta, *, unlogged: bool
) -> None:
    """Slices of another length from the present one's end on. What holds rows stays."""
    kept = []
    for leaf in leaves(cursor, queue_id):
        if leaf.start is not None and leaf.start > now and _is_empty(cursor, leaf):
            drop_slice(cursor, leaf)
        else:
            kept.append(leaf)
    default = [leaf for leaf in kept if not leaf.is_slice]
    for start, end in missing_slices(kept, now, interval):
        # Where it has rows already, a later round of upkeep looks after them.
        if not any(_has_rows_from(cursor, leaf, start) for leaf in default):
            create_slice(cursor, queue_id, start, end, unlogged=unlogged)
    _set_interval(cursor, queue_id, interval)


# Back into one leaf


def has_copy(cursor: Any, queue_id: int) -> bool:
    """Whether a copy of the queue's slices was begun, and is kept up to date."""
    cursor.execute(
        "SELECT count(*) FROM pg_trigger "
        "WHERE tgname = 'pgqueue_copy' AND tgrelid IN (to_regclass(%s), to_regclass(%s))",
        [own_table(parent, queue_id) for parent in PARENTS],
    )
    (triggers,) = cursor.fetchone()
    return bool(triggers == len(PARENTS))


def begin_copy(cursor: Any, queue_id: int, *, unlogged: bool) -> None:
    """Make the tables to copy into, and the triggers that write there what is new.

    Takes SHARE ROW EXCLUSIVE on every slice: once it is granted, all who inserted or deleted
    before are done, and who comes later fires the triggers.
    """
    number = int(queue_id)
    kind = "UNLOGGED TABLE" if unlogged else "TABLE"
    for parent in PARENTS:
        table = own_table(parent, number)
        make_leaf(cursor, f"{table}_new", parent, unlogged=unlogged)
        cursor.execute(
            f"ALTER TABLE {table}_new ADD CONSTRAINT pgqueue_copy CHECK (queue_id = {number})"
        )
        cursor.execute(f"CREATE {kind} {table}_gone (id bigint, enqueued_at timestamptz)")
        # Whoever may write to the queue may do so now: the rights are its maker's.
        cursor.execute(
            f"CREATE OR REPLACE FUNCTION {parent}_copy_q{number}() RETURNS trigger "
            f"LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$ BEGIN "
            f"IF TG_OP = 'INSERT' THEN "
            f"INSERT INTO {table}_new SELECT NEW.* ON CONFLICT DO NOTHING; "
            f"ELSE INSERT INTO {table}_gone VALUES (OLD.id, OLD.enqueued_at); END IF; "
            f"RETURN NULL; END $$"
        )
        cursor.execute(
            f"CREATE TRIGGER pgqueue_copy AFTER INSERT OR DELETE ON {table} FOR EACH ROW "
            f"EXECUTE FUNCTION {parent}_copy_q{number}()"
        )


def highest_id(cursor: Any, queue_id: int, parent: str) -> int:
    """What has a higher id, the triggers have copied already."""
    cursor.execute(f"SELECT coalesce(max(id), 0) FROM {own_table(parent, queue_id)}")
    (highest,) = cursor.fetchone()
    return int(highest)


def copy_rows(
    cursor: Any,
    queue_id: int,
    parent: str,
    after: tuple[int, dt.datetime | None],
    last: int,
    batch: int,
) -> tuple[int, tuple[int, dt.datetime | None]]:
    """Copy the next rows in the order of their ids: how many there were, and after which to go on.

    Rows that are there already stay: after an interruption it is only a look at each.
    """
    table = own_table(parent, queue_id)
    # The server may still work on the batch of a process that was killed.
    cursor.execute(f"LOCK TABLE {table}_new IN SHARE UPDATE EXCLUSIVE MODE")
    cursor.execute(
        f"WITH picked AS MATERIALIZED ("
        f"SELECT * FROM {table} WHERE queue_id = {int(queue_id)} "
        f"AND id >= %(id)s AND id <= %(last)s "
        f"AND (id, enqueued_at) > (%(id)s, coalesce(%(at)s::timestamptz, '-infinity')) "
        f"ORDER BY id, enqueued_at LIMIT %(batch)s), "
        f"copied AS (INSERT INTO {table}_new SELECT * FROM picked ON CONFLICT DO NOTHING) "
        f"SELECT (SELECT count(*) FROM picked), id, enqueued_at FROM picked "
        f"ORDER BY id DESC, enqueued_at DESC LIMIT 1",
        {"id": after[0], "at": after[1], "last": last, "batch": batch},
    )
    rows = cursor.fetchall()
    return (rows[0][0], rows[0][1:]) if rows else (0, after)


def drop_strangers(
    cursor: Any,
    queue_id: int,
    parent: str,
    after: int,
    batch: int,
) -> int | None:
    """Remove copied rows whose originals went without firing a trigger, with a dropped slice.

    Looks at the next so many, and returns after which id to go on, or None at the end.
    """
    table = own_table(parent, queue_id)
    # Key by key: a join could be planned as a scan of all slices for each batch.
    cursor.execute(
        f"WITH looked AS MATERIALIZED ("
        f"SELECT ctid, id, enqueued_at FROM {table}_new WHERE id > %s ORDER BY id LIMIT %s), "
        f"dropped AS (DELETE FROM {table}_new WHERE ctid = ANY(ARRAY("
        f"SELECT l.ctid FROM looked l {_original(table, queue_id, 'l')} WHERE o.found IS NULL))) "
        f"SELECT max(id) FROM looked",
        [after, batch],
    )
    (reached,) = cursor.fetchone()
    return None if reached is None else int(reached)


def forget_gone(cursor: Any, queue_id: int, parent: str, batch: int | None = None) -> int:
    """Delete from the copy what was deleted meanwhile; of how many rows that was known."""
    table = own_table(parent, queue_id)
    # What has an original has only moved from one slice to another.
    cursor.execute(
        f"WITH known AS (DELETE FROM {table}_gone WHERE ctid = ANY(ARRAY("
        f"SELECT ctid FROM {table}_gone LIMIT %s)) RETURNING id, enqueued_at), "
        f"dropped AS (DELETE FROM {table}_new WHERE ctid = ANY(ARRAY("
        f"SELECT c.ctid FROM known k {_original(table, queue_id, 'k')} "
        f"CROSS JOIN LATERAL (SELECT ctid FROM {table}_new n WHERE n.id = k.id "
        f"AND n.queue_id = {int(queue_id)} AND n.enqueued_at = k.enqueued_at OFFSET 0) c "
        f"WHERE o.found IS NULL))) "
        f"SELECT count(*) FROM known",
        [batch],
    )
    (known,) = cursor.fetchone()
    return int(known)


def analyze_copy(cursor: Any, queue_id: int) -> None:
    """Statistics first: plans are made at the first use, and kept."""
    # Or the rows that this session copied would be counted once more.
    cursor.execute("SELECT pg_stat_force_next_flush()")
    for parent in PARENTS:
        cursor.execute(f"ANALYZE {own_table(parent, queue_id)}_new")


def switch_to_copy(cursor: Any, queue_id: int, *, unlogged: bool) -> None:
    """The copies take the place of the partitioned tables."""
    number = int(queue_id)
    for parent in PARENTS:
        table = own_table(parent, number)
        _copy_rights(cursor, table, f"{table}_new")
        cursor.execute(f"ALTER TABLE {parent} DETACH PARTITION {table}")
        cursor.execute(f"ALTER TABLE {table} RENAME TO {table}_old")
        cursor.execute(f"ALTER TABLE {table}_new RENAME TO {table}")
        if parent == MESSAGE:
            make_inserts_sends(cursor, table, number, unlogged=unlogged)
        cursor.execute(f"ALTER TABLE {parent} ATTACH PARTITION {table} FOR VALUES IN ({number})")
        cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT pgqueue_copy")
    _set_interval(cursor, number, None)


def stop_conversion(cursor: Any, queue_id: int) -> None:
    """Let the queue's own tables know nothing of a conversion any more."""
    for parent, (until, _) in bounds(cursor, queue_id).items():
        cursor.execute(f"ALTER TABLE {own_table(parent, queue_id)} DROP CONSTRAINT {_bound(until)}")
    for function in _functions_made(queue_id):
        cursor.execute(f"DROP FUNCTION IF EXISTS {function}() CASCADE")


def drop_conversion(cursor: Any, queue_id: int) -> None:
    """Drop what a stopped conversion has made, and what it left over."""
    for table in _tables_made(queue_id):
        cursor.execute(f"DROP TABLE IF EXISTS {table}")


def _tables_made(queue_id: int) -> list[str]:
    return [
        f"{own_table(parent, queue_id)}_{end}"
        for parent in PARENTS
        for end in ("old", "new", "gone")
    ]


def _functions_made(queue_id: int) -> list[str]:
    number = int(queue_id)
    return [f"pgqueue_bound_q{number}", *(f"{parent}_copy_q{number}" for parent in PARENTS)]


def _original(table: str, queue_id: int, row: str) -> str:
    """A join by which ``o.found`` is NULL for a row whose original is gone."""
    return (
        f"LEFT JOIN LATERAL (SELECT true AS found FROM {table} t WHERE t.id = {row}.id "
        f"AND t.queue_id = {int(queue_id)} AND t.enqueued_at = {row}.enqueued_at OFFSET 0) o "
        f"ON true"
    )


def _bound(until: dt.datetime) -> str:
    return f"{_BOUND}{until.astimezone(dt.timezone.utc):{_SECONDS}}"


def _set_interval(cursor: Any, queue_id: int, interval: dt.timedelta | None) -> None:
    cursor.execute(
        "UPDATE pgqueue_queue SET partition_interval = %s WHERE id = %s", [interval, queue_id]
    )


def _copy_rights(cursor: Any, source: str, target: str) -> None:
    """Let those use a table who may use another one."""
    cursor.execute(
        "SELECT pg_get_userbyid(relowner), relowner <> "
        "(SELECT relowner FROM pg_class WHERE oid = %s::regclass) "
        "FROM pg_class WHERE oid = %s::regclass",
        [target, source],
    )
    owner, differs = cursor.fetchone()
    if differs:
        cursor.execute(
            "SELECT format('ALTER TABLE %%s OWNER TO %%I', %s::text, %s::text)", [target, owner]
        )
        cursor.execute(cursor.fetchone()[0])
    grants.copy(cursor, source, target)


def _is_empty(cursor: Any, leaf: Leaf) -> bool:
    cursor.execute(
        f"SELECT NOT EXISTS (SELECT FROM {leaf.message}) "
        f"AND NOT EXISTS (SELECT FROM {leaf.archive})"
    )
    return bool(cursor.fetchone()[0])


def _has_rows_from(cursor: Any, leaf: Leaf, start: dt.datetime) -> bool:
    tables: Sequence[str] = (leaf.message, leaf.archive)
    for table in tables:
        cursor.execute(f"SELECT EXISTS (SELECT FROM {table} WHERE enqueued_at >= %s)", [start])
        if cursor.fetchone()[0]:
            return True
    return False
