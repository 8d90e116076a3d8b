"""Leases messages of a queue for a batch, with the operations that all clients use."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from django_pgqueue.engine import arguments
from django_pgqueue.engine.columns import read_columns
from django_pgqueue.engine.names import table_names
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.read.grouped import follow
from django_pgqueue.engine.read.reading import lease
from django_pgqueue.engine.rows import Delivery
from django_pgqueue.engine.times import as_microseconds
from django_pgqueue.types import Receipt
from pyspark_pgqueue.source import database

#: The most messages that one statement leases.
CHUNK = 2_000
#: With a limit in bytes: the number of messages leased before any size is known.
FIRST_CHUNK = 16


@dataclass(frozen=True)
class Taken:
    """Deliveries of one queue in one batch, in a compact text form.

    >>> told = Taken.of(7, [Receipt(1, 1, 5), Receipt(2, 1, 5), Receipt(9, 2, 5)])
    >>> told.parts
    ('1@5:1-2', '2@5:9')
    >>> [receipt.id for receipt in told]
    [1, 2, 9]
    """

    queue_id: int
    #: Texts like ``2@5:9``: a delivery count, the time of the read, and ranges of message ids.
    parts: tuple[str, ...]
    #: Whether some of the messages belong to FIFO groups.
    grouped: bool = False

    @classmethod
    def of(cls, queue_id: int, receipts: Iterable[Receipt], grouped: bool = False) -> Taken:
        ids: dict[tuple[int, int], list[int]] = defaultdict(list)
        for receipt in receipts:
            ids[receipt.read_ct, receipt.read_at].append(receipt.id)
        parts = (f"{ct}@{at}:{_ranges(sorted(found))}" for (ct, at), found in ids.items())
        return cls(queue_id, tuple(parts), grouped)

    @property
    def count(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Receipt]:
        for part in self.parts:
            delivery, _, ranges = part.partition(":")
            read_ct, _, read_at = delivery.partition("@")
            for each in ranges.split(","):
                first, _, last = each.partition("-")
                for pk in range(int(first), int(last or first) + 1):
                    yield Receipt(pk, int(read_ct), int(read_at))


def _ranges(ids: Sequence[int]) -> str:
    found = []
    # Consecutive ids differ from their indexes by the same number.
    for _, run in groupby(enumerate(ids), key=lambda pair: pair[1] - pair[0]):
        members = [pk for _, pk in run]
        found.append(str(members[0]) + (f"-{members[-1]}" if len(members) > 1 else ""))
    return ",".join(found)


def take(queue: OpenQueue, vt: dt.timedelta, most: int, most_bytes: int | None = None) -> Taken:
    """Lease up to ``most`` messages, or until their bodies have ``most_bytes``.

    Bytes are a soft limit: a message's size is known only once it is leased. Several messages of a
    FIFO group are leased at once, if none of the group is in flight.
    """
    # Only executors read the bodies. For a limit in bytes, this process reads their sizes.
    size = "NULL::jsonb" if most_bytes is None else "to_jsonb(octet_length(m.body::text))"
    columns = read_columns(body=size, headers="NULL::jsonb")
    taken: list[Delivery] = []
    while len(taken) < most:
        size_so_far = sum(int(delivery.body or 0) for delivery in taken)
        room = min(most - len(taken), CHUNK)
        if most_bytes is not None:
            if size_so_far >= most_bytes:
                break
            each = size_so_far / len(taken) if taken else 0
            room = min(room, int((most_bytes - size_so_far) / each) + 1 if each else FIRST_CHUNK)
        heads = lease(queue, vt=vt, qty=room, batched=False, read_columns=columns)
        if not heads:
            break
        taken += heads
        grouped = [head.receipt for head in heads if head.group_key is not None]
        left = room - len(heads)
        taken += follow(queue, grouped, vt=vt, qty=left, in_rounds=False, read_columns=columns)
    return Taken.of(
        queue.id,
        (delivery.receipt for delivery in taken),
        any(delivery.group_key is not None for delivery in taken),
    )


def newest(queue: OpenQueue) -> int:
    """The id of the newest message, queued or archived."""
    [(pk,)] = queue.runner.run(f"SELECT coalesce(max(id), 0) FROM {queue.message_table}")
    return int(pk)


def has_any_up_to(queue: OpenQueue, pk: int) -> bool:
    """Whether a message up to this id could be read now."""
    [(found,)] = queue.runner.run(_sql("any_up_to", queue), {"pk": pk})
    return bool(found)


def groups_of(queue: OpenQueue, receipts: Sequence[Receipt]) -> dict[int, str]:
    """Return the FIFO group of each message that has one, by id."""
    ids = arguments.array(receipt.id for receipt in receipts)
    return dict(queue.runner.run(_sql("groups", queue), {"ids": ids}))


def archived(queue: OpenQueue, receipts: Sequence[Receipt]) -> set[Receipt]:
    """Return the receipts whose messages an earlier call archived, before its answer was lost."""
    if not receipts:
        return set()
    text = _sql("archived", queue)
    return {Receipt(*row) for row in queue.runner.run(text, arguments.fence(receipts))}


def _sql(name: str, queue: OpenQueue) -> str:
    names = {**table_names(queue.id), "last_read_at": as_microseconds("a.last_read_at")}
    return database.sql(f"consume/taking/{name}", **names)
