"""Runs scenarios: every contestant in turn, several times."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks import database, peers, scenarios
from benchmarks.clients import Clients, repeat
from benchmarks.figures import ratios
from benchmarks.machine import Watch
from benchmarks.payloads import Payload
from benchmarks.scenarios import Goal, Measure, Scenario

__all__ = ["Bench", "Outcome", "known_scenarios", "run"]


def known_scenarios() -> list[Scenario]:
    """All scenarios of the modules in ``benchmarks/scenarios``, in source order."""
    for module in pkgutil.iter_modules(scenarios.__path__):
        importlib.import_module(f"{scenarios.__name__}.{module.name}")
    return scenarios.registered


@dataclass
class Outcome:
    """A scenario's measurements: one sample per round, by contestant and unit."""

    scenario: Scenario
    payload: Payload
    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    #: The amounts measured: messages, connections, seconds.
    made_of: str = ""

    def median(self, label: str, unit: str) -> float:
        return statistics.median(self.samples[label][unit])

    def ratio(self, label: str, to: str, unit: str) -> float:
        return statistics.median(ratios(self.samples[label][unit], self.samples[to][unit]))

    def judged(self) -> Iterator[tuple[Goal, float, bool]]:
        """Each measurable goal, with the figure and whether it is met."""
        for goal in self.scenario.goals:
            unit = goal.unit or self.scenario.unit
            labels = [goal.of, *([goal.to] if goal.to else [])]
            if not all(unit in self.samples.get(label, {}) for label in labels):
                continue
            value = self.ratio(goal.of, goal.to, unit) if goal.to else self.median(goal.of, unit)
            limit = goal.limit(self.payload.name)
            yield goal, value, value <= limit if goal.is_ceiling else value >= limit


#: Never reuses a name: clients cache queues for a while.
numbers = itertools.count(1)


class Bench:
    """What a scenario uses: contestants' queues, clients, a payload, and amounts."""

    def __init__(
        self,
        clients: Clients,
        payload: Payload,
        *,
        size: str,
        rounds: int,
        tell: Callable[[str], None],
    ) -> None:
        self.clients = clients
        self.payload = payload
        self.rounds = rounds
        self.tell = tell
        self._size = size
        self._queues: dict[str, Any] = {}
        self._closing = ExitStack()
        self._connection = database.connect()
        self._closing.enter_context(self._connection)
        self.seconds = self.amount(0.4, 2.0, 5.0)
        self.made_of = ""
        #: Why an installed contestant cannot take part.
        self.unable: dict[str, str] = {}

    def amount(self, quick: Any, normal: Any, full: Any = None) -> Any:
        """The amount for the size of this run."""
        return {"quick": quick, "normal": normal, "full": normal if full is None else full}[
            self._size
        ]

    def has(self, peer: str) -> bool:
        return peers.missing(peer) is None

    def queue(self, peer: str, **options: Any) -> tuple[Any, str]:
        """Create a queue, which is dropped at the end; returns the contestant's adapter and the
        name.
        """
        name = f"bench{next(numbers)}"
        adapter = peers.open_queues(peer)
        adapter.create(name, **options)
        self._queues[name] = adapter
        return adapter, name

    def drop(self, name: str) -> None:
        self._queues.pop(name).drop(name)

    def contestants(self, *wanted: str) -> list[str]:
        return [peer for peer in wanted if self.has(peer)]

    def each(self, measure: Callable[[str], Measure], *wanted: str) -> dict[str, Measure]:
        """The measure of each contestant that is installed."""
        return {peer: measure(peer) for peer in self.contestants(*wanted)}

    def workers(self, *wanted: str, is_tuned: bool = False) -> dict[str, peers.Worker]:
        """Adapters of the contestants that can run here, with their tables created."""
        return self._installed(wanted, partial(peers.open_worker, is_tuned=is_tuned))

    def limited(self, *wanted: str) -> dict[str, Any]:
        """The same with their limits."""
        return self._installed(wanted, peers.open_limited)

    def _installed(
        self, wanted: Iterable[str], opened: Callable[[str], peers.Worker]
    ) -> dict[str, Any]:
        found = {}
        for label in self.contestants(*wanted):
            self.tell(f"preparing {label}")
            try:
                worker = opened(label)
                self.on_close(worker.close)
                worker.install()
            except Exception as error:
                self.unable[label] = str(error).strip() or repr(error)
                continue
            found[label] = worker
        return found

    def on_close(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._closing.callback(function, *arguments)

    def sql(self, statement: str, params: Any = None) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(statement, params)
        return cursor.fetchall() if cursor.description else []

    def wal(self) -> int:
        return int(self.sql("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")[0][0])

    def settle(self) -> None:
        """Vacuum and analyze, so that autovacuum has nothing to do meanwhile."""
        self.sql("VACUUM ANALYZE")

    def rest(self) -> None:
        """Wait until autovacuum has finished with the previous contestant's tables."""
        busy = "SELECT 1 FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'"
        until = time.monotonic() + 3
        while self.sql(busy) and time.monotonic() < until:
            time.sleep(0.1)

    def rate(self, step: Callable[[], int], most: int | None = None) -> float:
        """Call ``step`` repeatedly in this process; returns messages per second."""
        count, started, ended = repeat(step, self.seconds, most)
        return count / (ended - started)

    def close(self) -> None:
        # The newest first: subscriptions before their source.
        for name in reversed(list(self._queues)):
            self.drop(name)
        self._closing.close()


def run(outcome: Outcome, bench: Bench, watch: Watch) -> None:
    """Run all rounds of a scenario: each contestant in turn, in alternating order."""
    scenario = outcome.scenario
    measures: dict[str, Measure] = {}
    try:
        bench.tell("preparing")
        try:
            measures = scenario.prepare(bench)
        except Exception as error:
            outcome.failures["preparing"] = str(error).strip() or repr(error)
        outcome.failures.update(bench.unable)
        order = list(measures)
        rounds = min(bench.rounds, scenario.rounds or bench.rounds)
        for number in range(1, rounds + 1):
            for label in [label for label in order if label not in outcome.failures]:
                bench.tell(f"round {number} of {rounds}: {label}")
                bench.rest()
                watch.look()
                try:
                    found = measures[label]()
                except Exception as error:
                    # Continue with the other contestants.
                    outcome.failures[label] = str(error).strip() or repr(error)
                    continue
                sample = found if isinstance(found, dict) else {scenario.unit: found}
                for unit, value in sample.items():
                    outcome.samples.setdefault(label, {}).setdefault(unit, []).append(value)
            order.reverse()
    finally:
        bench.tell("cleaning up")
        started = time.monotonic()
        bench.close()
        bench.tell(f"cleaned up in {time.monotonic() - started:.1f} s")
        # Contestants in the scenario's order, not in that of the last round.
        measured = [label for label in measures if label in outcome.samples]
        whole = [label for label in measured if label not in outcome.failures]
        outcome.samples = {label: outcome.samples[label] for label in whole}
        outcome.made_of = bench.made_of
