"""Steps of workers around a source and its subscriptions, for ``tests.promises.full_speed``.

Only what a process without Django can import. A sender records the ids of its messages in a
table, in the transaction that sends them.

A reader notes each delivery ("read"), what it is about to ack
("acking"), what it has acked ("acked") and that the server has answered.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from django_pgqueue import bare
from django_pgqueue.bare import OpenQueue
from django_pgqueue.engine.redrive.redriving import redrive
from django_pgqueue.engine.settle.settling import purge
from django_pgqueue.engine.subscriptions.positions import seek
from tests.promises.full_speed import Worker

__all__ = ["consume_source", "move", "read_subscription", "send_late", "throw_away"]

#: How a reader ends its deliveries. Half of them it acks together.
_WAYS = ("archive", "archive", "delete", "retry", "retry later", "release", "extend", "leave")


class _RolledBack(Exception):
    pass


def opened(worker: Worker, name: str) -> OpenQueue:
    """The queue of this name, in the worker's session."""
    found = worker.memory.get(name)
    if found is None or found.runner.session is not worker.connection:
        found = worker.memory[name] = bare.open_queue(worker.connection, name)
    return found


def send_late(worker: Worker, most: int = 300) -> None:
    """Send in a transaction that stays open for a while; a third of them roll back."""
    draw = worker.draw
    with suppress(_RolledBack), worker.connection.transaction():
        for _ in range(draw.choice([1, 1, 2])):
            options = {"delay": 0.02} if draw.random() < 0.1 else {}
            ids = bare.send_batch(worker.queue, [0] * draw.choice([1, 3, 12]), **options)
            worker.connection.execute(
                "INSERT INTO tests_sent SELECT unnest(%s::bigint[])", [[int(pk) for pk in ids]]
            )
            time.sleep(draw.choice([0, 0, 0.001, 0.03]))
        if draw.random() < 0.3:
            raise _RolledBack
    [(length,)] = worker.connection.execute(
        "SELECT count(*) FROM (SELECT FROM pgqueue_message LIMIT %s) m", [most * 10]
    ).fetchall()
    time.sleep(0.05 if length == most * 10 else 0.005)


def read_subscription(
    worker: Worker, name: str, *, vt: float = 0.3, qty: Sequence[int] = (1, 7, 40)
) -> None:
    """Read, and end the deliveries in all ways."""
    draw, queue = worker.draw, opened(worker, name)
    found = bare.read(queue, qty=draw.choice(qty), vt=vt)
    for each in found:
        worker.note("read", queue=name, id=each.id, read_at=each.read_at, read_ct=each.read_ct)
    if not found:
        time.sleep(0.002)
        return
    if draw.random() < 0.05:
        time.sleep(vt * 1.2)
    together = len(found) if draw.random() < 0.5 else draw.randrange(len(found) + 1)
    _ack(worker, name, queue, [each.receipt for each in found[:together]])
    for each in found[together:]:
        way = draw.choice(_WAYS)
        if way in ("archive", "delete"):
            _ack(worker, name, queue, [each.receipt], way)
        elif way.startswith("retry"):
            bare.retry(queue, {each.receipt: 0.01 if way == "retry later" else 0})
        elif way == "release":
            bare.release(queue, [each.receipt])
        elif way == "extend" and bare.set_vt(queue, each.receipt, draw.choice([0, vt])):
            _ack(worker, name, queue, [each.receipt] if draw.random() < 0.5 else [])


def _ack(
    worker: Worker, name: str, queue: OpenQueue, receipts: list[bare.Receipt], way: str = "archive"
) -> None:
    if not receipts:
        return
    acts = {"archive": bare.archive, "delete": bare.delete}
    number = worker.memory["acks"] = worker.memory.get("acks", 0) + 1
    ids = [pk for pk, *_ in receipts]
    worker.note("acking", queue=name, ids=ids, number=number)
    lost = acts[way](queue, receipts).lost
    for pk, read_ct, read_at in set(receipts) - set(lost):
        worker.note("acked", queue=name, id=pk, read_at=read_at, read_ct=read_ct)
    worker.note("answered", number=number)


def consume_source(worker: Worker) -> None:
    """Be a consumer of the source: complete, delete and fail; some transactions stay open."""
    draw = worker.draw
    found = bare.read(worker.queue, qty=draw.choice([1, 5]), vt=30)
    if not found:
        time.sleep(0.005)
    for each in found:
        with worker.connection.transaction():
            way = draw.choice(["archive", "delete", "fail"])
            if way == "archive":
                bare.archive(worker.queue, each.receipt)
            elif way == "delete":
                bare.delete(worker.queue, each.receipt)
            else:
                bare.fail(worker.queue, {each.receipt: "as told"})
            time.sleep(draw.choice([0, 0, 0, 0.01]))


def throw_away(worker: Worker) -> None:
    """Purge the source, delete messages that nobody has read, and send dead letters back."""
    draw = worker.draw
    time.sleep(0.02)
    way = draw.choice(["purge", "delete", "delete", "redrive"])
    if way == "purge" and draw.random() < 0.2:
        purge(worker.queue)
    elif way == "redrive":
        redrive(opened(worker, "dead"))
    else:
        ids = worker.connection.execute(
            "SELECT id FROM pgqueue_ready WHERE queue_id = %s ORDER BY id DESC LIMIT 3",
            [worker.queue.id],
        ).fetchall()
        bare.delete(worker.queue, [pk for (pk,) in ids])


def move(worker: Worker, name: str) -> None:
    """Seek to a random place."""
    time.sleep(0.05)
    [(last,)] = worker.connection.execute("SELECT coalesce(max(id), 1) FROM tests_sent").fetchall()
    target = worker.draw.choice(["earliest", "now", worker.draw.randrange(1, last + 1)])
    seek(opened(worker, name), target)
