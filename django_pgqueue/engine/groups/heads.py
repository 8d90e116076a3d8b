"""The heads of FIFO groups: a reader gives one to each group that lacks it."""

from __future__ import annotations

from django_pgqueue.engine.open_queue import OpenQueue

__all__ = ["promote", "set_back"]

#: The most rechecks, or messages to set back, in one statement.
BATCH = 1000


def promote(queue: OpenQueue, qty: int | None, *, alone: bool) -> bool:
    """Give a head to groups that may lack one. Returns whether there may be more such groups.

    ``alone`` is false in the caller's transaction, which keeps the locks: there only as many groups
    get a head as the read needs.
    """
    groups = BATCH if alone or qty is None else qty
    params = {"batch": BATCH, "groups": groups, "alone": alone}
    [(_heads, rechecked)] = queue.run("groups/promote", params)
    return bool(rechecked == BATCH)


def set_back(queue: OpenQueue) -> bool:
    """Make followers with an expired lease wait behind their head again. Returns whether there were
    any."""
    return bool(queue.run("groups/set_back", {"batch": BATCH}))
