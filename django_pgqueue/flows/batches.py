"""The members of batches: which they are, and how many have ended."""

from __future__ import annotations

from collections.abc import Sequence

from django_pgqueue.engine import arguments
from django_pgqueue.engine.names import MESSAGE, own_table
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.runner import Runner
from django_pgqueue.engine.statements import load, render

__all__ = ["HEADER", "OUTCOMES", "add", "count", "uncounted"]

#: The header of a member, with the id of its batch; and of a callback, with what became of it.
HEADER = "x-batch"
#: How members end, each with a column of its own: as states of the archive, or elsewhere.
OUTCOMES = ("completed", "failed", "dead_lettered", "cancelled", "expired", "replaced", "deleted")
#: Members in a part.
PART = 1000

_SUMS = "".join(
    f",\n           count(*) FILTER (WHERE outcome = '{each.upper()}') AS {each}"
    for each in OUTCOMES
)
_ADDED = ", ".join(f"{each} = b.{each} + c.{each}" for each in OUTCOMES)
_UNCOUNTED = """
    SELECT e.id::bigint FROM (SELECT ids FROM pgqueue_batch_part WHERE batch_id = %(batch)s::bigint
                              ORDER BY first LIMIT 1) p
    CROSS JOIN jsonb_array_elements_text(p.ids) e (id)
"""


def add(runner: Runner, batch: int, ids: Sequence[int]) -> int | None:
    """Add members to a batch. Returns how many it has; None, and adds none, if it is sealed."""
    params = {"batch": batch, "ids": arguments.array(list(ids)), "part": PART}
    rows = runner.run(load("add_members", __package__), params)
    return int(rows[0][0]) if rows else None


def count(queue: OpenQueue, batches: Sequence[int], most: int) -> dict[int, int]:
    """Count members that have ended, of batches that the caller has locked.

    ``most`` is about how many members of each batch are looked at, of those before and behind the
    place that the last count has reached. Returns the larger number of the two, by batch, without
    batches of which no member had ended.
    """
    dead = queue.dead_letter_queue_id
    names = {
        "sums": _SUMS,
        "added": _ADDED,
        "dead_message": own_table(MESSAGE, queue.id if dead is None else dead),
    }
    text = render("count_members", queue.id, tuple(names.items()), __package__)
    rows = queue.runner.run(text, {"batches": list(batches), "most": most})
    return dict(rows)


def uncounted(runner: Runner, batch: int) -> list[int]:
    """Return the first members of a batch that are not counted. Empty: all are."""
    return [pk for (pk,) in runner.run(_UNCOUNTED, {"batch": batch})]
