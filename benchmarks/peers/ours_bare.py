"""Ours without Django: the same SQL on a bare psycopg cursor, as PGMQ's is run."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import psycopg
from psycopg.types.string import TextLoader

from benchmarks import database
from benchmarks.peers import ours
from django_pgqueue import queries
from django_pgqueue.decoding import decode
from django_pgqueue.models import Message, Queue
from django_pgqueue.models.operations import MessageManager
from django_pgqueue.types import BatchReceipt, Receipt

READ = {
    "vt": dt.timedelta(seconds=30),
    "heed": True,
    "conditional": None,
    "worker": None,
    "max_deliveries": None,
}
PLAIN = dict.fromkeys(["at", "after", "group", "dedup_key", "headers"]) | {"priority": 0}


class Queues(ours.Queues):
    def __init__(self, cursor_factory: Any = psycopg.Cursor) -> None:
        connection = database.connect(cursor_factory=cursor_factory)
        # As Django does it: the manager decodes bodies itself.
        connection.adapters.register_loader("jsonb", TextLoader)
        self.cursor = connection.cursor()
        self.operations = OnCursor(self)

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
        found = Queue.objects.resolve(queue, None)
        _, rows = self.operations._claim(found, batch, {**READ, "qty": batch}, True, None)
        if not rows:
            return 0
        for row in rows:
            decode(row[1])
        receipts = [receipt(row) for row in rows]
        return len(self.operations._by_receipts("archive", found, receipts, {"ran": 1}))


def receipt(row: tuple[Any, ...]) -> Receipt:
    """What settles a message, from a row that a read brought."""
    if len(row) == 10 or row[10] is None:
        return Receipt(row[0], row[6])
    of_batch = BatchReceipt(row[0], row[6])
    of_batch.batch = row[10]
    return of_batch


class OnCursor(MessageManager[Message]):
    """What the manager runs, on a cursor that is not Django's."""

    def __init__(self, queues: Queues) -> None:
        super().__init__()
        self.queues = queues

    def _fetch(
        self, queue: Queue, name: str, params: Any, tables: Any, ahead: Any = None
    ) -> list[tuple[Any, ...]]:
        cursor = self.queues.cursor
        statement = queries.render(name, {**queue.tables, **(tables or {})})
        if ahead is None or ahead.rows is not None:
            return cursor.execute(statement, params).fetchall()
        first = queries.render(ahead.name, {**queue.tables, **ahead.tables})
        # One round trip, and one transaction.
        with cursor.connection.pipeline(), cursor.connection.cursor() as before:
            before.execute(first, ahead.params)
            cursor.execute(statement, params)
            ahead.rows = before.fetchall()
            return cursor.fetchall()
