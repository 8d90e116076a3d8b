"""Leases of whole batches: one row in place of one for each message.

A read that takes many fresh messages writes one row of ``lease`` in place of as many rows of
``deferred``: 900 bytes of write-ahead log a message in place of 1,200. The receipts know their
batch, so that an ack of all of it, or of a good part, goes by that row. Every other operation
unfolds the lease first: from there on each message is a row of ``deferred``, as if it had been read
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django_pgqueue import arguments
from django_pgqueue.engine.queue import OpenQueue
from django_pgqueue.engine.rows import Delivery
from django_pgqueue.types import Batch, Receipt

__all__ = ["BATCH_FROM", "archive_batches", "in_batches", "open_ended", "rescue", "unfold"]

#: From how many messages on those of one read are leased together: fewer cost as much one by one.
BATCH_FROM = 16
#: An ack of less than one in this many costs more to write than to unfold the lease once.
_SHARE = 4
_ID, _PRIORITY = map(Delivery._fields.index, ("id", "priority"))


def in_batches(rows: Sequence[tuple[Any, ...]]) -> list[Delivery]:
    """Deliveries that were leased together, one batch for each priority."""
    ids: dict[int, list[int]] = {}
    for row in rows:
        ids.setdefault(row[_PRIORITY], []).append(row[_ID])
    batches = {priority: Batch(min(each), len(each)) for priority, each in ids.items()}
    return [Delivery._make((*row, None, batches[row[_PRIORITY]])) for row in rows]


def archive_batches(queue: OpenQueue, receipts: Iterable[Receipt], ran: int) -> set[int]:
    """Archive messages of which a batch, or a good part of it, is done, by their leases."""
    together: dict[tuple[Batch, int], list[int]] = {}
    for receipt in receipts:
        if receipt.batch is not None:
            together.setdefault((receipt.batch, receipt.read_at), []).append(receipt.id)
    whole = [(b.head, at, ids) for (b, at), ids in together.items() if len(ids) == b.size]
    part = [
        (b.head, at, ids)
        for (b, at), ids in together.items()
        if len(ids) < b.size <= len(ids) * _SHARE
    ]
    done: set[int] = set()
    for statement, leases in (("leases/archive_batch", whole), ("leases/archive_part", part)):
        if leases:
            # In the order of their heads: all transactions lock several leases in one order.
            heads, read_ats, ids = zip(*sorted(leases), strict=True)
            params = {
                "heads": arguments.array(heads),
                "read_ats": arguments.array(read_ats),
                "members": arguments.array(f'"{arguments.array(sorted(each))}"' for each in ids),
                "ran": ran,
            }
            done |= {pk for (pk,) in queue.run(statement, params)}
    return done


def unfold(queue: OpenQueue, ids: Iterable[int]) -> int:
    """Turn the leases that hold these messages into rows of deferred; how many rows."""
    [(count,)] = queue.run("leases/unfold", {"ids": arguments.array(ids)})
    return int(count)


def open_ended(queue: OpenQueue) -> None:
    """Unfold all leases that ran out."""
    while queue.run("leases/open_ended"):
        pass


def rescue(queue: OpenQueue, process_id: int) -> int:
    """Make readable at once the messages that a dead consumer process held; returns how many.

    ``process_id`` is the id of its row.
    """
    holder = arguments.count(process_id, "process_id")
    [(count,)] = queue.run("leases/rescue", {"process_id": holder})
    return int(count)
