"""Results of a load as Markdown: all figures, and the section of docs/performance.md.

python -m benchmarks page benchmarks/results/load.json
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.figures import figure, table
from benchmarks.load.picture import Panel, svg

__all__ = ["add_arguments", "command", "line", "section", "write_results"]

DOCS = Path(__file__).parents[2] / "docs"
BEGIN, END = "<!-- load: begin -->", "<!-- load: end -->"
PICTURE = "_static/load.svg"
#: The least share of the offered rate, at the end, that keeps it.
KEPT = 95
#: The client is full if its core is used by this share, and free connections begin late by so much.
FULL, LATE_MS = 0.95, 5.0
HALVES = ("plain", "snapshot")

#: The versions in the docs, by their names in the results.
SHOWN = {
    "PostgreSQL": "PostgreSQL",
    "PGMQ's SQL": "PGMQ",
    "pgqueuer": "PgQueuer",
    "graphile-worker": "graphile-worker",
    "python": "Python",
    "node": "Node.js",
}

MEANING = """\
- **A turn**: a connection sends a message, reads one and settles it, each in a commit of its own.
  Times are random, and the same for all systems. A turn's delay is the time from its scheduled
  start to its end, in ms: a late start counts.
- **server µs, log, flushes**: per message, the processor time of all server processes, the bytes of
  write-ahead log, and its flushes. Concurrent commits share a flush.
- **p50, p99**: of the delays. **stall**: the longest time without the end of a turn, in ms.
- **kept**: the turns that ended in the last fifth of a half, in percent of those scheduled in it.
  Below 95 % the rate does not hold.
- **snapshot**: the second half of the time, in which another session holds an old snapshot.
- **waits**: of active connections in the first half, sampled ten times a second. `running`
  waits for nothing of PostgreSQL."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", type=Path, help="a JSON file of `run load`")


def command(options: argparse.Namespace) -> int:
    results = json.loads(options.results.read_text())
    page = DOCS / "performance.md"
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{page} has no {BEGIN} and {END}.")
    new = f"{before}{BEGIN}\n\n{section(results, options.results.stem)}\n\n{END}{after}"
    page.write_text(new)
    (DOCS / PICTURE).write_text(picture(results))
    write_results(results, options.results.with_suffix(".md"))
    print(f"Written: {page}, {DOCS / PICTURE}, {options.results.with_suffix('.md')}")
    return 0


def is_full(cell: dict[str, Any]) -> bool:
    """Whether the client could not offer the load, because its core was full."""
    halves = [cell[half] for half in HALVES if half in cell]
    return any(of["client busy"] >= FULL and of["ms, late start"] > LATE_MS for of in halves)


def reason(cell: dict[str, Any]) -> str | None:
    """Why a cell has no figures of the server."""
    if "failed" in cell:
        return f"failed: {cell['failed']}"
    return "**client full**: not the server's figures" if is_full(cell) else None


def line(cell: dict[str, Any]) -> str:
    """What the progress says of a cell."""
    if why := reason(cell):
        return why
    found = [
        f"{half}: {figure(of.get('server µs', 0))} µs, p50 {figure(of['ms, p50'])} ms, "
        f"p99 {figure(of['ms, p99'])} ms, kept {of['% at the end']:.0f} %"
        for half, of in ((half, cell[half]) for half in HALVES)
    ]
    return "; ".join(found)


def warnings(results: dict[str, Any]) -> list[str]:
    about, found = results["about"], []
    if results["partial"]:
        done = len(results["cells"])
        found.append(
            f"**Partial**: the run was interrupted after {done} of {results['planned']} cells."
        )
    if about.get("disturbed"):
        found.append(f"**Do not quote**, the machine was busy: {'; '.join(about['disturbed'])}.")
    if not about["pinned"]:
        found.append("**Not pinned**: server and clients shared the cores.")
    return found


def conditions(results: dict[str, Any]) -> str:
    """What was run, in one sentence each."""
    about, options = results["about"], results["options"]
    others = options["listeners"]
    loads = [cell["loadavg"] for cell in results["cells"] if "loadavg" in cell]
    load = f"load average before a cell {min(loads)} to {max(loads)}" if loads else "no cell ran"
    pinned = "server on one core, clients on the other" if about["pinned"] else "cores shared"
    versions = {"PostgreSQL": about["server"]["server_version"], **about["versions"]}
    shown = ", ".join(
        f"{label} {versions[name]}" for name, label in SHOWN.items() if name in versions
    )
    return (
        f"{about['date']}: {options['rate']:g} turns a second, {options['seconds']:g} s a cell, "
        f"{pinned}, {others} further connection{'s' * (others != 1)} listening."
        f"\n{', '.join(f'{name} {value}' for name, value in about['machine'].items())}; {load}."
        f"\n{shown}."
    )


def tables(results: dict[str, Any], *, is_full_page: bool) -> list[str]:
    """A table for each body and backlog."""
    found = []
    by = lambda cell: (cell["body"], cell["backlog"])  # noqa: E731
    for (body, backlog), cells in groupby(sorted(results["cells"], key=by), by):
        ordered = sorted(cells, key=lambda cell: cell["connections"])
        found.append(f"**{body}, {f'{backlog:,} messages in front' if backlog else 'no backlog'}**")
        head = ["conn.", "system", "server µs", "log", "flushes", "p50", "p99", "stall", "kept"]
        head += ["snapshot: server µs", "p50", "p99", "stall", "kept"]
        more = ["cores used: server, clients", "load before"]
        head += ["waits", *more] if is_full_page else ["waits"]
        rows = []
        for cell in ordered:
            start = [str(cell["connections"]), cell["system"]]
            if why := reason(cell):
                rows.append([*start, why, *[""] * (len(head) - 3)])
                continue
            costs, late = ["server µs", "log bytes", "flushes"], ["ms, p50", "ms, p99", "ms, stall"]
            plain, held = (cell[half] for half in HALVES)
            row = [*start, *(_figure(plain, unit) for unit in [*costs, *late]), _kept(plain)]
            row += [_figure(held, unit) for unit in ["server µs", *late]] + [_kept(held)]
            row.append(_waits(plain["waits"], 5 if is_full_page else 2))
            if is_full_page:
                used = [f"{plain[f'{side} busy']:.0%}" for side in ("server", "client")]
                row += [", ".join(used), str(cell["loadavg"])]
            rows.append(row)
        found.append(table(head, rows, text=2))
    return found


def _figure(found: dict[str, Any], unit: str) -> str:
    return figure(found[unit]) if unit in found else ""


def _kept(found: dict[str, Any]) -> str:
    share = min(found["% at the end"], 100)
    return f"{share:.0f} %" if share >= KEPT else f"**{share:.0f} %**"


def _waits(waits: dict[str, float], most: int) -> str:
    return ", ".join(f"{event} {share:.0%}" for event, share in list(waits.items())[:most])


def picture(results: dict[str, Any]) -> str:
    """The curves over the connections, without a backlog, of the first body."""
    cells = results["cells"]
    body, backlog = (cells[0]["body"], cells[0]["backlog"]) if cells else ("", 0)
    chosen = [c for c in cells if (c["body"], c["backlog"]) == (body, backlog)]
    connections = sorted({cell["connections"] for cell in chosen})
    systems = list(dict.fromkeys(cell["system"] for cell in chosen))
    by_place = {(c["system"], c["connections"]): c for c in chosen if not reason(c)}
    titles = {"ms, p50": "p50, ms", "ms, p99": "p99, ms", "server µs": "server, µs/message"}
    panels = []
    for half in HALVES:
        for unit, title in titles.items():
            panel = Panel(title + (", old snapshot" if half == "snapshot" else ""),
                          [str(n) for n in connections])  # fmt: skip
            for system in systems:
                found = [by_place.get((system, n), {}).get(half, {}) for n in connections]
                panel.lines[system] = [of.get(unit) for of in found]
            panels.append(panel)
    return svg(panels, systems, "connections")


def section(results: dict[str, Any], name: str) -> str:
    """The part of docs/performance.md."""
    parts = [
        *warnings(results),
        f"![Delays and processor time as connections grow]({PICTURE})",
        f"{conditions(results)}\n[All figures](../benchmarks/results/{name}.md).",
        MEANING,
        *tables(results, is_full_page=False),
    ]
    return "\n\n".join(parts)


def write_results(results: dict[str, Any], target: Path) -> None:
    about = results["about"]
    listed = "\n".join(
        f"- {group}: " + ", ".join(f"{name} {value}" for name, value in about[group].items())
        for group in ("machine", "versions", "server", "payloads")
    )
    from benchmarks.load.systems import KINDS

    calls = "\n".join(f"- {label}: {kind.calls}" for label, kind in KINDS.items())
    parts = [
        "# A fixed load, as connections, backlog and time grow",
        *warnings(results),
        conditions(results),
        listed,
        "A turn's calls:\n\n" + calls,
        MEANING,
        *tables(results, is_full_page=True),
    ]
    target.write_text("\n\n".join(parts) + "\n")
