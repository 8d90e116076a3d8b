"""PGMQ: its own SQL, called as its Python client does, on a plain psycopg cursor."""

from __future__ import annotations

import importlib.util
import json
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import database

HOUR = 3600
CHUNK = 10_000


def install() -> None:
    """Install the schema ``pgmq`` from the wheel's SQL."""
    with database.connect() as connection:
        if connection.execute("SELECT to_regnamespace('pgmq')").fetchone() == (None,):
            connection.execute((_directory() / "pgmq.sql").read_text())


def version() -> str:
    """The version of the SQL, which differs from the wheel's."""
    return (_directory() / "VERSION").read_text().strip()


def _directory() -> Path:
    # Not imported: the package would import its clients.
    package = importlib.util.find_spec("pgmq")
    assert package is not None
    assert package.submodule_search_locations
    return Path(package.submodule_search_locations[0]) / "sql"


class Queues:
    def __init__(self) -> None:
        self.connection = self.connect()
        self.cursor = self.connection.cursor()

    def connect(self) -> psycopg.Connection[Any]:
        install()
        return database.connect()

    def create(self, queue: str, notify: bool = False) -> None:
        self.cursor.execute("SELECT pgmq.create(%s)", [queue])
        if notify:
            self.cursor.execute("SELECT pgmq.enable_notify_insert(%s)", [queue])

    def drop(self, queue: str) -> None:
        self.cursor.execute("SELECT pgmq.drop_queue(%s::text)", [queue])

    def fill(self, queue: str, bodies: list[Any], count: int, delay: float = 0) -> None:
        source = cycle(bodies)
        for start in range(0, count, CHUNK):
            chunk = islice(source, min(CHUNK, count - start))
            self.cursor.execute(
                "SELECT count(*) FROM pgmq.send_batch(%s, %s::jsonb[], %s::integer)",
                [queue, [json.dumps(body) for body in chunk], int(delay)],
            )

    def hold(self, queue: str, count: int) -> None:
        self.cursor.execute(
            "SELECT count(*) FROM pgmq.read(%s, %s::integer, %s::integer)", [queue, HOUR, count]
        )

    def send(self, queue: str, body: Any) -> int:
        self.cursor.execute("SELECT * FROM pgmq.send(%s, %s::jsonb)", [queue, json.dumps(body)])
        return len(self.cursor.fetchall())

    def send_batch(self, queue: str, bodies: list[Any]) -> int:
        self.cursor.execute(
            "SELECT * FROM pgmq.send_batch(%s, %s::jsonb[])",
            [queue, [json.dumps(body) for body in bodies]],
        )
        return len(self.cursor.fetchall())

    def send_grouped(self, queue: str, bodies: list[Any], groups: list[Any]) -> None:
        headers = [json.dumps({"x-pgmq-group": group}) for group in groups]
        self.cursor.execute(
            "SELECT count(*) FROM pgmq.send_batch(%s, %s::jsonb[], %s::jsonb[])",
            [queue, [json.dumps(body) for body in bodies], headers],
        )

    def cycle(self, queue: str, batch: int, operation: str = "read") -> int:
        read = f"SELECT * FROM pgmq.{operation}(%s, %s::integer, %s::integer)"
        self.cursor.execute(read, [queue, 30, batch])
        rows = self.cursor.fetchall()
        if not rows:
            return 0
        self.cursor.execute(
            "SELECT * FROM pgmq.archive(%s, %s::bigint[])", [queue, [row[0] for row in rows]]
        )
        return len(self.cursor.fetchall())

    def cycle_grouped(self, queue: str, operation: str = "read_grouped_rr") -> int:
        return self.cycle(queue, 100, operation)
