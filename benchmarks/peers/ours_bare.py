"""Our operations without Django: on a plain psycopg cursor, as PGMQ's are run."""

from __future__ import annotations

import json
from typing import Any

import psycopg

from benchmarks import database
from benchmarks.peers import ours
from django_pgqueue.bare import open_queue
from django_pgqueue.engine.decoding import decode
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.read.reading import lease
from django_pgqueue.engine.send.sending import send_batch
from django_pgqueue.engine.settle.outcomes import complete

PLAIN = dict.fromkeys(["at", "after", "group", "headers"]) | {"priority": 0}


class Queues(ours.Queues):
    def __init__(self, cursor_factory: Any = psycopg.Cursor) -> None:
        self.connection = database.connect(cursor_factory=cursor_factory)
        self.opened: dict[str, OpenQueue] = {}

    def open(self, queue: str) -> OpenQueue:
        if queue not in self.opened:
            self.opened[queue] = open_queue(self.connection, queue)
        return self.opened[queue]

    def send(self, queue: str, body: Any) -> int:
        return len(self.open(queue).run("send/send", {**PLAIN, "body": json.dumps(body)}))

    def send_batch(self, queue: str, bodies: list[Any]) -> int:
        return len(send_batch(self.open(queue), bodies))

    def cycle(self, queue: str, batch: int) -> int:
        opened = self.open(queue)
        found = lease(opened, vt=30, qty=batch)
        for delivery in found:
            decode(delivery.body or "null")
        return len(complete(opened, [delivery.receipt for delivery in found]))
