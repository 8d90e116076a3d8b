"""The scenarios: a module per topic, a function per scenario."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Goal", "Measure", "Scenario", "beside_pgmq", "median_ms", "registered", "scenario"]

#: Runs a contestant for one round. Returns the figure in the scenario's unit, or several by unit.
Measure = Callable[[], "float | dict[str, float]"]

registered: list[Scenario] = []


@dataclass(frozen=True)
class Goal:
    """A goal for one contestant's figure: as a ratio to another's, or absolute without ``to``."""

    of: str
    to: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    webhooks: float | None = None  # the limit with real webhooks, if it differs
    unit: str | None = None

    @property
    def is_ceiling(self) -> bool:
        return self.at_least is None

    def limit(self, payload: str) -> float:
        limit = self.at_most if self.at_least is None else self.at_least
        if payload == "webhooks" and self.webhooks is not None:
            limit = self.webhooks
        assert limit is not None
        return limit


def beside_pgmq(at_least: float, webhooks: float | None = None) -> tuple[Goal, ...]:
    """The goal of our operations, on a bare cursor and through Django."""
    return tuple(
        Goal(of, "PGMQ", at_least=at_least, webhooks=webhooks)
        for of in ("ours, bare cursor", "ours")
    )


@dataclass(frozen=True)
class Scenario:
    """A question, its contestants, and the expected answer."""

    name: str
    topic: str
    title: str
    unit: str
    prepare: Callable[[Any], dict[str, Measure]]
    baseline: str | None = "PGMQ"
    goals: tuple[Goal, ...] = ()
    webhooks: bool = False  # also with real webhooks
    rounds: int | None = None


def scenario(title: str, *, unit: str = "messages/s", **options: Any) -> Callable[..., Any]:
    """Register a function as a scenario, named after it; its module is the topic."""

    def register(prepare: Callable[[Any], dict[str, Measure]]) -> Callable[..., Any]:
        name = prepare.__name__.replace("_", "-")
        topic = prepare.__module__.rpartition(".")[2]
        registered.append(Scenario(name, topic, title, unit, prepare, **options))
        return prepare

    return register


def median_ms(operation: Callable[[], Any], times: int) -> float:
    """The median duration of an operation in milliseconds."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        operation()
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)
