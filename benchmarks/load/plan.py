"""The cells of a run, and the schedules of a cell's connections."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

__all__ = ["BODIES", "SYSTEMS", "Cell", "add_arguments", "cells", "moments"]

SYSTEMS = ("ours", "PGMQ", "PgQueuer", "graphile-worker")
#: The names of payloads in ``benchmarks.payloads``.
BODIES = ("200 B", "webhooks")
CONNECTIONS = {"quick": (1, 4), "normal": (1, 4, 16, 64, 256), "full": (1, 4, 16, 64, 256)}
BACKLOGS = {"quick": (0, 10_000), "normal": (0, 1_000_000), "full": (0, 1_000_000, 10_000_000)}
SECONDS = {"quick": 4.0, "normal": 30.0, "full": 600.0}
RATE = 200.0


@dataclass(frozen=True)
class Cell:
    """What is measured at once."""

    system: str
    connections: int
    backlog: int
    body: str

    def __str__(self) -> str:
        return (
            f"{self.system}: {self.connections} connections, backlog {self.backlog:,}, {self.body}"
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load", "Options of `run load`; lists are comma-separated.")
    group.add_argument("--seconds", type=_positive(float), help="length of a cell")
    group.add_argument("--connections", type=_list(_positive(int)), help="numbers of connections")
    group.add_argument("--backlog", type=_list(_natural), help="numbers of messages in front")
    group.add_argument("--peers", type=_list(_one_of(SYSTEMS)), help=", ".join(SYSTEMS))
    group.add_argument("--bodies", type=_list(_one_of(BODIES)), help=", ".join(BODIES))
    group.add_argument("--rate", type=_positive(float), help=f"messages a second ({RATE:g})")
    group.add_argument(
        "--listeners", type=_natural, default=1, help="further connections that listen (1)"
    )
    group.add_argument(
        "--cross",
        action="store_true",
        help="vary one thing at a time, the others stay at the first value; of the connections, "
        "at the middle one",
    )


def _list(of: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> tuple[object, ...]:
        return tuple(dict.fromkeys(of(each.strip()) for each in text.split(",")))

    parse.__name__ = "list"  # named by argparse's error
    return parse


def _positive(of: type[int] | type[float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        if (value := of(text.replace("_", ""))) <= 0:
            raise argparse.ArgumentTypeError(f"{text} must be more than 0")
        return value

    parse.__name__ = of.__name__
    return parse


def _natural(text: str) -> int:
    if (value := int(text.replace("_", ""))) < 0:
        raise argparse.ArgumentTypeError(f"{text} must not be negative")
    return value


def _one_of(known: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(known)}")
        return text

    return parse


def complete(options: argparse.Namespace) -> None:
    """Set what was not given, by the size."""
    options.seconds = options.seconds or SECONDS[options.size]
    options.connections = options.connections or CONNECTIONS[options.size]
    options.backlog = options.backlog or BACKLOGS[options.size]
    options.peers = options.peers or SYSTEMS
    options.bodies = options.bodies or BODIES
    options.rate = options.rate or RATE


def cells(options: argparse.Namespace) -> list[Cell]:
    """All cells in the order of measurement. Systems take turns, so that a change of the machine's
    speed affects all of them.
    """
    middle = options.connections[len(options.connections) // 2]
    usual = (options.bodies[0], options.backlog[0], middle)
    return [
        Cell(system, connections, backlog, body)
        for body, backlog, connections in product(
            options.bodies, options.backlog, options.connections
        )
        if not options.cross
        or sum(a != b for a, b in zip((body, backlog, connections), usual, strict=True)) <= 1
        for system in options.peers
    ]


def moments(rate: float, seconds: float, connections: int) -> list[list[float]]:
    """Each connection's moments in seconds after the start: independent Poisson processes.

    Clients that know nothing of each other come in clusters, not at even distances.
    """
    found = []
    for place in range(connections):
        chance = random.Random(place)
        moment, own = 0.0, []
        while (moment := moment + chance.expovariate(rate / connections)) < seconds:
            own.append(moment)
        found.append(own)
    return found
