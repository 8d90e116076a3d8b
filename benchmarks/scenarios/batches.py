"""Batches: what members cost, and how soon the callback comes."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks.peers import ours
from benchmarks.scenarios import Goal, Measure, scenario
from benchmarks.workers import Running, drained, running
from django_pgqueue.models import Batch, queue

#: The queue of callbacks.
CALLED = "bench-called"


class Members(ours.Worker):
    """Our worker, whose backlog is one batch."""

    def enqueue_many(self, bodies: list[dict[str, Any]], mode: str) -> None:
        with queue(self.queue(mode)).batch(then=queue(CALLED).message({})) as batch:
            for first in range(0, len(bodies), 10_000):
                batch.send_batch(bodies[first : first + 10_000])


def _open(bench: Any, *, is_tuned: bool) -> dict[str, ours.Worker]:
    queue(CALLED).create()
    found = {"plain": ours.Worker(is_tuned=is_tuned), "members": Members(is_tuned=is_tuned)}
    for worker in found.values():
        bench.on_close(worker.close)
        worker.install()
    return found


@scenario(
    "Drain 40,000 members of a batch with a batch handler (quick: 4,000)",
    baseline="plain",
    goals=(Goal("members", "plain", at_least=0.97),),
)
def batch_drain(bench: Any) -> dict[str, Measure]:
    count = bench.amount(4_000, 40_000)

    def measure(worker: ours.Worker) -> Any:
        worker.clear("drain")  # a backlog that is left would be of the other kind
        return drained(worker, "drain", count, limit=60, settle=bench.settle)

    workers = _open(bench, is_tuned=True)
    return {label: partial(measure, worker) for label, worker in workers.items()}


@scenario(
    "Send 100 messages at a time, one client",
    baseline="plain",
    goals=(Goal("in a with block", "plain", at_least=0.9),),
)
def batch_send(bench: Any) -> dict[str, Measure]:
    bodies = [bench.payload.body] * 100 if hasattr(bench.payload, "body") else [{"user": 7}] * 100
    _, name = bench.queue("ours")
    seconds = bench.seconds

    def rate(send: Any) -> float:
        sent, began = 0, time.perf_counter()
        while (took := time.perf_counter() - began) < seconds:
            send()
            sent += 100
        return sent / took

    def block() -> float:
        """Blocks of 100 sends each."""
        sent, began = 0, time.perf_counter()
        while (took := time.perf_counter() - began) < seconds:
            with queue(name).batch() as batch:
                for _ in range(100):
                    batch.send_batch(bodies)
                    sent += 100
        return sent / took

    return {
        "plain": lambda: rate(lambda: queue(name).send_batch(bodies)),
        "in an open batch": lambda: rate(partial(queue(name).open_batch().send_batch, bodies)),
        "in a with block": block,
    }


@scenario(
    "From the last end of a batch of 1,000,000 to its callback, with 20 kills of a consumer "
    "(quick: 8,000, no kill)",
    unit="s",
    rounds=1,
    goals=(Goal("two consumers", at_most=1.0),),
)
def batch_million(bench: Any) -> dict[str, Measure]:
    count, kills = bench.amount((8_000, 0), (1_000_000, 20))
    worker = _open(bench, is_tuned=True)["members"]

    def measure() -> float:
        worker.clear("drain")
        queue(CALLED).purge()
        worker.fill(count, "drain")
        bench.settle()
        [batch] = queue(worker.queue("drain")).batches()
        _work_off(bench, worker, batch, kills)
        [(called,)] = bench.sql(
            "SELECT count(*) FROM pgqueue_message WHERE (headers->'x-batch'->>'id')::bigint = %s",
            [batch.pk],
        )
        batch.refresh_from_db()
        if called != 1 or batch.completed != count:
            raise AssertionError(f"{called} callbacks, counts {batch.counts}")
        [(last,)] = bench.sql(
            "SELECT max(archived_at) FROM pgqueue_archive a JOIN pgqueue_queue q "
            "ON q.id = a.queue_id WHERE q.name = %s",
            [worker.queue("drain")],
        )
        return float((batch.done_at - last).total_seconds())

    return {"two consumers": measure}


def _work_off(bench: Any, worker: ours.Worker, batch: Batch, kills: int) -> None:
    """Run two consumers until the batch is done, and kill one each time a part of it has ended."""
    with ExitStack() as stack:
        started: list[Running] = []

        def start() -> Running:
            return stack.enter_context(running(worker, "drain"))

        started += [start(), start()]
        killed = 0
        while True:
            batch.refresh_from_db()
            if batch.done_at is not None:
                break
            if killed < kills and batch.ended >= batch.members * (killed + 1) / (kills + 2):
                victim = random.randrange(2)
                started[victim].processes[0].kill()
                started[victim] = start()
                killed += 1
                bench.tell(f"killed {killed} of {kills}, {batch.ended} of {batch.members} ended")
            time.sleep(0.1)
    if killed < kills:
        raise AssertionError(f"only {killed} kills before the end")


@scenario(
    "From the end of a batch's only member until its callback is sent",
    unit="ms, p50",
    goals=(Goal("a callback", at_most=1000),),
)
def batch_delay(bench: Any) -> dict[str, Measure]:
    number = bench.amount(20, 200)
    worker = _open(bench, is_tuned=False)["members"]

    def measure() -> float:
        worker.clear("drain")
        name = worker.queue("drain")
        with running(worker, "drain") as found:
            for _ in range(number):
                with queue(name).batch(then=queue(CALLED).message({})) as batch:
                    batch.send({})
                found.wait_for(partial(_is_done, batch), pause=0.05)
        [(delay,)] = bench.sql(
            "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM "
            "  b.done_at - a.archived_at)) * 1000 FROM pgqueue_batch b "
            "JOIN pgqueue_queue q ON q.id = b.queue_id AND q.name = %s "
            "JOIN pgqueue_message m ON m.queue_id = q.id AND m.headers->>'x-batch' = b.id::text "
            "JOIN pgqueue_archive a ON a.id = m.id AND a.queue_id = q.id",
            [name],
        )
        return float(delay)

    return {"a callback": measure}


def _is_done(batch: Batch) -> bool:
    batch.refresh_from_db()
    return batch.done_at is not None
