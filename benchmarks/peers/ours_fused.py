"""Ours, with the ack of each batch in the same commit as the read of the next."""

from __future__ import annotations

from benchmarks.peers import ours
from django_pgqueue.models import Message


class Queues(ours.Queues):
    def __init__(self) -> None:
        self.done: dict[str, list[Message]] = {}

    def cycle(self, queue: str, batch: int) -> int:
        done = self.done.get(queue, [])
        _, self.done[queue] = Message.objects.archive_and_read(queue, done, qty=batch)
        return len(self.done[queue])
