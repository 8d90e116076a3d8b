"""What the notes of readers and plain SQL show of subscriptions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from tests.conftest import run_sql
from tests.promises.full_speed import Note

__all__ = ["left_over", "missed", "never_sent", "sent", "twice"]

#: Runs a statement with parameters, and returns its rows.
Run = Callable[..., list[tuple[Any, ...]]]
_PLACES = ("lease", "deferred", "ready", "message")


def sent(run: Run = run_sql) -> set[int]:
    """The ids of all messages whose transaction has committed."""
    return {pk for (pk,) in run("SELECT id FROM tests_sent")}


def acks(notes: Iterable[Note], name: str) -> dict[int, list[int]]:
    """The acks of each message that counted, by the times of their deliveries."""
    found: dict[int, list[int]] = defaultdict(list)
    for note in notes:
        if note["event"] == "acked" and note["queue"] == name:
            found[note["id"]].append(note["read_at"])
    return found


def missed(notes: Iterable[Note], name: str, run: Run = run_sql) -> set[int]:
    """Committed messages that a subscription never acknowledged.

    Leaves out those whose reader was killed or cut off before it knew whether its ack counted.
    """
    notes = list(notes)
    answered = {(note["by"], note["number"]) for note in notes if note["event"] == "answered"}
    unknown = {
        pk
        for note in notes
        if note["event"] == "acking" and (note["by"], note["number"]) not in answered
        for pk in note["ids"]
    }
    return sent(run) - set(acks(notes, name)) - unknown


def never_sent(notes: Iterable[Note], name: str, run: Run = run_sql) -> set[int]:
    """Deliveries of messages that were never committed."""
    delivered = {note["id"] for note in notes if note["event"] == "read" and note["queue"] == name}
    return delivered - sent(run)


def twice(notes: Iterable[Note], name: str) -> list[Note]:
    """Deliveries and acks after an ack that counted."""
    notes = [note for note in notes if note.get("queue") == name and "id" in note]
    first = {pk: min(times) for pk, times in acks(notes, name).items()}
    again = [pk for pk, times in acks(notes, name).items() if len(times) > 1]
    return [
        note
        for note in notes
        if note["id"] in again
        or (note["event"] == "read" and note["read_at"] > first.get(note["id"], note["read_at"]))
    ]


def left_over(name: str, run: Run = run_sql) -> dict[str, int]:
    """The rows that a subscription still has, by table."""
    [(pk,)] = run("SELECT id FROM pgqueue_queue WHERE name = %s", [name])
    counts = {
        table: run(f"SELECT count(*) FROM pgqueue_{table} WHERE queue_id = %s", [pk])[0][0]
        for table in _PLACES
    }
    return {table: count for table, count in counts.items() if count}
