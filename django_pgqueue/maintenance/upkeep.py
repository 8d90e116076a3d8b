"""The small steps of a round: repair the wake sequence, delete unused keys, slots and attempts."""

from __future__ import annotations

from typing import Any

from django_pgqueue.conf import settings
from django_pgqueue.engine.names import MESSAGE, own_table
from django_pgqueue.maintenance.work import Work

#: One transaction checks at most this many keys, or deletes at most this many slots.
SWEPT = 5000
#: The most attempts that one statement reads or deletes.
PRUNED = 1000


def repair_wake(work: Work) -> None:
    """Repair the sequence that throttles notifications: without it every send notifies.

    Does nothing if the user may not call the function.
    """
    work.value(
        "SELECT pgqueue_repair_wake(%s) "
        "WHERE has_function_privilege('pgqueue_repair_wake(integer)', 'EXECUTE')",
        [work.queue.pk],
    )


def sweep_keys(work: Work) -> None:
    """Delete the unique keys that no message holds, in batches."""
    while True:
        [(seen, deleted)] = work.fetch("sweep_keys", {"batch": SWEPT})
        work.counts["keys"] += deleted
        if seen < SWEPT:
            return
        work.tell()


def sweep_slots(work: Work) -> None:
    """Delete the slots of groups that have no head and are no longer delayed by their rate."""
    while True:
        [(swept,)] = work.fetch("sweep_slots", {"batch": SWEPT})
        if swept < SWEPT:
            return
        work.tell()


def prune_attempts(work: Work) -> None:
    """Delete the oldest attempts beyond ``ATTEMPTS_PER_QUEUE``, and those whose message is gone.

    With a retention, only attempts before ``work.before`` are read: the messages of later
    attempts still exist.
    """
    limit = {"kept": settings.ATTEMPTS_PER_QUEUE, "batch": PRUNED}
    while work.fetch("limit_attempts", limit):
        pass
    queue = work.queue
    dead_message = own_table(MESSAGE, queue.dead_letter_queue_id or queue.pk)
    page: dict[str, Any] = {"before": work.before, "batch": PRUNED, "at": "-infinity", "id": 0}
    while True:
        found = work.fetch("look_attempts", page, dead_message=dead_message)
        if gone := [pk for pk, _, there in found if not there]:
            work.fetch("prune_attempts", {"ids": gone})
        if len(found) < PRUNED:
            return
        page["id"], page["at"], _ = found[-1]
