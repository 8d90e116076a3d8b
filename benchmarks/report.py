"""Reports figures as tables: on the terminal, in Markdown and in JSON."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import json
import os
import platform
import shutil
import statistics
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import database, peers, plot
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
            **({} if peers.missing("PGMQ") else {"PGMQ's SQL": pgmq_version()}),
        },
        "server": database.settings(),
        "payloads": {payload.name: f"median {payload.median_bytes} bytes" for payload in sent},
        "size": options.size,
        "rounds": options.rounds,
    }


def of_machine(machine: Machine) -> dict[str, str]:
    """The machine's state, before the start and before each measurement."""
    found = {"load before": f"{machine.load:.1f}"}
    if machine.others:
        found["others' share"] = f"{statistics.median(machine.others):.0%}"
        found["stolen"] = f"{machine.steal:.1%}"
    return {**found, "calibrations apart": f"{machine.spread:.2f}"}


def made_of(outcome: Outcome, facts: dict[str, Any]) -> str:
    """The amounts behind a scenario's figures, in one line."""
    machine = facts["machine"]
    rounds = max((len(s) for units in outcome.samples.values() for s in units.values()), default=0)
    parts = [
        outcome.made_of,
        f"{rounds} rounds",
        f"{machine['cores']} cores ({machine['processor']})",
        f"PostgreSQL {facts['server']['server_version']}",
        facts["date"],
        "BUSY MACHINE" if facts.get("disturbed") else "",
    ]
    return "; ".join(part for part in parts if part)


def pgmq_version() -> str:
    from benchmarks.peers import pgmq

    return pgmq.version()


def processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


# Tables


def rows(outcome: Outcome) -> list[list[str]]:
    """Rows of contestant, median, range and ratio to the baseline; one row per unit."""
    baseline = outcome.scenario.baseline
    lines = []
    for label, units in outcome.samples.items():
        for unit, samples in units.items():
            compared = unit in outcome.samples.get(baseline, {})
            lines.append(
                [
                    label,
                    f"{figure(outcome.median(label, unit))} {unit}",
                    f"{figure(min(samples))} - {figure(max(samples))}",
                    figure(outcome.ratio(label, baseline, unit)) if compared else "",
                ]
            )
    return lines


def table(outcome: Outcome) -> str:
    """The table for a terminal."""
    lines = rows(outcome)
    if not lines:
        return "\n".join(failures(outcome))
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join(
        "  "
        + "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ) + "".join("\n  " + line for line in failures(outcome))


def failures(outcome: Outcome) -> list[str]:
    return [f"{label} failed: {reason}" for label, reason in reasons(outcome).items()]


def reasons(outcome: Outcome) -> dict[str, str]:
    """The last line of each error: a traceback would show the machine's folders."""
    return {label: error.splitlines()[-1] for label, error in outcome.failures.items()}


def goals(outcomes: list[Outcome]) -> str:
    """Every goal and its result, as a Markdown table."""
    lines = ["| Scenario | Goal | Measured | |", "|---|---|---:|---|"]
    for outcome in outcomes:
        for goal, value, met in outcome.judged():
            than = f" / {goal.to}" if goal.to else ""
            limit = goal.limit(outcome.payload.name)
            unit = f" {goal.unit or outcome.scenario.unit}"
            if goal.to:
                unit = f" ({goal.unit})" if goal.unit else ""
            lines.append(
                f"| {outcome.scenario.name}, {outcome.payload.name} "
                f"| {goal.of}{than} {'≤' if goal.is_ceiling else '≥'} {limit:g}{unit} "
                f"| {figure(value)} | {'yes' if met else '**no**'} |"
            )
    return "\n".join(lines)


def figure(value: float) -> str:
    """Three significant digits: more would be noise."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# Files


def save(directory: Path, name: str, facts: dict[str, Any], outcomes: list[Outcome]) -> Path:
    """Write ``<name>.md``, ``<name>.json`` and a plot per scenario; returns the ``.md`` path."""
    plots = directory / name
    plots.mkdir(parents=True, exist_ok=True)
    for old in plots.glob("*.svg"):
        old.unlink()
    images = {}
    for outcome in outcomes:
        image = plots / f"{outcome.scenario.name}-{outcome.payload.name.replace(' ', '')}.svg"
        image.write_text(plot.bars(outcome, made_of(outcome, facts)), encoding="utf-8")
        images[id(outcome)] = f"{name}/{image.name}"
    target = directory / f"{name}.md"
    target.write_text(markdown(facts, outcomes, images), encoding="utf-8")
    target.with_suffix(".json").write_text(as_json(facts, outcomes), encoding="utf-8")
    return target


def remove(directory: Path, name: str) -> None:
    """Remove the results saved under a name, if any."""
    shutil.rmtree(directory / name, ignore_errors=True)
    for suffix in (".md", ".json"):
        (directory / f"{name}{suffix}").unlink(missing_ok=True)


def markdown(facts: dict[str, Any], outcomes: list[Outcome], images: dict[int, str]) -> str:
    parts = [
        "# Benchmarks",
        f"Measured on {facts['date']} by `python -m benchmarks` (size: {facts['size']}, "
        f"{facts['rounds']} rounds, every contestant in turn). Only the ratios mean anything: "
        "they are medians of the rounds' ratios, from one run on one machine.",
        *disturbed(facts),
        "\n".join(
            f"- {group}: " + ", ".join(f"{name} {value}" for name, value in facts[group].items())
            for group in ("machine", "versions", "server", "payloads")
        ),
        *advice(outcomes),
        "## Goals",
        goals(outcomes),
        "## Scenarios",
    ]
    for outcome in outcomes:
        parts += [
            f"### {outcome.scenario.title} ({outcome.payload.name})",
            "\n".join(
                [
                    f"| {outcome.scenario.name} | median | least - most "
                    f"| to {outcome.scenario.baseline} |",
                    "|---|---:|---:|---:|",
                    *(f"| {' | '.join(line)} |" for line in rows(outcome)),
                ]
            ),
            *failures(outcome),
            made_of(outcome, facts),
            f"![{outcome.scenario.title}]({images[id(outcome)]})",
        ]
    return "\n\n".join(parts) + "\n"


def disturbed(facts: dict[str, Any]) -> list[str]:
    if not facts.get("disturbed"):
        return []
    return [f"**Not for a headline**, the machine was busy: {'; '.join(facts['disturbed'])}."]


def advice(outcomes: list[Outcome]) -> list[str]:
    """The configurations of each contestant with workers, if any took part."""
    if not any(outcome.scenario.topic == "peers" for outcome in outcomes):
        return []
    lines = ["| | by default | tuned, as its documentation advises | documentation |"]
    lines.append("|---|---|---|---|")
    for label in peers.WORKERS:
        if not peers.missing(label):
            kind = peers.worker_class(label)
            lines.append(f"| {label} | {kind.default} | {kind.tuned} | {kind.documentation} |")
    return ["## How each was run", "\n".join(lines)]


def as_json(facts: dict[str, Any], outcomes: list[Outcome]) -> str:
    results = [
        {
            "scenario": outcome.scenario.name,
            "title": outcome.scenario.title,
            "payload": outcome.payload.name,
            "made of": outcome.made_of,
            "samples": outcome.samples,
            "failures": reasons(outcome),
            "goals": [
                {**dataclasses.asdict(goal), "measured": value, "met": met}
                for goal, value, met in outcome.judged()
            ],
        }
        for outcome in outcomes
    ]
    return json.dumps({**facts, "results": results}, indent=1) + "\n"
