"""The same handlers as Django tasks, for backends of Django's task framework."""

from __future__ import annotations

from django.tasks import task

from benchmarks.notes import note


@task
def nothing(x: str) -> None:
    """A handler that does nothing."""


@task
def note_the_delay(sent: float) -> None:
    note(sent)
