"""django-ox: a backend of Django's Tasks with a polling worker of its own.

Its worker warns at the start that it opens a connection for each task, "about 5 ms each on a local
server", and advises ``CONN_MAX_AGE`` or Django's pool:
https://oxpull.com/django-ox/production/#retaining-worker-connections. The examples of that page run
four threads. The pool, or 1, 8 or 16 threads, changed the rate here by less than the rounds differ.
It advises health checks of kept connections, too; they add work to each task and are left out.
Many tasks go by ``django_ox.bulk.enqueue_many``.
"""

from __future__ import annotations

import sys
from typing import Any

from django_ox.bulk import enqueue_many
from django_ox.models import OxTask

from benchmarks import peers
from benchmarks.tasks import TASKS

BACKEND = "django-ox"
CONCURRENCY = 4


class Worker(peers.Worker):
    default = "`manage.py ox_worker`: one thread"
    tuned = (
        f"`--concurrency {CONCURRENCY}`, `CONN_MAX_AGE = None`, `--interval 0.05` in place of 1 s"
    )
    documentation = "https://oxpull.com/django-ox/production/#retaining-worker-connections"
    table = OxTask._meta.db_table

    def command(self, mode: str, concurrency: int | None = None) -> list[str]:
        tuning = ["--interval", "0.05"] if self.is_tuned else []
        if concurrency := concurrency or (CONCURRENCY if self.is_tuned else None):
            tuning += ["--concurrency", str(concurrency)]
        worker = ["ox_worker", "--backend", BACKEND, f"--queues=tasks-{mode}", "--verbosity", "0"]
        return [sys.executable, "-m", "django", *worker, *tuning]

    def environment(self) -> dict[str, str]:
        return {"BENCHMARK_PERSISTENT": "1"} if self.is_tuned else {}

    def enqueue(self, body: dict[str, Any], mode: str) -> None:
        TASKS[mode].using(backend=BACKEND).enqueue(**body)

    def enqueue_many(self, bodies: list[dict[str, Any]], mode: str) -> None:
        enqueue_many(TASKS[mode].using(backend=BACKEND), [((), body) for body in bodies])

    def remaining(self, mode: str) -> int:
        return self.count(f"SELECT count(*) FROM {self.table} WHERE status IN ('READY', 'RUNNING')")

    def clear(self, mode: str) -> None:
        self.connection.execute(f"TRUNCATE {self.table} CASCADE")
