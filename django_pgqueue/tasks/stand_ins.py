"""Django's backends for development and tests, for tasks with options of ours."""

from __future__ import annotations

from django.tasks.backends import dummy, immediate

from django_pgqueue.tasks.task import Options

__all__ = ["DummyBackend", "ImmediateBackend"]


class ImmediateBackend(Options, immediate.ImmediateBackend):  # type: ignore[misc]
    """Django's ImmediateBackend: tasks run when they are enqueued, once, without retries."""


class DummyBackend(Options, dummy.DummyBackend):  # type: ignore[misc]
    """Django's DummyBackend: tasks are kept in ``results`` and never run."""
