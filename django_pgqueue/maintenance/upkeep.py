"""The small steps of a round: repair the wake sequence, delete what nothing needs any more."""

from __future__ import annotations

import random
from typing import Any

from django_pgqueue.conf import settings
from django_pgqueue.engine.names import MESSAGE, own_table, own_tables
from django_pgqueue.maintenance.work import Work

#: One transaction checks at most this many keys, or deletes at most this many slots.
SWEPT = 5000
#: The most attempts, steps or notes that one statement reads or deletes.
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
    page: dict[str, Any] = {"before": work.before, "batch": PRUNED, "at": "-infinity", "id": 0}
    while True:
        found = work.fetch("look_attempts", page, dead_message=_dead_message(work))
        if gone := [pk for pk, _, there in found if not there]:
            work.fetch("prune_attempts", {"ids": gone})
        if len(found) < PRUNED:
            return
        page["id"], page["at"], _ = found[-1]


def prune_steps(work: Work) -> None:
    """Delete steps and notes whose message is gone, waits of ended messages, and old signals.

    Messages go in the order of their ids, but for single ones that were deleted. So this looks at
    the lowest ids, and then at those after a random one, each time while it finds some. To look at
    all, which may be millions, would take too long.
    """
    for kept in ("pgqueue_step", "pgqueue_note"):
        last = _prune_pages(work, kept, 0)
        if last is not None:
            most = f"SELECT max(message_id) FROM {kept} WHERE queue_id = %s"
            highest = work.value(most, [work.queue.pk]) or last  # another process may prune, too
            _prune_pages(work, kept, random.randint(last, max(last, highest)))
    for statement in ("prune_waits", "prune_signals"):
        while len(work.fetch(statement, {"batch": PRUNED})) == PRUNED:
            pass


def prune_batches(work: Work) -> None:
    """Delete the batches that were done before ``work.before``, as their members are deleted.

    A batch stays while its callback's message is in the queue.
    """
    if work.before is None:
        return
    page = {"before": work.before, "batch": PRUNED}
    for then, queue_id in work.fetch("called_queues", page):
        message, archive = own_tables(queue_id or work.queue.pk)  # a dropped queue has no messages
        tables: dict[str, Any] = {"then_message": message, "then_archive": archive}
        while len(work.fetch("prune_batches", {**page, "then": then}, **tables)) == PRUNED:
            work.tell()


def _prune_pages(work: Work, kept: str, after: int) -> int | None:
    """Prune pages while they have something to delete. Returns the last id; None at the end."""
    queue = work.queue
    tables: dict[str, Any] = {
        "kept": kept,
        "source_message": own_table(MESSAGE, queue.source_id or queue.pk),
        "dead_message": _dead_message(work),
    }
    while True:
        page = {"after": after, "batch": PRUNED}
        [(last, looked, gone)] = work.fetch("look_steps", page, **tables)
        deleted = gone and work.fetch("prune_steps", {"ids": gone}, kept=kept)
        if looked < PRUNED:
            return None
        if not deleted:
            return int(last)
        after = last


def _dead_message(work: Work) -> str:
    """The table of the queue's dead letters; without any its own."""
    return own_table(MESSAGE, work.queue.dead_letter_queue_id or work.queue.pk)
