"""What the notes of workers show."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from math import inf
from typing import Any

from tests.promises.full_speed import Note
from tests.promises.players import FOR_GOOD

__all__ = [
    "at_once",
    "deliveries",
    "held_by_two",
    "out_of_order",
    "out_of_turn",
    "over_the_rate",
    "receipt",
    "settled_late",
]


def receipt(note: Note) -> tuple[int, int, int]:
    """What tells a delivery from all others."""
    return note["id"], note["read_ct"], note["read_at"]


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
        receipt(note): note["at"]
        for note in notes
        if note["event"] == "ends" and note["way"] != "leave"
    }
    return [
        (one, two)
        for reads in deliveries(notes).values()
        for one, two in itertools.pairwise(reads)
        if two["read_at"] < one["vt"] and not ends.get(receipt(one), two["at"]) < two["at"]
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


def at_once(notes: Iterable[Note], by: str | None = None, last: str = "ends") -> int:
    """The most messages that were in a reader's hands at once; with ``by``, of one such value.

    A delivery counts from the moment when its reader had it until the reader began to settle it.
    One without a note ``last`` does not count: nobody knows when its reader was killed, or when the
    server ended its transaction.
    """
    notes = list(notes)
    settled = {receipt(note) for note in notes if note["event"] == last}
    most = 0
    held: dict[Any, int] = defaultdict(int)
    keys = {receipt(note): note.get(by) for note in notes if by and note["event"] == "read"}
    for note in notes:
        if note["event"] in ("read", "ends") and receipt(note) in settled:
            key = keys.get(receipt(note))
            if by and key is None:
                continue
            held[key] += 1 if note["event"] == "read" else -1
            most = max(most, held[key])
    return most


def settled_late(notes: Iterable[Note]) -> list[Note]:
    """Settlements that counted, though another reader had leased the message before they began."""
    notes = list(notes)
    begins = {receipt(note): note["at"] for note in notes if note["event"] == "ends"}
    reads = deliveries(notes)
    return [
        note
        for note in notes
        if note["event"] == "ended" and note["way"] != "leave" and not note["lost"]
        for other in reads.get(note["id"], ())
        if other["read_at"] > note["read_at"] and other["at"] < begins[receipt(note)]
    ]


def out_of_order(notes: Iterable[Note]) -> list[Note]:
    """Deliveries in a group of a message before one that was delivered already.

    Leaves out those that were noted after the end of their lease: others may have read the message
    again, and the next one, before its reader came to note it.
    """
    last: dict[str, int] = defaultdict(int)
    found = []
    for note in notes:
        if note["event"] == "read" and note["group"] is not None:
            if note["clock"] * 1_000_000 >= note.get("vt", inf):  # a consumer extends its leases
                continue
            if note["id"] < last[note["group"]]:
                found.append(note)
            last[note["group"]] = max(last[note["group"]], note["id"])
    return found


def out_of_turn(notes: list[Note], ids: Iterable[tuple[str, int]]) -> list[Note]:
    """Deliveries in a group before an earlier one of its messages had ended for good.

    ``ids`` are the groups and ids of all messages.
    """
    waiting: dict[str, list[int]] = defaultdict(list)
    for group, pk in sorted(ids, reverse=True):
        waiting[group].append(pk)
    groups = {note["id"]: note["group"] for note in notes if note["event"] == "read"}
    found = []
    for note in notes:
        if note["event"] == "read" and note["group"] is not None:
            line = waiting[note["group"]]
            # A settlement that was cut off may not have counted: the message comes again.
            if line and note["id"] > line[-1]:
                found.append(note)
        elif note["event"] == "ends" and note["way"] in FOR_GOOD:
            line = waiting[groups[note["id"]]]
            if line and line[-1] == note["id"]:
                line.pop()
    return found
