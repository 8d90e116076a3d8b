"""Run a contestant's worker on a few messages, in a process with the benchmark's settings.

    python -m tests.benchmarks.rehearsal "ours, tasks" --tuned

Prints as JSON the due time of each handled message, the number of messages not done, and the
worker's exit code.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import database, notes

COUNT = 20


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


if __name__ == "__main__":
    with database.database():
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        print(json.dumps(rehearse(sys.argv[1], is_tuned="--tuned" in sys.argv)))
