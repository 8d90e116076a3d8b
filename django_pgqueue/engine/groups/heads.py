"""Give heads to FIFO groups that lack one, and put followers back behind their heads."""

from __future__ import annotations

from collections.abc import Sequence

from django_pgqueue import arguments
from django_pgqueue.engine.open_queue import OpenQueue

__all__ = ["promote", "recheck", "set_back"]

#: One statement processes at most this many rechecks, or sets back this many messages.
BATCH = 1000
#: In the caller's transaction, one statement processes at most this many rechecks.
SHARED_BATCH = 100


def promote(
    queue: OpenQueue, most: int | None, *, alone: bool, rechecked: int = 0
) -> tuple[bool, int]:
    """Give a head to groups that may lack one.

    Returns whether there may be more such groups, and the id up to which all rechecks are
    processed.

    Arguments:
        alone: false in the caller's transaction, which keeps the groups locked until it ends.
            There, at most ``most`` groups get a head.
        rechecked: only rechecks with a higher id are processed.
    """
    batch = BATCH if alone else SHARED_BATCH
    groups = batch if alone or most is None else min(most, batch)
    params = {"batch": batch, "groups": groups, "alone": alone, "rechecked": rechecked}
    [(_heads, settled, reached)] = queue.run("groups/promote", params)
    return settled >= groups, rechecked if reached is None else reached


def set_back(queue: OpenQueue) -> bool:
    """Make followers with an expired lease wait behind their head again. Returns whether there were
    any."""
    return bool(queue.run("groups/set_back", {"batch": BATCH}))


def recheck(queue: OpenQueue, ids: Sequence[int]) -> None:
    """Insert rechecks for the groups of retried messages: their other messages may start now."""
    queue.run("groups/recheck", {"ids": arguments.array(ids)})
