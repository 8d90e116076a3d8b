"""django-q2: its ORM broker.

By default a cluster has a worker process for each core, and takes one task at a time from the
table. The documentation's example for this broker has ``'workers': 4``, ``'queue_limit': 50`` and
``'bulk': 10``: https://django-q2.readthedocs.io/en/master/configure.html#orm. Its processes close
old connections before each look, so Django's advice on persistent connections counts here as well.
There is no call for many tasks; in one transaction they share one commit.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from django.db import transaction
from django_q.models import OrmQ, Task
from django_q.tasks import async_task

from benchmarks import peers
from benchmarks.notes import note

WORKERS = 4


def nothing(x: str) -> None:
    """A handler that does nothing."""


def wait_10ms(x: str) -> None:
    time.sleep(0.01)


def note_the_delay(sent: float) -> None:
    note(sent)


TASKS = {"drain": nothing, "wait": wait_10ms, "latency": note_the_delay}


class Worker(peers.Worker):
    default = "`manage.py qcluster`, a process for each core; enqueues many one by one"
    tuned = (
        f"`workers` {WORKERS}, `queue_limit` 50, `bulk` 10, `CONN_MAX_AGE = None`; "
        "enqueues many in one transaction"
    )
    documentation = "https://django-q2.readthedocs.io/en/master/configure.html#orm"
    table = OrmQ._meta.db_table

    def __init__(self, *, is_tuned: bool = False) -> None:
        super().__init__(is_tuned=is_tuned)
        self.cluster: dict[str, Any] = {}

    def command(self, mode: str, concurrency: int | None = None) -> list[str]:
        self.cluster = {"cluster_name": mode}  # the cluster's name signs the tasks
        if self.is_tuned:
            self.cluster |= {"workers": WORKERS, "queue_limit": 50, "bulk": 10}
        if concurrency:
            self.cluster["workers"] = concurrency
        return [sys.executable, "-m", "django", "qcluster"]

    def environment(self) -> dict[str, str]:
        persistent = {"BENCHMARK_PERSISTENT": "1"} if self.is_tuned else {}
        return {"BENCHMARK_CLUSTER": json.dumps(self.cluster), **persistent}

    def fill(self, count: int, mode: str) -> None:
        with transaction.atomic():
            super().fill(count, mode)

    def enqueue(self, body: dict[str, Any], mode: str) -> None:
        task = TASKS[mode]
        async_task(f"{task.__module__}.{task.__qualname__}", cluster=mode, **body)

    def remaining(self, mode: str) -> int:
        return self.count(f"SELECT count(*) FROM {self.table} WHERE key = %s", mode)

    def clear(self, mode: str) -> None:
        self.connection.execute(f"TRUNCATE {self.table}, {Task._meta.db_table}")
