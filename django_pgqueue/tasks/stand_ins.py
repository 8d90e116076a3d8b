"""Django's backends for development and tests, extended to accept our task options."""

from __future__ import annotations

from django_pgqueue.tasks import framework
from django_pgqueue.tasks.definition import Options


class ImmediateBackend(Options, framework.ImmediateBackend):  # type: ignore[misc]
    """Django's ImmediateBackend: tasks run when they are enqueued, once, without retries."""


class DummyBackend(Options, framework.DummyBackend):  # type: ignore[misc]
    """Django's DummyBackend: tasks are kept in ``results`` and never run."""
