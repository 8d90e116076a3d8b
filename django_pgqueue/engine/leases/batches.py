"""Batch leases: one lease row for the messages of a read that have the same priority.

A read that takes many new messages writes these rows instead of a row of ``deferred`` for each
message: 900 bytes of write-ahead log per message instead of 1,200. A receipt names its batch, so an
ack of the batch, or of a large part of it, changes only the lease row. Every other operation
*unfolds* the lease first: it replaces the lease by a row of ``deferred`` for each message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from django_pgqueue.engine import arguments
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.rows import Delivery
from django_pgqueue.types import Batch, Receipt

__all__ = [
    "BATCH_FROM",
    "archive_batches",
    "by_lease",
    "in_batches",
    "open_ended",
    "rescue",
    "settle_leases",
    "unfold",
]

#: Reads of fewer messages write a row for each message, which costs no more.
BATCH_FROM = 16
#: An ack of less than a quarter (1 / _SHARE) of a batch unfolds the lease, which is cheaper.
_SHARE = 4
_ID, _PRIORITY = map(Delivery._fields.index, ("id", "priority"))


def in_batches(rows: Sequence[tuple[Any, ...]]) -> list[Delivery]:
    """Convert the rows of one read to deliveries. Messages of equal priority form a batch."""
    ids: dict[int, list[int]] = {}
    for row in rows:
        ids.setdefault(row[_PRIORITY], []).append(row[_ID])
    batches = {priority: Batch(min(each), len(each)) for priority, each in ids.items()}
    return [Delivery._make((*row, batches[row[_PRIORITY]], None)) for row in rows]


def archive_batches(
    queue: OpenQueue, receipts: Iterable[Receipt], *, ran: int, results: str | None
) -> set[int]:
    """Archive messages if at least a quarter of their batch is given. Returns the archived ids.

    ``results`` is a JSON object of results by id.
    """
    params = {"ran": ran, "results": results}
    together = by_lease(receipts)
    whole = {lease: ids for lease, ids in together.items() if len(ids) == lease.batch.size}
    part = {
        lease: ids
        for lease, ids in together.items()
        if len(ids) < lease.batch.size <= len(ids) * _SHARE
    }
    done = settle_leases(queue, "leases/archive_batch", whole, params)
    return done | settle_leases(queue, "leases/archive_part", part, params)


class Lease(NamedTuple):
    """A batch lease, as its receipts name it."""

    batch: Batch
    read_at: int


def by_lease(receipts: Iterable[Receipt]) -> dict[Lease, list[int]]:
    """Return the ids of the messages that were read in a batch, by its lease."""
    together: dict[Lease, list[int]] = {}
    for receipt in receipts:
        if receipt.batch is not None:
            together.setdefault(Lease(receipt.batch, receipt.read_at), []).append(receipt.id)
    return together


def settle_leases(
    queue: OpenQueue,
    statement: str,
    leases: Mapping[Lease, Iterable[int]],
    params: Mapping[str, Any] = MappingProxyType({}),
) -> set[int]:
    """Run a statement on some messages of each lease. Returns the ids that it settled."""
    if not leases:
        return set()
    # Leases are sorted by head, so that all transactions lock them in the same order.
    ordered = sorted((lease.batch.head, lease.read_at, ids) for lease, ids in leases.items())
    heads, read_ats, members = zip(*ordered, strict=True)
    given = {
        "heads": arguments.array(heads),
        "read_ats": arguments.array(read_ats),
        "members": arguments.array(f'"{arguments.array(sorted(each))}"' for each in members),
    }
    return {pk for (pk,) in queue.run(statement, {**params, **given})}


def unfold(queue: OpenQueue, ids: Iterable[int]) -> int:
    """Replace these messages' batch leases by rows of deferred. Returns how many rows."""
    [(count,)] = queue.run("leases/unfold", {"ids": arguments.array(ids)})
    return int(count)


def open_ended(queue: OpenQueue) -> None:
    """Replace all expired batch leases by rows of deferred."""
    while queue.run("leases/open_ended"):
        pass


def rescue(queue: OpenQueue, process_id: int) -> int:
    """Make the leased messages of a dead consumer process readable at once. Returns how many.

    ``process_id`` is the id of the process's row.
    """
    holder = arguments.count(process_id, "process_id")
    [(count,)] = queue.run("leases/rescue", {"process_id": holder})
    return int(count)
