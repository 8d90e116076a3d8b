"""Give heads to groups that lack one, and put followers back behind their heads."""

from __future__ import annotations

from collections.abc import Sequence

from django_pgqueue.engine import arguments
from django_pgqueue.engine.open_queue import OpenQueue

__all__ = ["give_heads", "promote", "recheck", "set_back"]

#: One statement processes at most this many rechecks, or sets back this many messages.
BATCH = 1000
#: In the caller's transaction, one statement gives a head to at most this many groups.
SHARED_BATCH = 100


def promote(
    queue: OpenQueue, most: int | None, *, alone: bool, rechecked: int = 0
) -> tuple[bool, int]:
    """Give a head to groups that may lack one.

    Looks at each group that has a recheck until some have a new head that is due. Returns whether
    there may be more such groups, and the id up to which all rechecks are processed.

    Arguments:
        alone: false in the caller's transaction, which keeps a group locked until it ends if it
            gives the group a head. It does so for ``most`` groups, and for more only if these heads
            are delayed.
        rechecked: only rechecks with a higher id are processed.
    """
    limit = BATCH if alone else SHARED_BATCH
    params = {
        "batch": BATCH,
        "groups": limit if alone or most is None else min(most, limit),
        "alone": alone,
        "rechecked": rechecked,
    }
    passed: list[str] = []
    processed = None
    while True:
        [(heads, reached, more, looked_at)] = queue.run(
            "groups/promote", {**params, "passed": passed}
        )
        if processed is None:
            processed = rechecked if reached is None else reached
        if heads or not more:
            return more, processed
        passed += looked_at
        params["groups"] = min(10 * params["groups"], limit)


def give_heads(queue: OpenQueue) -> None:
    """Give a head to groups that may lack one, before a long transaction reads the queue.

    The transaction would keep these groups locked, and their heads from other readers.
    """
    if queue.run("groups/any_recheck"):
        promote(queue, None, alone=queue.runner.alone)


def set_back(queue: OpenQueue) -> bool:
    """Make followers with an expired lease wait behind their head again. Returns whether there were
    any."""
    return bool(queue.run("groups/set_back", {"batch": BATCH}))


def recheck(queue: OpenQueue, ids: Sequence[int]) -> None:
    """Insert rechecks for the groups of retried messages: their other messages may start now."""
    queue.run("groups/recheck", {"ids": arguments.array(ids)})
