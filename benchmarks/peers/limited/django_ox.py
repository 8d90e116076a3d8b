"""django-ox's ``RATE_LIMITS``, of a queue or a task: a key is a queue.

https://oxpull.com/django-ox/features/. The settings are in benchmarks/settings.py, since a worker
reads them there. A limit is a number of starts in a window of whole seconds, so the burst is the
rate of a second, and a window may begin with it. The documentation says that the limits are "not
concurrency limits".
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from django.tasks import task
from django_ox.bulk import enqueue_many

from benchmarks import runs
from benchmarks.peers import django_ox, limited
from benchmarks.peers.limited import BUSY, NEWCOMER, RATE

BACKEND = "django-ox-limited"


@task(backend=BACKEND)
def handle(key: str, number: int, seconds: float) -> None:
    runs.handle(key, number, seconds)


class Worker(limited.Worker, django_ox.Worker):
    limits = {"rate": f'of a queue: `RATE_LIMITS`, `"limit": {RATE}, "per": 1`'}
    none = {"cap": "its documentation says that its limits are not concurrency limits"}
    documentation = "https://oxpull.com/django-ox/features/"

    def command(self, mode: str, concurrency: int | None = None) -> list[str]:
        queues = ",".join(f"limits-{key}" for key in (BUSY, NEWCOMER))
        worker = ["ox_worker", "--backend", BACKEND, f"--queues={queues}", "--verbosity", "0"]
        tuning = ["--interval", "0.05", "--concurrency", str(concurrency)]
        return [sys.executable, "-m", "django", *worker, *tuning]

    def send(self, mode: str, messages: Sequence[dict[str, Any]]) -> None:
        [key] = {message["key"] for message in messages}
        enqueue_many(handle.using(queue_name=f"limits-{key}"), [((), each) for each in messages])
