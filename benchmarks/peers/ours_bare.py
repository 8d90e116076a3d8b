"""Ours without Django: the same SQL on a bare psycopg cursor, as PGMQ's is run."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from django.db import connection

from benchmarks import database
from benchmarks.peers import ours
from django_pgqueue import arguments, queries
from django_pgqueue.models import Message, Queue
from django_pgqueue.types import Receipt

PLAIN = dict.fromkeys(["at", "after", "group", "dedup_key", "headers"]) | {"priority": 0}


class Queues(ours.Queues):
    def __init__(self) -> None:
        self.cursor = database.connect().cursor()

    def sql(self, name: str, queue: str) -> str:
        return queries.render(name, Queue.objects.resolve(queue, None).tables)

    def send(self, queue: str, body: Any) -> int:
        self.cursor.execute(self.sql("send", queue), {**PLAIN, "body": json.dumps(body)})
        return len(self.cursor.fetchall())

    def send_batch(self, queue: str, bodies: list[Any]) -> int:
        self.cursor.execute(
            self.sql("send_batch", queue),
            {
                **PLAIN,
                "groups": None,
                "dedup_keys": None,
                "bodies": json.dumps(bodies),
            },
        )
        return len(self.cursor.fetchall())

    def cycle(self, queue: str, batch: int) -> int:
        self.cursor.execute(*_read_statement(queue, batch))
        rows = self.cursor.fetchall()
        if not rows:
            return 0
        self.cursor.execute(self.sql("archive", queue), _archive(rows))
        return len(self.cursor.fetchall())


class _Caught(Exception):
    pass


@cache
def _read_statement(queue: str, batch: int) -> tuple[Any, ...]:
    """What the manager would run, caught on its way to the server."""

    def catch(execute: Any, statement: str, params: Any, *rest: Any) -> Any:
        raise _Caught(statement, params)

    Queue.objects.resolve(queue, None)  # which may ask the server, too
    with connection.execute_wrapper(catch):
        try:
            Message.objects.read(queue, qty=batch)
        except _Caught as caught:
            return caught.args
    raise AssertionError("the read ran no statement")


def _archive(rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    return {**arguments.fence([Receipt(row[0], row[6]) for row in rows]), "ran": 1}
