"""Ours without Django: the same operations on a bare psycopg cursor, as PGMQ's are run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import psycopg
from psycopg.types.string import TextLoader

from benchmarks import database
from benchmarks.peers import ours
from django_pgqueue.decoding import decode
from django_pgqueue.engine.connection import dated
from django_pgqueue.engine.read.reading import lease
from django_pgqueue.engine.send.sending import send_batch
from django_pgqueue.engine.session import OpenQueue
from django_pgqueue.engine.settle.outcomes import complete
from django_pgqueue.engine.statements import render
from django_pgqueue.models import Queue
from django_pgqueue.types import BatchReceipt, Receipt

PLAIN = dict.fromkeys(["at", "after", "group", "headers"]) | {"priority": 0}


@dataclasses.dataclass(frozen=True, eq=False)
class OnCursor(OpenQueue):
    """A queue whose statements run on a cursor that is not Django's."""

    cursor: Any = None

    @property
    def connection(self) -> Any:
        return SimpleNamespace(in_atomic_block=False, settings_dict={"NAME": "bare"})

    def run(
        self, statement: str, params: Mapping[str, Any] | None = None, /, **names: object
    ) -> list[tuple[Any, ...]]:
        text = render(statement, self.id, self.unlogged, tuple(names.items()))
        return self.cursor.execute(dated(text), params).fetchall()


class Queues(ours.Queues):
    def __init__(self, cursor_factory: Any = psycopg.Cursor) -> None:
        connection = database.connect(cursor_factory=cursor_factory)
        # As Django does it: bodies come as text.
        connection.adapters.register_loader("jsonb", TextLoader)
        self.cursor = connection.cursor()
        self.opened: dict[OpenQueue, OnCursor] = {}

    def open(self, queue: str) -> OnCursor:
        opened = Queue.objects.resolve(queue, None).opened
        if opened not in self.opened:
            fields = {f.name: getattr(opened, f.name) for f in dataclasses.fields(OpenQueue)}
            self.opened[opened] = OnCursor(**fields, cursor=self.cursor)
        return self.opened[opened]

    def send(self, queue: str, body: Any) -> int:
        return len(self.open(queue).run("send/send", {**PLAIN, "body": json.dumps(body)}))

    def send_batch(self, queue: str, bodies: list[Any]) -> int:
        return len(send_batch(self.open(queue), bodies))

    def cycle(self, queue: str, batch: int) -> int:
        opened = self.open(queue)
        found = lease(opened, vt=30, qty=batch)
        receipts = []
        for delivery in found:
            decode(delivery.body or "null")
            receipt: Receipt = delivery.receipt
            if delivery.batch is not None:
                receipt = BatchReceipt(*receipt)
                receipt.batch = delivery.batch
            receipts.append(receipt)
        return len(complete(opened, receipts))
