"""Results as Markdown."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import statistics
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import database, peers
from benchmarks.figures import figure, ratios, summary, table
from benchmarks.machine import Machine
from benchmarks.payloads import Payload

if TYPE_CHECKING:
    from benchmarks.bench import Outcome


def about(options: argparse.Namespace, sent: list[Payload]) -> dict[str, Any]:
    """The conditions of a run: date, machine, versions, settings."""
    return {
        "date": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d"),
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
            "system": f"{platform.system()} {platform.release()}",
        },
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("django", "psycopg")},
            **peers.versions(),
        },
        "server": database.settings(),
        "payloads": {payload.name: f"median {payload.median_bytes} bytes" for payload in sent},
        "size": options.size,
        "rounds": options.rounds,
    }


def of_machine(machine: Machine) -> dict[str, str]:
    """The machine's state, before each measurement."""
    return {
        "others' share": f"{statistics.median(machine.others):.0%}",
        "stolen": f"{machine.steal:.1%}",
        "calibrations apart": f"{machine.spread:.2f}",
    }


def processor() -> str:
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text()
        return cpuinfo.partition("model name")[2].splitlines()[0].lstrip("\t: ")
    except (OSError, IndexError):
        return platform.processor() or platform.machine()


def findings(outcome: Outcome) -> str:
    """A table of medians, with the least and the most of the rounds; the failures."""
    samples, baseline = outcome.samples, outcome.scenario.baseline
    units = list(dict.fromkeys(unit for of in samples.values() for unit in of))
    lines = [
        [outcome.scenario.name, *units],
        *(
            [label, *(summary(of[unit]) if unit in of else "" for unit in units)]
            for label, of in samples.items()
        ),
    ]
    unit = outcome.scenario.unit
    if baseline in samples:
        lines[0].append(f"to {baseline}")
        for line, of in zip(lines[1:], samples.values(), strict=True):
            line.append(summary(ratios(of[unit], samples[baseline][unit])))
    if len(units) > len(samples):
        lines = [list(column) for column in zip(*lines, strict=True)]
    failures = [f"{label} failed: {reason}" for label, reason in reasons(outcome).items()]
    return "\n\n".join(filter(None, [table(lines[0], lines[1:]), *failures, outcome.made_of]))


def reasons(outcome: Outcome) -> dict[str, str]:
    """The last line of each error: a traceback would show the machine's folders."""
    return {label: error.splitlines()[-1] for label, error in outcome.failures.items()}


def goals(outcomes: list[Outcome]) -> str:
    """Every goal and its result, as a Markdown table."""
    rows = []
    for outcome in outcomes:
        for goal, value, met in outcome.judged():
            unit = f" {goal.unit or outcome.scenario.unit}"
            if goal.to:
                unit = f" ({goal.unit})" if goal.unit else ""
            than = f" / {goal.to}" if goal.to else ""
            limit = f"{'≤' if goal.is_ceiling else '≥'} {goal.limit(outcome.payload.name):g}{unit}"
            name = f"{outcome.scenario.name}, {outcome.payload.name}"
            verdict = "yes" if met else "**no**"
            rows.append([name, f"{goal.of}{than} {limit}", figure(value), verdict])
    return table(["Scenario", "Goal", "Measured", ""], rows, text=2)


def markdown(facts: dict[str, Any], outcomes: list[Outcome]) -> str:
    parts = [
        "# Benchmarks",
        f"Measured on {facts['date']} by `python -m benchmarks run` (size: {facts['size']}, "
        f"{facts['rounds']} rounds, every contestant in turn). Only the ratios mean anything: "
        "they are medians of the rounds' ratios, from one run on one machine.",
    ]
    if facts["disturbed"]:
        busy = "; ".join(facts["disturbed"])
        parts.append(f"**Not for a headline**, the machine was busy: {busy}.")
    parts.append(
        "\n".join(
            f"- {group}: " + ", ".join(f"{name} {value}" for name, value in facts[group].items())
            for group in ("machine", "versions", "server", "payloads")
        )
    )
    if any(outcome.scenario.topic == "peers" for outcome in outcomes):
        parts += ["## How each was run", advice()]
    parts += ["## Goals", goals(outcomes), "## Scenarios"]
    for outcome in outcomes:
        parts += [f"### {outcome.scenario.title} ({outcome.payload.name})", findings(outcome)]
    return "\n\n".join(parts) + "\n"


def advice() -> str:
    """The configurations of each contestant with workers."""
    head = ["", "by default", "tuned, as its documentation advises", "documentation"]
    rows = []
    for label in peers.WORKERS:
        if not peers.missing(label):
            kind = peers.worker_class(label)
            rows.append([label, kind.default, kind.tuned, kind.documentation])
    return table(head, rows, text=4)
