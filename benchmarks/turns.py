"""Measure this tree and another one in turns, on one server.

    git worktree add ../before REVISION
    python -m benchmarks.turns ../before read-1 send-one

Two whole runs would be hours apart, on a machine whose speed varies more than the code's. Here each
turn takes a few seconds, and each round runs the contestants of both trees in a new order. Both
trees use this Python and its packages. A scenario with several units, such as delays, has a table
for each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
BASELINE = "PGMQ"


def main() -> int:
    options = parse()
    from benchmarks import database

    with ExitStack() as stack:
        where = stack.enter_context(database.server())
        trees = {
            "this": stack.enter_context(side(HERE, where, options.payloads)),
            "other": stack.enter_context(side(options.tree, where, options.payloads)),
        }
        for scenario in options.scenarios:
            samples: dict[str, dict[str, list[float]]] = {}
            turns = [
                (name, label)
                for name, tree in trees.items()
                for label in tree.ask("prepare", scenario)
                # PGMQ is the same in both trees, so it is measured once.
                if label.startswith("ours") or (name == "this" and label == BASELINE)
            ]
            for number in range(1, options.rounds + 1):
                print(f"{scenario}: round {number} of {options.rounds}", flush=True)
                random.shuffle(turns)
                for name, label in turns:
                    for unit, value in trees[name].ask("run", label).items():
                        of_unit = samples.setdefault(unit, {})
                        of_unit.setdefault(f"{label}, {name}", []).append(value)
            for tree in trees.values():
                tree.ask("close", scenario)
            for unit, of_unit in samples.items():
                print(table(scenario, unit, of_unit), flush=True)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.turns",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tree", type=Path, help="another checkout of this project")
    parser.add_argument("scenarios", nargs="+", help="by name; python -m benchmarks --list")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each (default: 7)")
    parser.add_argument(
        "--payloads", type=Path, help="real webhooks in place of 200 bytes, as for benchmarks"
    )
    options = parser.parse_args()
    if not (options.tree / "benchmarks" / "bench.py").is_file():
        parser.error(f"{options.tree} is no checkout of this project")
    return options


def table(scenario: str, unit: str, samples: dict[str, list[float]]) -> str:
    """The median of the rounds' ratios: a disturbance in a round affects both sides."""
    from benchmarks.report import figure

    def ratio(of: str, to: str) -> str:
        if of == to or of not in samples or to not in samples:
            return ""
        pairs = zip(samples[of], samples[to], strict=True)
        return f"{statistics.median(a / b for a, b in pairs):.2f}"

    lines = [f"\n| {scenario} | {unit} | to PGMQ | this to other |", "|---|---:|---:|---:|"]
    for label in sorted(samples):
        beside = ratio(label, label.replace(", this", ", other"))
        median = figure(statistics.median(samples[label]))
        lines.append(f"| {label} | {median} | {ratio(label, f'{BASELINE}, this')} | {beside} |")
    return "\n".join(lines) + "\n"


class Tree:
    """A process that runs one tree's scenarios."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, *question: str) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        if not (answer := self._process.stdout.readline()):
            sys.exit(f"The process of {self._process.args} ended; its error is above.")
        return json.loads(answer)


@contextmanager
def side(tree: Path, where: dict[str, Any], webhooks: Path | None) -> Iterator[Tree]:
    given = {"PYTHONPATH": str(tree.resolve()), "BENCHMARK_SERVER": json.dumps(where)}
    process = subprocess.Popen(
        [sys.executable, __file__, "--serve", *([str(webhooks.resolve())] if webhooks else [])],
        cwd=tree,
        env={**os.environ, **given},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Tree(process)
    finally:
        if process.stdin:
            process.stdin.close()
        process.wait()


def serve(webhooks: list[str]) -> None:
    """Answer questions, on a temporary database. Runs in either tree, so it uses only what both
    have.
    """
    answers, sys.stdout = sys.stdout, sys.stderr
    from psycopg.conninfo import make_conninfo

    from benchmarks import database, payloads

    where = json.loads(os.environ["BENCHMARK_SERVER"])
    os.environ["DATABASE_URL"] = make_conninfo("", **{k: v for k, v in where.items() if v})
    payload = payloads.webhooks(Path(webhooks[0])) if webhooks else payloads.small()
    with database.database():
        import django

        django.setup()
        from django.core.management import call_command

        from benchmarks.bench import Bench, known_scenarios
        from benchmarks.clients import Clients

        call_command("migrate", verbosity=0)
        known = {scenario.name: scenario for scenario in known_scenarios()}
        clients = Clients()
        measures: dict[str, Any] = {}
        bench: Any = None
        unit = ""
        for line in sys.stdin:
            question, name = json.loads(line)
            if question == "prepare":
                bench = Bench(clients, payload, size="normal", rounds=1, tell=lambda _: None)
                measures, unit = known[name].prepare(bench), known[name].unit
                answer: Any = list(measures)
            elif question == "run":
                found = measures[name]()
                answer = found if isinstance(found, dict) else {unit: found}
            else:
                answer = bench.close()
            print(json.dumps(answer), file=answers, flush=True)
        clients.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2:])
    else:
        sys.exit(main())
