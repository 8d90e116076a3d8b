"""Fixtures for tests of the task backend, which are collected only if a task framework is
installed.
"""

from __future__ import annotations

import io
import signal
from collections.abc import Callable, Iterator
from typing import Any

import django
import pytest
from django.core.management import call_command
from django.test import override_settings

from django_pgqueue.models import Message, Queue
from tests.prometheus.conftest import connected
from tests.tasks.framework import HAS_TASKS

__all__ = ["connected"]

collect_ignore_glob = [] if HAS_TASKS else ["test_*.py"]
collect_ignore = [] if django.VERSION >= (6, 0) else ["test_djangos_own.py"]

BACKEND = "django_pgqueue.tasks.PgQueueBackend"
QUEUES = ["default", "emails"]


@pytest.fixture
def configure(own_handlers: None) -> Iterator[Callable[..., None]]:
    """Set our backend in TASKS with these options: ``configure(retry=NoRetry())``."""
    changed: list[override_settings] = []

    def change(queues: list[str] = QUEUES, **options: Any) -> None:
        backend = {"BACKEND": BACKEND, "QUEUES": queues, "OPTIONS": options}
        changed.append(override_settings(TASKS={"default": backend}))
        changed[-1].enable()

    yield change
    for each in reversed(changed):
        each.disable()


@pytest.fixture
def backend(db: None, configure: Callable[..., None]) -> Any:
    """The backend, with its queues in the test's transaction."""
    return _made(configure)


@pytest.fixture
def committed_backend(committed: None, configure: Callable[..., None]) -> Any:
    """The backend, with committed queues that a consumer can see."""
    return _made(configure)


def _made(configure: Callable[..., None]) -> Any:
    from tests.tasks.framework import default_task_backend

    configure()
    for name in QUEUES:
        Message.objects.create_queue(name)
    return default_task_backend


@pytest.fixture
def work(committed: None) -> Iterator[Callable[..., None]]:
    """Run ``runconsumer --drain`` on these queues, or on all queues."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def run(*queues: str, **options: Any) -> None:
        call_command(
            "runconsumer", *queues, drain=True, no_progress=True, stdout=io.StringIO(), **options
        )

    yield run
    for number, handler in kept.items():
        signal.signal(number, handler)
    Queue.objects.forget_all()


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    from tests.tasks import sample

    sample.ran.clear()
    sample.begun.clear()
    sample.go.clear()
