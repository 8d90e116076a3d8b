"""Runs the statements of the admin, which are .sql files of this package."""

from __future__ import annotations

from typing import Any

from django.db import connections

from django_pgqueue.engine.statements import compose
from django_pgqueue.models import Queue


def ask(name: str, params: Any = None, /, **names: object) -> list[tuple[Any, ...]]:
    """Run a named statement, and return its rows. ``names`` fill in its placeholders.

    >>> ask("health/tables", [["pgqueue_ready"]])
    """
    return rows(compose(name, names, __package__), params)


def rows(sql: str, params: Any = None) -> list[tuple[Any, ...]]:
    """Run an SQL statement in the queues' database, and return its rows."""
    with connections[Queue.objects.database()].cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())
