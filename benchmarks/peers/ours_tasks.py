"""Our backend of Django's Tasks."""

from __future__ import annotations

from typing import Any

from django.tasks import default_task_backend

from benchmarks.peers import ours
from benchmarks.tasks import TASKS


class Worker(ours.Worker):
    default = "`manage.py runconsumer`: four threads"
    tuned = "the same, `--workers 1`: one thread, since a task that only computes gains by no more"
    documentation = "docs/tasks.md, docs/deployment.md"
    queues = tuple(TASKS)

    def queue(self, mode: str) -> str:
        return f"tasks-{mode}"

    def install(self) -> None:
        """Do nothing: ``migrate`` creates the backend's queues."""

    def command(self, mode: str, concurrency: int | None = None) -> list[str]:
        return super().command(mode, concurrency or (1 if self.is_tuned else None))

    def enqueue(self, body: dict[str, Any], mode: str) -> None:
        TASKS[mode].enqueue(**body)

    def enqueue_many(self, bodies: list[dict[str, Any]], mode: str) -> None:
        default_task_backend.enqueue_many(TASKS[mode], bodies)
