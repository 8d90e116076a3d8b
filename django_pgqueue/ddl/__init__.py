"""The database objects behind the models: their names, the migrations' SQL, how to lock them."""

from __future__ import annotations

from django_pgqueue.ddl.names import names_for_any, shared_names, table_names
from django_pgqueue.ddl.times import moment, server_time

__all__ = ["moment", "names_for_any", "server_time", "shared_names", "table_names"]
