"""Run a contestant's worker on a few messages, in a process with the benchmark's settings.

    python -m tests.benchmarks.rehearsal "ours, tasks" --tuned
    python -m tests.benchmarks.rehearsal PgQueuer --limited
    python -m tests.benchmarks.rehearsal subscriptions --topic

Prints as JSON the due time of each handled message, or its number, the number of messages not done,
and the worker's exit code. With limits, for each of them. With a topic, runs its scenarios for one
round, and prints which contestants failed and which goals have a figure.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import database, notes

COUNT = 20
#: Of a limited handler.
SECONDS = 0.01


def rehearse(label: str, *, is_tuned: bool) -> dict[str, Any]:
    from benchmarks import peers
    from benchmarks.workers import running

    worker = peers.open_worker(label, is_tuned=is_tuned)
    worker.install()
    for number in range(COUNT // 2):
        worker.enqueue({"sent": float(number)}, "latency")
    worker.enqueue_many([{"sent": float(n)} for n in range(COUNT // 2, COUNT)], "latency")
    with tempfile.TemporaryDirectory() as directory:
        noted = Path(directory) / "notes"
        with running(worker, "latency", **{notes.VARIABLE: str(noted)}) as found:
            found.wait_for(lambda: not worker.remaining("latency"))
        handled = sorted(sent for sent, _ in notes.read(noted))
    [process] = found.processes
    remaining = worker.remaining("latency")
    worker.close()
    return {"handled": handled, "remaining": remaining, "exit": process.returncode}


def rehearse_limited(label: str) -> dict[str, dict[str, Any]]:
    from benchmarks import peers, runs
    from benchmarks.peers.limited import BUSY, NEWCOMER
    from benchmarks.workers import running

    worker = peers.open_limited(label)
    worker.install()
    found = {}
    for mode in worker.limits:
        worker.clear(mode)
        runs.clear(worker.connection)
        for key, numbers in ((BUSY, range(COUNT - 2)), (NEWCOMER, range(COUNT - 2, COUNT))):
            worker.send(mode, runs.messages(key, numbers, SECONDS))
        sent = worker.remaining(mode)
        with running(worker, mode, processes=2, concurrency=2) as processes:
            processes.wait_for(lambda mode=mode: not worker.remaining(mode))
        seen = runs.read(worker.connection)
        found[mode] = {
            "sent": sent,
            "handled": sorted(run.number for run in seen if run.ended),
            "started": len(seen),
            "shortest": min(run.ended - run.started for run in seen if run.ended),
            "exits": [process.returncode for process in processes.processes],
        }
    worker.close()
    return found


def rehearse_topic(topic: str) -> dict[str, dict[str, Any]]:
    from benchmarks import payloads
    from benchmarks.bench import Bench, Outcome, known_scenarios, run
    from benchmarks.clients import Clients
    from benchmarks.machine import Watch

    clients = Clients()
    found = {}
    for scenario in known_scenarios():
        if scenario.topic == topic:
            outcome = Outcome(scenario, payloads.small())
            options: dict[str, Any] = {"size": "quick", "rounds": 1, "tell": lambda _: None}
            run(outcome, Bench(clients, outcome.payload, **options), Watch())
            found[scenario.name] = {
                "failures": outcome.failures,
                "contestants": list(outcome.samples),
                "goals": [str(goal) for goal in scenario.goals],
                "judged": [str(goal) for goal, *_ in outcome.judged()],
            }
    clients.close()
    return found


if __name__ == "__main__":
    with database.database():
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        if "--topic" in sys.argv:
            print(json.dumps(rehearse_topic(sys.argv[1])))
        elif "--limited" in sys.argv:
            print(json.dumps(rehearse_limited(sys.argv[1])))
        else:
            print(json.dumps(rehearse(sys.argv[1], is_tuned="--tuned" in sys.argv)))
