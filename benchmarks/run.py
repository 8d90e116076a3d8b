"""Run scenarios: every contestant in turn, on one server.

Tables are printed, and saved in benchmarks/results. A run on a busy machine is marked, and saved
beside the last quiet one, not in its place, unless it has a name.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import database, payloads, peers, report
from benchmarks.load import command as load
from benchmarks.load import plan
from benchmarks.machine import Watch

RESULTS = Path(__file__).parent / "results"
UNFINISHED = RESULTS / "unfinished.md"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "scenarios", nargs="*", help="topics or names of scenarios (default: all but load)"
    )
    plan.add_arguments(parser)


def print_scenarios(_options: argparse.Namespace) -> int:
    # Scenarios import models, which need settings; naming them needs no server.
    os.environ.setdefault("BENCHMARK_DATABASE", '{"dbname": "", "host": "", "port": 0, "user": ""}')
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    for scenario in scenarios([]):
        print(f"{scenario.topic:10} {scenario.name:22} {scenario.title}")
    print(f"{'load':10} {'load':22} {load.TITLE}")
    return 0


def scenarios(wanted: list[str]) -> list[Any]:
    import django

    django.setup()
    from benchmarks.bench import known_scenarios

    known = known_scenarios()
    unknown = set(wanted) - {found.topic for found in known} - {found.name for found in known}
    if unknown:
        sys.exit(
            f"No scenario or topic {', '.join(sorted(unknown))}; see `python -m benchmarks list`."
        )
    return [f for f in known if not wanted or f.topic in wanted or f.name in wanted]


def command(options: argparse.Namespace) -> int:
    if "load" in options.scenarios:
        if options.scenarios != ["load"]:
            sys.exit("Run load alone: its results have a file of their own.")
        return load.command(options)
    options.rounds = options.rounds or (2 if options.size == "quick" else 3)
    sent = [payloads.small()]
    if options.payloads:
        sent.append(payloads.webhooks(Path(options.payloads)))
    else:
        print("Skipping the real webhooks: no --payloads given.")
    for label in peers.ALL:
        if needed := peers.missing(label):
            print(f"Skipping {label}: {needed} is not installed.")
    started = time.monotonic()
    watch = Watch()
    watch.look()
    if disturbed := watch.machine.disturbances():
        print(
            f"The machine is busy, so do not quote the figures of this run: {'; '.join(disturbed)}."
        )
    UNFINISHED.unlink(missing_ok=True)
    with database.database():
        chosen = scenarios(options.scenarios)
        from django.core.management import call_command

        from benchmarks.bench import Bench, Outcome, run
        from benchmarks.clients import Clients

        call_command("migrate", verbosity=0)
        clients = Clients()
        about = report.about(options, sent)
        outcomes: list[Outcome] = []

        def save(path: Path) -> None:
            about["minutes"] = round((time.monotonic() - started) / 60, 1)
            about["machine"] |= report.of_machine(watch.machine)
            about["disturbed"] = watch.machine.disturbances()
            path.write_text(report.markdown(about, outcomes), encoding="utf-8")

        try:
            pairs = [(s, p) for s in chosen for p in sent if p.is_small or s.webhooks]
            for number, (scenario, payload) in enumerate(pairs, 1):
                print(f"\n[{number}/{len(pairs)}] {scenario.title} ({payload.name})", flush=True)
                bench = Bench(clients, payload, size=options.size, rounds=options.rounds, tell=tell)
                outcomes.append(Outcome(scenario, payload))
                try:
                    run(outcomes[-1], bench, watch)
                finally:
                    print(report.findings(outcomes[-1]), flush=True)
                    save(UNFINISHED)
        except KeyboardInterrupt:
            print(f"\nInterrupted. What was measured is in {UNFINISHED}")
            raise
        finally:
            clients.close()
    busy = "-busy" if watch.machine.disturbances() else ""
    target = RESULTS / f"{options.name or usual_name(options) + busy}.md"
    save(target)
    UNFINISHED.unlink()
    print(f"\n{report.goals(outcomes)}")
    if busy:
        print(f"\nDo not quote these figures: {'; '.join(watch.machine.disturbances())}.")
    print(f"\n{about['minutes']} minutes. Saved as {target}")
    return 0


def usual_name(options: argparse.Namespace) -> str:
    """The name of the results: the scenarios, and the size unless it is normal."""
    size = [] if options.size == "normal" else [options.size]
    return "-".join([*size, *(options.scenarios or ["latest"])])


def tell(doing: str) -> None:
    print(doing, file=sys.stderr, flush=True)
