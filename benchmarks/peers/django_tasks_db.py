"""Django's tasks with the database backend, and its worker as it comes."""

from __future__ import annotations

import sys
from typing import Any

from django.db import transaction

from benchmarks import tasks

TASKS = {"drain": tasks.nothing, "latency": tasks.note_the_delay}


class Worker:
    most = 1_500

    def install(self) -> None:
        """Its tables come with ``migrate``."""

    def command(self, mode: str) -> list[str]:
        return [sys.executable, "-m", "django", "db_worker", "--no-reload", "--verbosity", "0"]

    def fill(self, count: int, mode: str) -> None:
        with transaction.atomic():
            for _ in range(count):
                TASKS[mode].enqueue("y" * 192)

    def send(self, body: dict[str, Any], mode: str) -> None:
        TASKS[mode].enqueue(**body)

    def remaining(self, mode: str) -> int:
        from django_tasks_db.models import DBTaskResult

        return DBTaskResult.objects.filter(status__in=["READY", "RUNNING"]).count()

    def clear(self, mode: str) -> None:
        from django_tasks_db.models import DBTaskResult

        DBTaskResult.objects.all().delete()

    def close(self) -> None:
        """Django keeps the connection."""
