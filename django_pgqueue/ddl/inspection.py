"""Compares a database's objects with those that the migrations create, and reports differences.

Functions and triggers are compared with the package's SQL files, and a queue's own tables with its
row in ``pgqueue_queue``. Nothing is changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from django.db.migrations.recorder import MigrationRecorder

from django_pgqueue.ddl import run_sql
from django_pgqueue.ddl.triggers import (
    KEEP_TRIGGER,
    LEAVE_TRIGGER,
    SEND_TRIGGER,
    keep_trigger,
    leave_trigger,
    send_trigger,
)
from django_pgqueue.engine.names import MESSAGE, PARENTS, own_table

__all__ = ["Damage", "damage", "kind_of_table"]

# Functions with a quoted body. Those with RETURN have none that could be compared.
_FUNCTION = re.compile(
    r"CREATE FUNCTION [\w\"]+\.(\w+)\((?:(?!CREATE FUNCTION).)*?AS \$\$(.*?)\$\$;", re.DOTALL
)
_TRIGGER = re.compile(r"CREATE TRIGGER (\w+)\s.*?\sON (?:[\w\"]+\.)?(\w+).*?;", re.DOTALL)


@dataclass(frozen=True)
class Damage:
    """An object that differs from the migrations' version, with the difference and its remedy."""

    kind: str
    name: str
    wrong: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name} {self.wrong}"


def kind_of_table(connection: Any) -> str | None:
    """Return ``p`` if the message table is partitioned, ``r`` if it is plain, None if missing."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT relkind::text FROM pg_class WHERE oid = to_regclass(%s)", [MESSAGE])
        row = cursor.fetchone()
    return None if row is None else str(row[0])


def damage(connection: Any) -> list[Damage]:
    """Report every missing or altered object of the queues' database.

    Reports nothing if the applied migrations are older or newer than this release's: processes of
    the previous release may run on the next release's schema.

    >>> damage(connections["default"])
    []
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT quote_ident(n.nspname) FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.oid = to_regclass(%s) AND c.relkind = 'p'",
            [MESSAGE],
        )
        row = cursor.fetchone()
        if row is None or not _is_of_this_release(connection):
            return []
        (schema,) = row
        made = run_sql.made(schema)
        return [
            *_functions(cursor, schema, made),
            *_tables(cursor, schema),
            *_triggers(cursor, schema, made),
        ]


def _is_of_this_release(connection: Any) -> bool:
    own = files("django_pgqueue.migrations").iterdir()
    known = {file.name.removesuffix(".py") for file in own if re.match(r"\d{4}_.*\.py$", file.name)}
    applied = MigrationRecorder(connection).applied_migrations()
    return known == {name for app, name in applied if app == "django_pgqueue"}


def _functions(cursor: Any, schema: str, made: str) -> Iterator[Damage]:
    cursor.execute(
        "SELECT proname::text, prosrc FROM pg_proc WHERE pronamespace = %s::regnamespace "
        "AND starts_with(proname, 'pgqueue_')",
        [schema],
    )
    found = dict(cursor.fetchall())
    for name, body in _FUNCTION.findall(made):
        if found.get(name) != body:
            yield Damage(
                "function",
                name,
                "was altered" if name in found else "is missing",
                f"Restore it: manage.py sqlmigrate django_pgqueue 0001_initial prints its CREATE "
                f"FUNCTION. Run that as CREATE OR REPLACE FUNCTION. Put your own code in another "
                f"function than {name}.",
            )


def _tables(cursor: Any, schema: str) -> Iterator[Damage]:
    for parent in PARENTS:
        cursor.execute(
            f"""
            SELECT q.id, q.name, c.oid IS NOT NULL
            FROM {schema}.pgqueue_queue q
            LEFT JOIN pg_class c ON c.relnamespace = %s::regnamespace
                AND c.relname = %s || '_q' || q.id
            LEFT JOIN pg_inherits i ON i.inhrelid = c.oid AND i.inhparent = to_regclass(%s)
            WHERE i.inhrelid IS NULL OR i.inhdetachpending ORDER BY q.id
            """,
            [schema, parent, parent],
        )
        for number, queue, exists in cursor.fetchall():
            table = own_table(parent, number)
            yield Damage(
                "table",
                table,
                f"of queue {queue!r} is {'not a partition of ' + parent if exists else 'missing'}",
                f"ALTER TABLE {parent} ATTACH PARTITION {table} FOR VALUES IN ({number});"
                if exists
                else "Restore it from a backup, or delete the queue and create it again: without "
                "the table every operation on the queue fails.",
            )
    cursor.execute(
        f"""
        SELECT c.relname::text, q.name, q.unlogged
        FROM {schema}.pgqueue_queue q
        CROSS JOIN LATERAL (VALUES ('pgqueue_message_q'), ('pgqueue_archive_q')) p (prefix)
        CROSS JOIN LATERAL pg_partition_tree(to_regclass(p.prefix || q.id)) t
        JOIN pg_class c ON c.oid = t.relid
        WHERE t.isleaf AND c.relkind = 'r' AND (c.relpersistence = 'u') <> q.unlogged
        ORDER BY c.relname
        """
    )
    for table, queue, unlogged in cursor.fetchall():
        kind = "UNLOGGED" if unlogged else "LOGGED"
        yield Damage(
            "table",
            table,
            f"of queue {queue!r} is not {kind.lower()}, but the queue is",
            f"ALTER TABLE {table} SET {kind};",
        )


def _triggers(cursor: Any, schema: str, made: str) -> Iterator[Damage]:
    wanted = {(each[1], each[2]): each[0].removesuffix(";") for each in _TRIGGER.finditer(made)}
    cursor.execute(
        f"""
        SELECT t.relid::regclass::text, q.source_id IS NOT NULL,
               EXISTS (SELECT FROM {schema}.pgqueue_queue s WHERE s.source_id = q.id)
        FROM {schema}.pgqueue_queue q
        CROSS JOIN LATERAL pg_partition_tree(to_regclass('pgqueue_message_q' || q.id)) t
        ORDER BY 1
        """
    )
    for table, is_subscription, is_source in cursor.fetchall():
        plain = table.rpartition(".")[2]
        if is_subscription:
            wanted[KEEP_TRIGGER, plain] = keep_trigger(plain)
        else:
            wanted[SEND_TRIGGER, plain] = send_trigger(plain)
        if is_source:
            wanted[LEAVE_TRIGGER, plain] = leave_trigger(plain)
    cursor.execute(
        "SELECT t.tgname::text, c.relname::text, t.tgenabled = 'O', pg_get_triggerdef(t.oid) "
        "FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
        "WHERE c.relnamespace = %s::regnamespace AND NOT t.tgisinternal "
        "AND starts_with(t.tgname, 'pgqueue_')",
        [schema],
    )
    found = {(name, table): rest for name, table, *rest in cursor.fetchall()}
    for (name, table), text in wanted.items():
        enabled, definition = found.get((name, table), (True, None))
        create = _plain(text, schema)
        where = f"{name} of {table}"
        if definition is None:
            yield Damage("trigger", where, "is missing", f"{create};")
        elif _plain(definition, schema) != create:
            remedy = f"DROP TRIGGER {name} ON {table}; {create};"
            yield Damage("trigger", where, "was altered", remedy)
        elif not enabled:
            remedy = f"ALTER TABLE {table} ENABLE TRIGGER {name};"
            yield Damage("trigger", where, "is disabled", remedy)


def _plain(text: str, schema: str) -> str:
    """Return a statement on one line, without the schema's name."""
    return " ".join(text.split()).replace(f"{schema}.", "")
