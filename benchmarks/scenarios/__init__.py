"""The scenarios: a module per topic, a function per scenario."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Goal", "Measure", "Scenario", "registered", "scenario"]

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


@dataclass(frozen=True)
class Scenario:
    """A question, its contestants, and the expected answer."""

    name: str
    topic: str
    title: str
    unit: str
    prepare: Callable[[Any], dict[str, Measure]]
    baseline: str = "PGMQ"
    goals: tuple[Goal, ...] = ()
    webhooks: bool = False  # also with real webhooks
    rounds: int | None = None
    full_only: bool = False

    @property
    def lower_is_better(self) -> bool:
        return not self.unit.endswith("/s")


def scenario(title: str, *, unit: str = "messages/s", **options: Any) -> Callable[..., Any]:
    """Register a function as a scenario, named after it; its module is the topic."""

    def register(prepare: Callable[[Any], dict[str, Measure]]) -> Callable[..., Any]:
        name = prepare.__name__.replace("_", "-")
        topic = prepare.__module__.rpartition(".")[2]
        registered.append(Scenario(name, topic, title, unit, prepare, **options))
        return prepare

    return register
