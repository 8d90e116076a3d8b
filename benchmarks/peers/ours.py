"""Ours, as an application uses it: ``Message.objects`` on Django's connection."""

from __future__ import annotations

import sys
from itertools import cycle, islice
from typing import Any

from django.db import connection

from benchmarks import consumers
from django_pgqueue.models import Message, Queue

HOUR = 3600
CHUNK = 50_000


class Queues:
    def create(self, queue: str, **options: Any) -> None:
        Message.objects.create_queue(queue, **options)

    def drop(self, queue: str) -> None:
        Message.objects.drop_queue(queue)

    def fill(self, queue: str, bodies: list[Any], count: int, delay: float = 0) -> None:
        source = cycle(bodies)
        for start in range(0, count, CHUNK):
            chunk = list(islice(source, min(CHUNK, count - start)))
            Message.objects.send_batch(queue, chunk, delay=delay)

    def hold(self, queue: str, count: int) -> None:
        Message.objects.read(queue, qty=count, vt=HOUR)

    def send(self, queue: str, body: Any) -> int:
        Message.objects.send(queue, body)
        return 1

    def send_batch(self, queue: str, bodies: list[Any]) -> int:
        return len(Message.objects.send_batch(queue, bodies))

    def cycle(self, queue: str, batch: int) -> int:
        messages = Message.objects.read(queue, qty=batch)
        return len(Message.objects.archive(queue, messages)) if messages else 0


class Worker:
    """``manage.py runconsumer``; the handlers are in ``benchmarks/consumers.py``."""

    most = 20_000

    def install(self) -> None:
        for mode in ("drain", "batch", "latency", "transactional"):
            Message.objects.create_queue(mode)
        with connection.cursor() as cursor:
            cursor.execute(consumers.EFFECTS)

    def command(self, mode: str) -> list[str]:
        return [sys.executable, "-m", "django", "runconsumer", mode, "--no-progress"]

    def fill(self, count: int, mode: str) -> None:
        for start in range(0, count, CHUNK):
            Message.objects.send_batch(mode, [{"x": "y" * 192}] * min(CHUNK, count - start))

    def send(self, body: dict[str, Any], mode: str) -> None:
        Message.objects.send(mode, body)

    def remaining(self, mode: str) -> int:
        queue = Queue.objects.resolve(mode, None)
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pgqueue_live WHERE queue_id = %s", [queue.pk])
            return cursor.fetchone()[0]

    def clear(self, mode: str) -> None:
        Message.objects.purge(mode)

    def close(self) -> None:
        """Django keeps the connection."""
