"""Ours without Django, with the ack of each batch in the same commit as the read of the next."""

from __future__ import annotations

from benchmarks.peers import ours_bare
from django_pgqueue.decoding import decode
from django_pgqueue.models import Queue
from django_pgqueue.models.operations.batches import note
from django_pgqueue.types import Receipt


class Queues(ours_bare.Queues):
    def __init__(self) -> None:
        super().__init__()
        self.done: dict[str, list[Receipt]] = {}

    def cycle(self, queue: str, batch: int) -> int:
        found = Queue.objects.resolve(queue, None)
        done = self.done.get(queue, [])
        ahead = self.operations._archiving(done) if done else None
        values = {**ours_bare.READ, "qty": batch}
        _, rows = self.operations._claim(found, batch, values, True, ahead)
        if ahead is not None:
            assert len(note(done, ahead.rows or ())) == len(done)
        for row in rows:
            decode(row[1])
        self.done[queue] = [ours_bare.receipt(row) for row in rows]
        return len(rows)
