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

__all__ = [
    "FOR_GOOD",
    "WAYS",
    "read_and_end",
    "read_by_pgmq",
    "read_in_line",
    "send",
    "send_with_key",
]

#: Every way to end a lease by its receipt.
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
#: The ways after which the message is not delivered again.
FOR_GOOD = ("archive", "delete", "cancel", "fail")


def read_and_end(
    worker: Worker,
    ways: Sequence[str] = ("archive", "retry", "release"),
    *,
    read: Callable[..., list[Delivery]] = bare.read,
    qty: int | Sequence[int] = 1,
    vt: float = 30,
    work: float = 0,
    in_transaction: bool = False,
) -> None:
    """Read once, work for up to ``work`` seconds, and end each lease in one of these ways."""
    if in_transaction:
        with worker.connection.transaction():
            _read_and_end(worker, ways, read, qty, vt, work, in_transaction=True)
    else:
        _read_and_end(worker, ways, read, qty, vt, work)


def _read_and_end(
    worker: Worker,
    ways: Sequence[str],
    read: Callable[..., list[Delivery]],
    qty: int | Sequence[int],
    vt: float,
    work: float,
    **options: Any,
) -> None:
    number = qty if isinstance(qty, int) else worker.draw.choice(qty)
    found = read(worker.queue, qty=number, vt=vt, **options)
    for message in found:
        _note_read(worker, message)
    if found and work:
        time.sleep(worker.draw.uniform(0, work))
    for message in found:
        _end(worker, message, worker.draw.choice(ways))


def _note_read(worker: Worker, message: Delivery) -> None:
    worker.note(
        "read",
        id=message.id,
        read_ct=message.read_ct,
        read_at=message.read_at,
        vt=message.vt,
        group=message.group_key,
        priority=message.priority,
    )


def _end(worker: Worker, message: Delivery, way: str) -> bool:
    """End the lease of a message; returns whether the receipt was good."""
    pk, read_ct, read_at = message.receipt
    delivery = {"id": pk, "read_ct": read_ct, "read_at": read_at, "way": way}
    worker.note("ends", **delivery)
    settled = WAYS[way](worker.queue, message)
    worker.note("ended", lost=bool(settled.lost), **delivery)
    return not settled.lost


def read_in_line(
    worker: Worker,
    ways: Sequence[str] = ("archive", "retry"),
    *,
    read: Callable[..., list[Delivery]] = bare.read_grouped,
    qty: Sequence[int] = (1, 5, 20),
    vt: float = 30,
    work: float = 0,
) -> None:
    """Read messages of groups, and handle those of one group one after another.

    The reader releases the followers of a message before it gives the message back.
    """
    lines: dict[str | None, list[Delivery]] = {}
    for message in read(worker.queue, qty=worker.draw.choice(qty), vt=vt):
        lines.setdefault(message.group_key, []).append(message)
    for line in lines.values():
        for number, message in enumerate(line, 1):
            _note_read(worker, message)
            if work:
                time.sleep(worker.draw.uniform(0, work))
            way = worker.draw.choice(ways)
            if way not in FOR_GOOD and line[number:]:
                bare.release(worker.queue, [follower.receipt for follower in line[number:]])
            if not _end(worker, message, way) or way not in FOR_GOOD:
                break


def read_by_pgmq(
    worker: Worker, function: str = "read", qty: int = 1, vt: int = 30, more: str = ""
) -> None:
    """Read by one of PGMQ's functions; archive some, and give others back."""
    rows = worker.connection.execute(
        "SELECT msg_id, read_ct, (extract(epoch FROM last_read_at) * 1000000)::bigint, "
        "(extract(epoch FROM vt) * 1000000)::bigint, "
        "(SELECT group_key FROM pgqueue_message m WHERE m.id = msg_id) "
        f"FROM pgmq.{function}('orders', %s, %s{more})",
        [vt, qty],
    ).fetchall()
    for pk, read_ct, read_at, until, group in rows:
        delivery = {"id": pk, "read_ct": read_ct, "read_at": read_at}
        worker.note("read", vt=until, group=group, **delivery)
        way = worker.draw.choice(["archive", "set_vt"])
        worker.note("ends", way=way, **delivery)
        call = "archive('orders', %s)" if way == "archive" else "set_vt('orders', %s, 0)"
        worker.connection.execute(f"SELECT pgmq.{call}", [pk])
        worker.note("ended", way=way, lost=False, **delivery)


def pop_by_pgmq(worker: Worker) -> None:
    """Take a message for good. Its lease never ends."""
    for pk, read_ct in worker.connection.execute(
        "SELECT msg_id, read_ct FROM pgmq.pop('orders', 1)"
    ).fetchall():
        worker.note("read", id=pk, read_ct=read_ct, read_at=0, vt=1, group=None)


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


def send_with_key(worker: Worker, keys: int = 1, batch: bool = False, **options: Any) -> None:
    """Send a message with one of so many keys, or five in a batch."""
    names = [f"k{worker.draw.randrange(keys)}" for _ in range(5 if batch else 1)]
    if batch:
        sent = bare.send_batch(worker.queue, [0] * 5, unique=names, **options)
    else:
        sent = [bare.send(worker.queue, 0, unique=names[0], **options)]
    for pk in sent:
        worker.note("sent", id=int(pk), conflict=pk.conflict)
