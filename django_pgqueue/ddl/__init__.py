"""The database objects that the models use. Only this package composes SQL identifiers."""

from __future__ import annotations

from django_pgqueue.ddl.names import LIVE, MESSAGE, own_table, table_names
from django_pgqueue.ddl.times import moment, server_time

__all__ = [
    "LIVE",
    "MESSAGE",
    "moment",
    "own_table",
    "server_time",
    "table_names",
]
