"""Measure this tree and another one in turn, on one server.

    git worktree add ../before REVISION
    python -m benchmarks turns ../before read-1 send-one

Two whole runs would be hours apart, on a machine whose speed varies more than the code's. Here a
turn takes a few seconds, and each round runs the contestants of both trees in a new order. Both
trees use this Python and its packages. A scenario with several units, such as delays, has a table
for each. `python -m benchmarks.turns` is the same command.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tree", type=checkout, help="another checkout of this project")
    parser.add_argument("scenarios", nargs="+", help="names, as in `python -m benchmarks list`")


def checkout(path: str) -> Path:
    if not (Path(path) / "benchmarks" / "bench.py").is_file():
        raise argparse.ArgumentTypeError(f"{path} must be a checkout of this project")
    return Path(path)


def command(options: argparse.Namespace) -> int:
    from benchmarks import database
    from benchmarks.machine import Watch
    from benchmarks.run import RESULTS

    watch = Watch()
    rounds = options.rounds or 7
    paths = {"this": HERE, "other": options.tree}
    printed = [explanation(paths, rounds)]
    print(printed[0], flush=True)
    with ExitStack() as stack:
        where = stack.enter_context(database.server())
        trees = {
            name: stack.enter_context(side(path, where, options.size, options.payloads))
            for name, path in paths.items()
        }
        for name, scenario in itertools.product(trees, options.scenarios):
            if not trees[name].ask("knows", scenario):
                sys.exit(
                    f"No scenario {scenario} in {paths[name]}; see `python -m benchmarks list`."
                )
        for scenario in options.scenarios:
            samples: dict[str, dict[str, list[float]]] = {}
            turns = []
            for name, tree in trees.items():
                labels, baseline = tree.ask("prepare", scenario)
                ours = [label for label in labels if label.startswith("ours")] or labels
                # A peer is the same in both trees, so it is measured once.
                peer = {baseline} & {*labels} - {*ours} if name == "this" else ()
                turns += [(name, label) for label in (*ours, *peer)]
            for number in range(1, rounds + 1):
                print(f"{scenario}: round {number} of {rounds}", file=sys.stderr, flush=True)
                watch.look()
                random.shuffle(turns)
                for name, label in turns:
                    for unit, value in trees[name].ask("run", label).items():
                        of_unit = samples.setdefault(unit, {})
                        of_unit.setdefault(f"{label}, {name}", []).append(value)
            for tree in trees.values():
                tree.ask("close", scenario)
            for unit, of_unit in samples.items():
                printed.append(table(scenario, unit, baseline, of_unit))
                print(f"\n{printed[-1]}", flush=True)
    if disturbed := watch.machine.disturbances():
        printed.append(f"**The machine was busy**: {'; '.join(disturbed)}.")
        print(f"\n{printed[-1]}")
    if options.name:
        (RESULTS / f"{options.name}.md").write_text("\n\n".join(printed) + "\n")
    return 0


def explanation(paths: dict[str, Path], rounds: int) -> str:
    this, other = (revision(path) for path in paths.values())
    return (
        f"`this` is {this}, `other` is {other}. Each figure is the median of {rounds} rounds, with "
        "the least and the most in brackets. A ratio divides the row's figure by the baseline's, "
        "or by that of the same contestant in `other`, round by round: of rates, above 1 is "
        "faster; of times, below 1 is."
    )


def revision(tree: Path) -> str:
    """The commit of a tree, and whether files differ from it."""
    describe = ["git", "-C", str(tree), "describe", "--always", "--dirty", "--exclude=*"]
    found = subprocess.run(describe, capture_output=True, text=True).stdout.strip()
    return found or "not a git checkout"


def table(scenario: str, unit: str, baseline: str | None, samples: dict[str, list[float]]) -> str:
    from benchmarks import figures

    def ratio(of: str, to: str) -> str:
        absent = of == to or to not in samples
        return "" if absent else figures.summary(figures.ratios(samples[of], samples[to]))

    rows = [
        [
            label,
            figures.summary(samples[label]),
            ratio(label, f"{baseline}, this"),
            ratio(label, label.replace(", this", ", other")),
        ]
        for label in sorted(samples)
    ]
    return figures.table([scenario, unit, f"to {baseline}", "this to other"], rows)


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
def side(tree: Path, where: dict[str, Any], size: str, webhooks: Path | None) -> Iterator[Tree]:
    given = {"PYTHONPATH": str(tree.resolve()), "BENCHMARK_SERVER": json.dumps(where)}
    payloads = [str(Path(webhooks).resolve())] if webhooks else []
    process = subprocess.Popen(
        [sys.executable, __file__, "--serve", size, *payloads],
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


def serve(size: str, *webhooks: str) -> None:
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
            answer: Any
            if question == "knows":
                answer = name in known
            elif question == "prepare":
                bench = Bench(clients, payload, size=size, rounds=1, tell=lambda _: None)
                measures, unit = known[name].prepare(bench), known[name].unit
                answer = list(measures), known[name].baseline
            elif question == "run":
                found = measures[name]()
                answer = found if isinstance(found, dict) else {unit: found}
            else:
                answer = bench.close()
            print(json.dumps(answer), file=answers, flush=True)
        clients.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        sys.argv.insert(1, "turns")
        runpy.run_module("benchmarks", run_name="__main__")
