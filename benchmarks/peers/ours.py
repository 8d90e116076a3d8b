"""Ours, as an application uses it: ``Message.objects`` on Django's connection."""

from __future__ import annotations

import datetime as dt
import sys
from itertools import cycle, islice
from typing import Any

from django.db import connection

from benchmarks import consumers
from django_pgqueue.models import Message, Process, Queue

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
    modes = ("drain", "drain-20ms", "drain-50ms", "ordered", "batch", "latency", "transactional")

    def install(self) -> None:
        for mode in self.modes:
            Message.objects.create_queue(mode)
        with connection.cursor() as cursor:
            cursor.execute(consumers.EFFECTS)

    def command(self, mode: str) -> list[str]:
        return [sys.executable, "-m", "django", "runconsumer", mode, "--no-progress"]

    def fill(self, count: int, mode: str) -> None:
        for start in range(0, count, CHUNK):
            Message.objects.send_batch(mode, [{"x": "y" * 192}] * min(CHUNK, count - start))

    def fill_groups(self, count: int, mode: str, groups: int) -> None:
        for number in range(groups):
            bodies = [{"x": "y" * 192}] * (count // groups)
            Message.objects.send_batch(mode, bodies, group=str(number))

    def abandon(self, count: int, mode: str) -> None:
        """Lease messages as a consumer process does, and give them back as after its death."""
        dead = Process.objects.register([mode], version="", using="default")
        queue = Queue.objects.resolve(mode, None)
        leased = Message.objects.lease(queue, vt=HOUR, qty=count, process_id=dead.pk)
        assert len(leased) == count
        Process.objects.reap(dt.timedelta(0), using="default")

    def seconds(self, mode: str) -> float:
        """From the last delivery's first lease to the last ack, of all that is archived."""
        queue = Queue.objects.resolve(mode, None)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT extract(epoch FROM max(archived_at) - min(last_read_at))::float "
                "FROM pgqueue_archive WHERE queue_id = %s",
                [queue.pk],
            )
            [(seconds,)] = cursor.fetchall()
        return float(seconds)

    def forget_archived(self, mode: str) -> None:
        queue = Queue.objects.resolve(mode, None)
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM pgqueue_archive WHERE queue_id = %s", [queue.pk])

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
