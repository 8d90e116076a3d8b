"""PGMQ's functions on our tables, in a database of their own: PGMQ's schema has the same name."""

from __future__ import annotations

from functools import cache
from typing import Any

import psycopg
from django.core.management import call_command
from django.db import connections

from benchmarks import database
from benchmarks.peers import pgmq


@cache
def install() -> str:
    """Make the database, with the schema. Returns its name."""
    name = f"{database.parameters()['dbname']}_{database.FUNCTIONS}"
    with database.connect() as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    connections.databases[database.FUNCTIONS] = {**connections.databases["default"], "NAME": name}
    call_command("migrate", database=database.FUNCTIONS, verbosity=0)
    call_command("pgqueue_pgmq", "install", database=database.FUNCTIONS, verbosity=0)
    connections[database.FUNCTIONS].close()
    return name


class Queues(pgmq.Queues):
    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(**{**database.parameters(), "dbname": install()}, autocommit=True)
