"""What the notes of workers show."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable

from tests.promises.full_speed import Note

__all__ = ["deliveries", "held_by_two", "over_the_rate"]


def deliveries(notes: Iterable[Note]) -> dict[int, list[Note]]:
    """The deliveries of each message, by the time of the read."""
    found: dict[int, list[Note]] = defaultdict(list)
    for note in notes:
        if note["event"] == "read":
            found[note["id"]].append(note)
    return {pk: sorted(reads, key=lambda note: note["read_at"]) for pk, reads in found.items()}


def held_by_two(notes: Iterable[Note]) -> list[tuple[Note, Note]]:
    """Deliveries of a message while an earlier one had its lease.

    A lease ends at its vt, by the server's clock, or once its reader begins to settle it.
    """
    notes = list(notes)
    ends = {
        (note["id"], note["read_ct"], note["read_at"]): note["at"]
        for note in notes
        if note["event"] == "ends" and note["way"] != "leave"
    }
    return [
        (one, two)
        for reads in deliveries(notes).values()
        for one, two in itertools.pairwise(reads)
        if two["read_at"] < one["vt"]
        and not ends.get((one["id"], one["read_ct"], one["read_at"]), two["at"]) < two["at"]
    ]


def over_the_rate(starts: Iterable[int], per_second: float, burst: int) -> list[int]:
    """Starts, in microseconds, that came too early: in some time T more than rate * T + burst."""
    spacing = 1_000_000 / per_second
    free_at, early = 0.0, []
    for start in sorted(starts):
        free_at = max(free_at, start) + spacing
        # A microsecond for the server's rounding of each start.
        if free_at - start > burst * spacing + 1:
            early.append(start)
    return early
