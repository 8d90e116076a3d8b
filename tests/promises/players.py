"""Steps of workers: senders and readers of every kind, in threads and in processes.

Only what a process without Django can import. A reader notes each delivery ("read") and, before it
settles it, how ("ends"), then whether the receipt was lost ("ended").
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from django_pgqueue import bare
from django_pgqueue.bare import Delivery, OpenQueue
from django_pgqueue.types import Settled
from tests.promises.full_speed import Worker

__all__ = ["WAYS", "read_and_end", "read_by_pgmq", "send"]

#: Every way to end a lease by its receipt. Those in BACK give the message back.
WAYS: dict[str, Callable[[OpenQueue, Delivery], Settled]] = {
    "archive": lambda queue, message: bare.archive(queue, message.receipt),
    "delete": lambda queue, message: bare.delete(queue, message.receipt),
    "cancel": lambda queue, message: bare.cancel(queue, message.receipt),
    "fail": lambda queue, message: bare.fail(queue, {message.receipt: "as told"}),
    "retry": lambda queue, message: bare.retry(queue, {message.receipt: 0}),
    "retry later": lambda queue, message: bare.retry(queue, {message.receipt: 0.01}),
    "release": lambda queue, message: bare.release(queue, [message.receipt]),
    "set_vt": lambda queue, message: bare.set_vt(queue, message.receipt, 0),
    #: Lets the lease expire.
    "leave": lambda queue, message: Settled([message.id]),
}


def read_and_end(
    worker: Worker,
    ways: Sequence[str] = ("archive", "retry", "release"),
    *,
    read: Callable[..., list[Delivery]] = bare.read,
    qty: int | Sequence[int] = 1,
    vt: float = 30,
    in_transaction: bool = False,
) -> None:
    """Read once, and end each message's lease in one of these ways."""
    if in_transaction:
        with worker.connection.transaction():
            _read_and_end(worker, ways, read, qty, vt, in_transaction=True)
    else:
        _read_and_end(worker, ways, read, qty, vt)


def _read_and_end(
    worker: Worker,
    ways: Sequence[str],
    read: Callable[..., list[Delivery]],
    qty: int | Sequence[int],
    vt: float,
    **options: Any,
) -> None:
    queue = worker.queue
    number = qty if isinstance(qty, int) else worker.draw.choice(qty)
    for message in read(queue, qty=number, vt=vt, **options):
        delivery = {"id": message.id, "read_ct": message.read_ct, "read_at": message.read_at}
        worker.note("read", vt=message.vt, group=message.group_key, **delivery)
        way = worker.draw.choice(ways)
        worker.note("ends", way=way, **delivery)
        settled = WAYS[way](queue, message)
        worker.note("ended", way=way, lost=bool(settled.lost), **delivery)


def read_by_pgmq(worker: Worker, function: str = "read", qty: int = 1, vt: int = 30) -> None:
    """Read by one of PGMQ's functions; archive some, and give others back."""
    rows = worker.connection.execute(
        "SELECT msg_id, read_ct, (extract(epoch FROM last_read_at) * 1000000)::bigint, "
        "(extract(epoch FROM vt) * 1000000)::bigint, headers "
        f"FROM pgmq.{function}('orders', %s, %s)",
        [vt, qty],
    ).fetchall()
    for pk, read_ct, read_at, until, headers in rows:
        delivery = {"id": pk, "read_ct": read_ct, "read_at": read_at}
        group = (headers or {}).get("x-pgmq-group")
        worker.note("read", vt=until, group=group, **delivery)
        way = worker.draw.choice(["archive", "set_vt"])
        worker.note("ends", way=way, **delivery)
        call = "archive('orders', %s)" if way == "archive" else "set_vt('orders', %s, 0)"
        worker.connection.execute(f"SELECT pgmq.{call}", [pk])
        worker.note("ended", way=way, lost=False, **delivery)


def send(worker: Worker, *, groups: int = 0, most: int = 200, **options: Any) -> None:
    """Send numbered messages, alone or in a batch, unless many are waiting."""
    number = worker.memory.get("sent", 0)
    qty = worker.draw.choice([1, 1, 30])
    worker.memory["sent"] = number + qty
    bodies = [{"n": number + n} for n in range(qty)]
    group = f"group {worker.draw.randrange(groups)}" if groups else None
    if qty == 1:
        bare.send(worker.queue, bodies[0], group=group, **options)
    else:
        bare.send_batch(worker.queue, bodies, group=group, **options)
    [(length,)] = worker.connection.execute(
        "SELECT count(*) FROM (SELECT FROM pgqueue_live LIMIT %s) l", [most]
    ).fetchall()
    if length == most:
        time.sleep(0.01)
