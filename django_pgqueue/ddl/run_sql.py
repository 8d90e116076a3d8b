"""Loads the package's SQL files for migrations."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

from django.db.migrations import RunPython, RunSQL

from django_pgqueue.ddl import grants
from django_pgqueue.engine.columns import PLACEHOLDERS

__all__ = ["RunPostgreSQL", "extend_rights", "made", "run"]

# Files whose text replaces their name in braces in other files.
_PARTS = ("become_heads", "next_turn", "pinned", "vacuum")
_PART = re.compile(rf"\{{({'|'.join(_PARTS)})\}}")
_CREATED = re.compile(
    r"^CREATE (?:UNLOGGED )?(DOMAIN|FUNCTION|SEQUENCE|TABLE|VIEW) (?:\{schema\}\.)?(\w+)"
    r"(\(\) RETURNS trigger)?",
    re.M,
)


class RunPostgreSQL(RunSQL):
    """RunSQL that only runs on PostgreSQL, like models with ``required_db_vendor``.

    ``{schema}`` is replaced by the schema in which the migration creates its tables. Every name is
    qualified, so that neither a caller's search path nor its temporary tables matter.
    """

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if schema_editor.connection.vendor == "postgresql":
            plain = self._in_schema_of(schema_editor)
            plain.database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if schema_editor.connection.vendor == "postgresql":
            plain = self._in_schema_of(schema_editor)
            plain.database_backwards(app_label, schema_editor, from_state, to_state)

    def _in_schema_of(self, schema_editor: Any) -> RunSQL:
        with schema_editor.connection.cursor() as cursor:
            cursor.execute("SELECT quote_ident(current_schema())")
            (schema,) = cursor.fetchone()
        texts = str(self.sql), str(self.reverse_sql)
        sql, reverse = (text.replace("{schema}", schema) for text in texts)
        return RunSQL(sql, reverse)


def run(name: str) -> RunPostgreSQL:
    """Return an operation that runs ``<name>.sql``.

    In reverse it runs the file's part ``-- Reverse``, if any, and drops what the file created.
    Trigger functions are dropped with their triggers. Everything else is dropped without CASCADE:
    the drop fails if an object that is not ours depends on it.
    """
    forward, reverse = _read(name)
    for kind, created, is_trigger in reversed(_CREATED.findall(forward)):
        option = " CASCADE" if is_trigger else ""
        reverse += f"DROP {kind} IF EXISTS {{schema}}.{created}{option};\n"
    return RunPostgreSQL(forward, reverse)


def extend_rights(*tables: str) -> RunPython:
    """Return an operation that gives the roles of ``pgqueue_grants`` their rights on new tables."""

    def extend(apps: Any, schema_editor: Any) -> None:
        if schema_editor.connection.vendor == "postgresql":
            with schema_editor.connection.cursor() as cursor:
                grants.extend(cursor, tables)

    return RunPython(extend, RunPython.noop)


def made(schema: str) -> str:
    """Return the statements of all SQL files, as migrations run them in a schema.

    >>> "CREATE TRIGGER pgqueue_members_gone" in made("public")
    True
    """
    names = sorted(file.name for file in files(__package__).iterdir())
    stems = [name.removesuffix(".sql") for name in names if name.endswith(".sql")]
    texts = [_read(stem)[0] for stem in stems if stem not in _PARTS]
    return "\n".join(texts).replace("{schema}", schema)


def _read(name: str) -> tuple[str, str]:
    text = _PART.sub(lambda part: _load(part[1]).rstrip(), _load(name))
    text = text.replace("{copied_columns}", PLACEHOLDERS["copied_columns"])
    forward, _, reverse = text.partition("\n-- Reverse\n")
    return forward, reverse


def _load(name: str) -> str:
    return files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
