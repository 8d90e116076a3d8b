"""Runs the statements of the admin, which are .sql files of this package."""

from __future__ import annotations

from typing import Any

from django.db import connections

from django_pgqueue.engine.statements import compose

__all__ = ["ask", "rows"]


def ask(name: str, params: Any = None, /, *, using: str, **names: object) -> list[tuple[Any, ...]]:
    """Run a named statement, and return its rows. ``names`` fill in its placeholders.

    >>> ask("health/tables", [["pgqueue_ready"]], using="default")
    """
    return rows(compose(name, names, __package__), params, using=using)


def rows(sql: str, params: Any = None, *, using: str) -> list[tuple[Any, ...]]:
    """Run an SQL statement and return its rows."""
    with connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())
