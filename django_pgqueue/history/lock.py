"""Run history statements, one at a time over all processes."""

from __future__ import annotations

from typing import Any

from django.db import connections, transaction

from django_pgqueue.engine.statements import load

__all__ = ["run_alone"]


def run_alone(alias: str, name: str, **params: Any) -> int:
    """Run ``<name>.sql`` in a transaction of its own.

    Returns the number that it selects, or else the number of rows that it changed; 0 if another
    process runs such a statement now.
    """
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(hashtextextended('pgqueue.history', 0))")
        if not cursor.fetchone()[0]:
            return 0
        cursor.execute(load(name, __package__), params)
        return int(cursor.fetchone()[0] if cursor.description else cursor.rowcount)
