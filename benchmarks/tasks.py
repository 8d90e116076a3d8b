"""The handlers as Django tasks, for backends of Django's task framework."""

from __future__ import annotations

import time

from django.tasks import task

from benchmarks.notes import note_delay


@task(queue_name="tasks-drain")
def nothing(x: str) -> None:
    """A handler that does nothing."""


@task(queue_name="tasks-wait")
def wait_10ms(x: str) -> None:
    time.sleep(0.01)


@task(queue_name="tasks-latency")
def note_the_delay(sent: float) -> None:
    note_delay(sent)


TASKS = {"drain": nothing, "wait": wait_10ms, "latency": note_the_delay}
