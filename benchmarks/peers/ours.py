"""Our queue as applications use it: ``Message.objects`` on Django's connection."""

from __future__ import annotations

import sys
from itertools import cycle, islice
from typing import Any

from benchmarks import consumers, peers
from django_pgqueue.models import BoundQueue, Message, Queue

HOUR = 3600
CHUNK = 50_000


class Queues:
    def create(self, queue: str, to: str | None = None, **options: Any) -> None:
        """Create a queue; with ``to``, a subscription to that queue."""
        if to is None:
            Message.objects.create_queue(queue, **options)
        else:
            BoundQueue(queue).subscribe(to=to, **options)

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

    def send_grouped(self, queue: str, bodies: list[Any], groups: list[Any]) -> None:
        Message.objects.send_batch(queue, bodies, group=groups)

    def cycle(self, queue: str, batch: int) -> int:
        messages = Message.objects.read(queue, qty=batch)
        return len(Message.objects.archive(queue, messages)) if messages else 0

    def cycle_grouped(self, queue: str, operation: str = "read_grouped_rr") -> int:
        messages = getattr(BoundQueue(queue), operation)(qty=100)
        return len(Message.objects.archive(queue, messages)) if messages else 0


class Worker(peers.Worker):
    default = "`manage.py runconsumer`, a plain function: four threads"
    tuned = "the same, with a function that takes up to 100 messages: `@consumer(batch=True)`"
    documentation = "docs/consumer.md"
    table = "pgqueue_ready"
    queues: tuple[str, ...] = ("drain", "wait", "latency")

    def queue(self, mode: str) -> str:
        """The queue's name; when tuned, that of the queue with the batch handler."""
        return f"{mode}-batch" if self.is_tuned and mode in consumers.BATCHES else mode

    def install(self) -> None:
        for mode in self.queues:
            Message.objects.create_queue(self.queue(mode))

    def command(self, mode: str, concurrency: int | None = None) -> list[str]:
        workers = [] if concurrency is None else ["--workers", str(concurrency)]
        # A stop that takes longer ends with a kill.
        options = ["--no-progress", "--graceful-timeout", "5", *workers]
        return [sys.executable, "-m", "django", "runconsumer", self.queue(mode), *options]

    def enqueue(self, body: dict[str, Any], mode: str) -> None:
        Message.objects.send(self.queue(mode), body)

    def enqueue_many(self, bodies: list[dict[str, Any]], mode: str) -> None:
        Message.objects.send_batch(self.queue(mode), bodies)

    def remaining(self, mode: str) -> int:
        pk = Queue.objects.resolve(self.queue(mode), None).pk
        return self.count("SELECT count(*) FROM pgqueue_live WHERE queue_id = %s", pk)

    def clear(self, mode: str) -> None:
        # Dropping a queue drops its partitions, including the archive.
        Message.objects.drop_queue(self.queue(mode))
        Message.objects.create_queue(self.queue(mode))
