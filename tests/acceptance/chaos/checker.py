"""Findings from a history and the database: lost, phantom, duplicated, redelivered.

In the manner of Jepsen's queue checkers: what went in must come out, and nothing else.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["State", "Verdict", "check"]

Event = Mapping[str, Any]


@dataclass
class State:
    """The database after the drain."""

    #: How many effects each op has.
    effects: Counter[str]
    #: How often each op is in the archive as COMPLETED, as FAILED, and in the dead letters.
    completed: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    #: Messages that are still in a queue, with their state.
    live: dict[str, str] = field(default_factory=dict)
    #: Processes that are still registered.
    processes: int = 0


@dataclass
class Verdict:
    """Violations, by op, and two counts that depend on the faults."""

    #: Sent for sure, and neither done, failed nor still there.
    lost: list[str]
    #: Completed, and yet without an effect.
    without_effect: list[str]
    #: Delivered or done, and never sent, or rolled back.
    phantoms: list[str]
    #: At the end in two places at once.
    ambiguous: list[str]
    #: Delivered again after its ack was announced. Not so where an earlier delivery starts late,
    #: in a process that stood still after it had looked at the lease. A locked delivery is counted
    #: when it commits: a consumer that lost its connection starts it under the same number.
    after_ack: list[str]
    #: Effects that happened more than once.
    duplicated: list[str]
    #: Handler runs beyond each message's first.
    redelivered: int
    #: Of those, the ones the message itself asked for.
    asked_for: int
    leases: list[str]
    processes: int
    #: Messages that were sent for sure.
    messages: int

    @property
    def wrong(self) -> dict[str, list[str]]:
        """Violations of what must never happen, whatever the faults."""
        named = ("lost", "without_effect", "phantoms", "ambiguous", "after_ack", "leases")
        return {name: getattr(self, name) for name in named if getattr(self, name)}

    def __str__(self) -> str:
        return (
            f"{len(self.lost)} lost, {len(self.phantoms)} phantoms, "
            f"{len(self.duplicated)} duplicated effects, {self.redelivered} redelivered "
            f"({self.asked_for} asked for), {len(self.leases)} leases left"
        )


def check(events: Iterable[Event], state: State) -> Verdict:
    """Judge a run. ``events`` are those of all processes, in order."""
    invoked: set[str] = set()
    known: dict[str, str] = {}
    runs: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    acked: dict[str, int] = {}
    after_ack: set[str] = set()
    for event in events:
        op, kind = event.get("op"), event["event"]
        if kind == "invoke":
            invoked.add(op)  # type: ignore[arg-type]
        elif kind in ("ok", "fail", "unknown"):
            known[op] = kind  # type: ignore[index]
        elif kind == "deliver":
            runs[op] += 1  # type: ignore[index]
            counted = event["delivery"] - (event.get("queue") == "locked")
            if counted >= acked.get(op, sys.maxsize):  # type: ignore[arg-type]
                after_ack.add(op)
        elif kind == "acked":
            acked[op] = event["delivery"]  # type: ignore[index]
        elif kind == "fault":
            faults[op] += 1  # type: ignore[index]
    sent = {op for op, outcome in known.items() if outcome == "ok"}
    # A producer that died between its commit and the next line knows nothing.
    impossible = {op for op, outcome in known.items() if outcome == "fail"}
    seen = {*runs, *state.effects, *state.completed, *state.failed, *state.live}
    places = state.completed + state.failed + Counter(list(state.live))
    return Verdict(
        lost=sorted(op for op in sent if not places[op]),
        without_effect=sorted(op for op in state.completed if not state.effects[op]),
        phantoms=sorted(op for op in seen if op in impossible or op not in invoked),
        ambiguous=sorted(op for op, count in places.items() if count > 1),
        after_ack=sorted(after_ack),
        duplicated=sorted(op for op, count in state.effects.items() if count > 1),
        redelivered=sum(count - 1 for count in runs.values()),
        asked_for=sum(min(faults[op], runs[op] - 1) for op in runs),
        leases=sorted(op for op, where in state.live.items() if where == "PROCESSING"),
        processes=state.processes,
        messages=len(sent),
    )
