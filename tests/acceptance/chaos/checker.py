"""Findings from a history and the database: lost, phantom, duplicated, redelivered.

In the manner of Jepsen's queue checkers: what went in must come out, and nothing else.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["State", "Verdict", "check", "starts_above"]

Event = Mapping[str, Any]


@dataclass
class State:
    """The database's state after the drain."""

    #: The number of effects of each op.
    effects: Counter[str]
    #: How often each op is archived as COMPLETED, as FAILED, and dead-lettered.
    completed: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    #: Messages still in a queue, with their states.
    live: dict[str, str] = field(default_factory=dict)
    #: Processes that are still registered.
    processes: int = 0


@dataclass
class Verdict:
    """Violations, by op, and two counts that depend on the faults."""

    #: Certainly sent, and neither completed, failed nor live.
    lost: list[str]
    #: Completed without an effect.
    without_effect: list[str]
    #: Delivered or completed, but never sent, or rolled back.
    phantoms: list[str]
    #: In two places at the end.
    ambiguous: list[str]
    #: Delivered again after the ack was recorded. Two cases do not count: an earlier delivery that
    #: starts late, in a process that was stopped after it had checked the lease; and a locked
    #: delivery that starts again under the same number after its consumer lost the connection,
    #: since it counts when it commits.
    after_ack: list[str]
    #: Effects that happened more than once.
    duplicated: list[str]
    #: Handler runs beyond each message's first.
    redelivered: int
    #: The redeliveries that the message's own body requested.
    asked_for: int
    leases: list[str]
    processes: int
    #: Messages that were certainly sent.
    messages: int

    @property
    def wrong(self) -> dict[str, list[str]]:
        """Violations that no fault may cause."""
        named = ("lost", "without_effect", "phantoms", "ambiguous", "after_ack", "leases")
        return {name: getattr(self, name) for name in named if getattr(self, name)}

    def __str__(self) -> str:
        return (
            f"{len(self.lost)} lost, {len(self.phantoms)} phantoms, "
            f"{len(self.duplicated)} duplicated effects, {self.redelivered} redelivered "
            f"({self.asked_for} asked for), {len(self.leases)} leases left"
        )


def check(events: Iterable[Event], state: State) -> Verdict:
    """Check a run. ``events`` are the events of all processes, in order."""
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
    # A producer that died between its commit and the next line leaves the outcome unknown.
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


def starts_above(starts: Sequence[float], rate: float, burst: int) -> float:
    """By how many starts, at these seconds, the worst window exceeds a rate; 0 if none does."""
    starts, most = sorted(starts), 0.0
    # In each window from one start to another: how far the starts are ahead of the rate.
    for first, began in enumerate(starts):
        for last in range(first, len(starts)):
            allowed = rate * (starts[last] - began) + burst
            most = max(most, last - first + 1 - allowed)
    return most
