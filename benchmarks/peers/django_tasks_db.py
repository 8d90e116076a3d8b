"""django-tasks-db: the database backend of Django's Tasks.

Its README says nothing about throughput. Its worker closes old connections before and after each
task, so that with Django's default ``CONN_MAX_AGE`` of 0 it connects anew twice a task; Django's
advice on persistent connections
(https://docs.djangoproject.com/en/6.1/ref/databases/#persistent-connections) ends that. It has no
call for many tasks; in one transaction they share one commit. A process runs one task at a time:
more at once take more processes.
"""

from __future__ import annotations

import sys
from typing import Any

from django_tasks_db.models import DBTaskResult, get_date_max

from benchmarks import peers
from benchmarks.payloads import BODY
from benchmarks.tasks import TASKS

BACKEND = "django-tasks-db"
CHUNK = 1000


class Worker(peers.Worker):
    default = "`manage.py db_worker`; enqueues many one by one"
    tuned = (
        "`CONN_MAX_AGE = None`, `--interval 0.05` in place of 1 s; enqueues many in one transaction"
    )
    documentation = "https://docs.djangoproject.com/en/6.1/ref/databases/#persistent-connections"
    table = DBTaskResult._meta.db_table
    has_concurrency = False

    def command(self, mode: str, concurrency: int | None = None) -> list[str]:
        tuning = ["--interval", "0.05"] if self.is_tuned else []
        queue = f"--queue-name=tasks-{mode}"
        worker = ["db_worker", "--backend", BACKEND, queue, "--no-reload", "--verbosity", "0"]
        return [sys.executable, "-m", "django", *worker, *tuning]

    def environment(self) -> dict[str, str]:
        return {"BENCHMARK_PERSISTENT": "1"} if self.is_tuned else {}

    def fill(self, count: int, mode: str) -> None:
        # Inserts the rows that enqueue would, many at once.
        task = TASKS[mode]
        for start in range(0, count, CHUNK):
            DBTaskResult.objects.bulk_create(
                DBTaskResult(
                    args_kwargs={"args": [], "kwargs": BODY},
                    task_path=task.module_path,
                    queue_name=task.queue_name,
                    backend_name=BACKEND,
                    run_after=get_date_max(),
                )
                for _ in range(min(CHUNK, count - start))
            )

    def enqueue(self, body: dict[str, Any], mode: str) -> None:
        TASKS[mode].using(backend=BACKEND).enqueue(**body)

    def remaining(self, mode: str) -> int:
        return self.count(f"SELECT count(*) FROM {self.table} WHERE status IN ('READY', 'RUNNING')")

    def clear(self, mode: str) -> None:
        self.connection.execute(f"TRUNCATE {self.table}")
