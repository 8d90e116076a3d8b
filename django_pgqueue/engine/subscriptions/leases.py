"""Batch leases of a subscription: what an ack and an extension change.

A read of a subscription writes only these leases. An ack takes messages out of their lease, and an
extension changes the lease's timeout. Every other operation unfolds the lease as in any queue
(:mod:`django_pgqueue.engine.leases.batches`); the messages then become the subscription's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django_pgqueue.engine import arguments
from django_pgqueue.engine.leases.batches import by_lease, settle_leases
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.types import Receipt

__all__ = ["settle"]

# An expired message that a read has just leased is skipped like an acknowledged one.
_FORGET = "archive", "delete", "expire"


def settle(
    queue: OpenQueue, operation: str, receipts: Sequence[Receipt], params: Mapping[str, Any]
) -> set[int]:
    """Settle those of the deliveries that are in batch leases. Returns their ids.

    Arguments:
        operation: the name of a fenced statement. Only an ack, a deletion and a change of the
            timeout are settled here.
        params: the parameters of that statement.
    """
    first = [receipt for receipt in receipts if receipt.read_ct == 1]
    done: set[int] = set()
    if not first:
        return done
    if operation == "set_vt":
        statement, values = "subscriptions/extend", dict(params)
    elif operation in _FORGET and not (operation == "archive" and queue.archive_completed):
        statement, values = "subscriptions/forget", {}
        together = by_lease(first)
        whole = {lease: ids for lease, ids in together.items() if len(ids) == lease.batch.size}
        done = settle_leases(queue, "subscriptions/forget_whole", whole)
        first = [receipt for receipt in first if receipt.id not in done]
    else:
        return done
    # Another change of the same lease makes the statement miss its row: once more finds it.
    for _attempt in range(2):
        if first:
            fence = {
                "ids": arguments.array(receipt.id for receipt in first),
                "read_ats": arguments.array(receipt.read_at for receipt in first),
            }
            done |= {pk for (pk,) in queue.run(statement, {**values, **fence})}
            first = [receipt for receipt in first if receipt.id not in done]
    return done
