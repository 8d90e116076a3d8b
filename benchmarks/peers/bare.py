"""The upper limit: a plain PostgreSQL table, without a queue."""

from __future__ import annotations

import json
from typing import Any

from benchmarks import database

TABLE = "benchmark_plain"
INSERT = f"INSERT INTO {TABLE} (body) VALUES (%s) RETURNING id"


def create() -> None:
    with database.connect() as connection:
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {TABLE} ("
            f"id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
            f" enqueued_at timestamptz NOT NULL DEFAULT now(), body jsonb)"
        )
        connection.execute(f"TRUNCATE {TABLE}")


def text(body: Any) -> str:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def copy_in(bodies: list[Any]) -> None:
    """Insert every body as a row, with one COPY."""
    create()
    with (
        database.connect() as connection,
        connection.cursor() as cursor,
        cursor.copy(f"COPY {TABLE} (body) FROM STDIN") as copy,
    ):
        for start in range(0, len(bodies), 1000):
            texts = (text(body) for body in bodies[start : start + 1000])
            copy.write("".join(line.replace("\\", "\\\\") + "\n" for line in texts))


class Queues:
    """DELETE RETURNING, oldest first: no lease, no archive, no redelivery."""

    def __init__(self) -> None:
        self.cursor = database.connect().cursor()

    def cycle(self, queue: str, batch: int) -> int:
        self.cursor.execute(
            f"DELETE FROM {TABLE} WHERE id = ANY(ARRAY("
            f"SELECT id FROM {TABLE} ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED))"
            f" RETURNING id, enqueued_at, body",
            [batch],
        )
        return len(self.cursor.fetchall())
