"""Which message is at the head of each FIFO group: put in order by the readers."""

from __future__ import annotations

from django_pgqueue.engine.queue import OpenQueue

__all__ = ["promote", "set_back"]

#: The most rechecks, or messages to set back, that one statement takes on.
BATCH = 1000


def promote(queue: OpenQueue, qty: int | None, *, alone: bool) -> bool:
    """Give a head to groups that may lack one; whether there may be more of them.

    ``alone``: not in a transaction of the caller's, which would keep the locks. There only as many
    groups get a head as the read needs.
    """
    groups = BATCH if alone or qty is None else qty
    params = {"batch": BATCH, "groups": groups, "alone": alone}
    [(_heads, rechecked)] = queue.run("groups/promote", params)
    return bool(rechecked == BATCH)


def set_back(queue: OpenQueue) -> bool:
    """Put followers back in line whose lease ran out before their head is done; whether any
    were."""
    return bool(queue.run("groups/set_back", {"batch": BATCH}))
