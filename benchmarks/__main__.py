"""Measure the queue and its peers, in one run on one server.

    python -m benchmarks                    everything, about half an hour
    python -m benchmarks --quick            everything, smaller, under five minutes
    python -m benchmarks peers              by topic or by name
    python -m benchmarks --list

The server is one of our own that is gone afterwards, or DATABASE_URL's.
A run on a busy machine is marked, and saved beside the last quiet one, not in its place.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import database, payloads, peers, report
from benchmarks.machine import Watch

RESULTS = Path(__file__).parent / "results"
#: The name of the results saved while a run is unfinished.
UNFINISHED = "unfinished"


def main() -> int:
    options = parse()
    # SIGTERM ends the run like Ctrl-C, so that the server is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.list:
        # Scenarios import models, which need settings; listing them needs no server.
        os.environ.setdefault(
            "BENCHMARK_DATABASE", '{"dbname": "", "host": "", "port": 0, "user": ""}'
        )
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
        for scenario in scenarios([], full=True):
            print(f"{scenario.topic:10} {scenario.name:22} {scenario.title}")
        return 0
    try:
        return measure(options)
    except KeyboardInterrupt:
        print("\nInterrupted; the server is stopped and gone.", file=sys.stderr)
        if (kept := RESULTS / f"{UNFINISHED}.md").exists():
            print(f"What was measured is in {kept}", file=sys.stderr)
        return 130


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenarios", nargs="*", help="topics or names; all if none is given")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_const", const="quick", dest="size")
    size.add_argument("--full", action="store_const", const="full", dest="size")
    parser.add_argument("--rounds", type=int, help="how often, in turn (default: 3; quick: 2)")
    parser.add_argument(
        "--payloads",
        type=Path,
        default=os.environ.get("PGQUEUE_WEBHOOKS"),
        help="real webhooks: JSON lines {'event': …, 'payload': …}, plain or gzipped",
    )
    parser.add_argument("--name", help="of the files in benchmarks/results")
    parser.add_argument(
        "--force", action="store_true", help="save under that name on a busy machine too, marked"
    )
    parser.add_argument("--list", action="store_true", help="name the scenarios and stop")
    parser.set_defaults(size="normal")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.size == "quick" else 3)
    return options


def scenarios(wanted: list[str], *, full: bool) -> list[Any]:
    import django

    django.setup()
    from benchmarks.bench import known_scenarios

    known = [found for found in known_scenarios() if full or not found.full_only]
    unknown = set(wanted) - {found.topic for found in known} - {found.name for found in known}
    if unknown:
        sys.exit(f"No scenario or topic {', '.join(sorted(unknown))}; see --list.")
    return [f for f in known if not wanted or f.topic in wanted or f.name in wanted]


def measure(options: argparse.Namespace) -> int:
    sent = [payloads.small()]
    if options.payloads:
        sent.append(payloads.webhooks(Path(options.payloads)))
    else:
        print("Skipping the real webhooks: no --payloads given.")
    for label in {**peers.QUEUES, **peers.WORKERS}:
        if needed := peers.missing(label):
            print(f"Skipping {label}: {needed} is not installed.")
    started = time.monotonic()
    watch = Watch()
    watch.look()
    if disturbed := watch.machine.disturbances():
        print(f"The machine is busy, no figure will be a headline: {'; '.join(disturbed)}.")
    report.remove(RESULTS, UNFINISHED)
    print("Starting the server ...", flush=True)
    with database.database():
        chosen = scenarios(options.scenarios, full=options.size == "full")
        from django.core.management import call_command

        from benchmarks.bench import Bench, Outcome, run
        from benchmarks.clients import Clients

        call_command("migrate", verbosity=0)
        clients = Clients()
        about = report.about(options, sent)
        outcomes: list[Outcome] = []

        def save(name: str) -> Path:
            about["minutes"] = round((time.monotonic() - started) / 60, 1)
            about["machine"] |= report.of_machine(watch.machine)
            about["disturbed"] = watch.machine.disturbances()
            return report.save(RESULTS, name, about, outcomes)

        try:
            turns = [(s, p) for s in chosen for p in sent if p.is_small or s.webhooks]
            for number, (scenario, payload) in enumerate(turns, 1):
                progress = Progress(f"[{number}/{len(turns)}] {scenario.name}, {payload.name}")
                bench = Bench(
                    clients, payload, size=options.size, rounds=options.rounds, tell=progress
                )
                outcomes.append(Outcome(scenario, payload))
                try:
                    run(outcomes[-1], bench, watch)
                finally:
                    progress.done()
                    print(report.table(outcomes[-1]), flush=True)
                    save(UNFINISHED)
        finally:
            clients.close()
    name = options.name or usual_name(options)
    if (disturbed := watch.machine.disturbances()) and not options.force:
        name += "-busy"
    where = save(name)
    report.remove(RESULTS, UNFINISHED)
    print(report.goals(outcomes))
    if disturbed:
        print(f"\nNot for a headline: {'; '.join(disturbed)}.")
    print(f"\n{about['minutes']} minutes. Saved as {where}")
    return 0


def usual_name(options: argparse.Namespace) -> str:
    """The name of the results: the scenarios, and the size unless it is normal."""
    size = [] if options.size == "normal" else [options.size]
    return "-".join([*size, *(options.scenarios or ["latest"])])


class Progress:
    """Progress: one overwritten line in a terminal, and one line per step in a log."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.started = time.monotonic()
        self.live = sys.stdout.isatty()
        if not self.live:
            print(f"\n{title}", flush=True)

    def __call__(self, doing: str) -> None:
        if self.live:
            print(f"\r\033[K{self.title}: {doing}", end="", flush=True)

    def done(self) -> None:
        seconds = time.monotonic() - self.started
        print(f"\r\033[K{self.title} ({seconds:.0f} s)" if self.live else f"({seconds:.0f} s)")


if __name__ == "__main__":
    sys.exit(main())
