"""The database objects behind the models. Only this package composes SQL identifiers."""

from __future__ import annotations

from django_pgqueue.ddl.names import MESSAGE, hot_tables, own_table, shared_names, table_names
from django_pgqueue.ddl.times import moment, server_time

__all__ = [
    "MESSAGE",
    "hot_tables",
    "moment",
    "own_table",
    "server_time",
    "shared_names",
    "table_names",
]
