"""Django's own tests of its task backends, run with our backends.

They are only in Django's source distribution, which pip downloads (DJANGO_SOURCE names an existing
copy). Our backends replace Django's two: first our backends for tests, and then the queues'
backend.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import os
import subprocess
import sys
import tarfile
import unittest
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import django
import pytest
from django.core.management import call_command
from django.db import connections
from django.tasks.backends import dummy, immediate
from django.test import TransactionTestCase

from django_pgqueue import handlers
from django_pgqueue.models import LiveMessage, Message, Queue
from django_pgqueue.tasks import DummyBackend, ImmediateBackend, PgQueueBackend, consuming

pytestmark = [
    pytest.mark.slow,
    pytest.mark.acceptance,
    pytest.mark.skipif(django.VERSION < (6, 1), reason="Django 6.0 cannot pickle its tasks"),
]

#: Tests of the stand-ins' own list of results, and of limits that a queue does not have.
NOT_OURS = {
    "DummyBackendTestCase.test_refresh_result",
    "DummyBackendTestCase.test_refresh_result_async",
    "ImmediateBackendTestCase.test_cannot_get_result",
    "ImmediateBackendTestCase.test_cannot_pass_run_after",
    "ImmediateBackendTestCase.test_cannot_refresh_result",
    # A consumer reads only after the commit.
    "ImmediateBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default",
    # A consumer must survive it; it is a delivery without an outcome.
    "ImmediateBackendTestCase.test_throws_keyboard_interrupt",
}


class Stored(PgQueueBackend):
    """Our backend. Creates the queues that the tests name, and can be called in coroutines."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        Message.objects.create_queue(task.queue_name)
        result = super().enqueue(task, args, kwargs)
        self.work(task.queue_name)
        # With the server's time, like every later result.
        return self.get_result(result.id)

    def get_result(self, result_id: str) -> Any:
        return _outside_of_loops(super().get_result, result_id)

    def work(self, queue: str) -> None:
        """Do nothing: enqueued tasks stay in the queue."""

    # Members of the DummyBackend.

    @property
    def results(self) -> list[Any]:
        ids = LiveMessage.objects.order_by("pk").values_list("pk", flat=True)
        return [self.get_result(str(pk)) for pk in _outside_of_loops(list, ids)]

    def clear(self) -> None:
        Queue.objects.all().delete()


class Worked(Stored):
    """Replaces the ImmediateBackend: a consumer runs what is enqueued."""

    def work(self, queue: str) -> None:
        with mock.patch.dict(handlers.registry._handlers, clear=True):
            consuming.register()
            call_command("runconsumer", queue, drain=True, no_progress=True, stdout=io.StringIO())


def _outside_of_loops(function: Callable[..., Any], *args: Any) -> Any:
    """Django's tests call the backends in coroutines too, where database calls are forbidden."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function(*args)

    def call() -> Any:
        try:
            return function(*args)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


@pytest.fixture(scope="module")
def suite(request: pytest.FixtureRequest) -> Iterator[dict[str, ModuleType]]:
    """The path of Django's tests, which can be imported from now on."""
    given = os.environ.get("DJANGO_SOURCE")
    tests = Path(given) / "tests" if given else _brought(request.config.cache)
    if not (tests / "tasks").is_dir():
        pytest.skip(f"{tests} has no tests of tasks")
    sys.path.insert(0, str(tests))
    try:
        names = ("test_tasks", "test_dummy_backend", "test_immediate_backend")
        yield {name: importlib.import_module(f"tasks.{name}") for name in names}
    finally:
        sys.path.remove(str(tests))
        for name in [name for name in sys.modules if name.partition(".")[0] == "tasks"]:
            del sys.modules[name]


def _brought(cache: Any) -> Path:
    """Download the source distribution of the installed Django; returns its tests' path."""
    home = Path(cache.mkdir("django-source"))
    tests = home / f"django-{django.get_version()}" / "tests"
    if not tests.is_dir():
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=django",
             "--dest", str(home), f"Django=={django.get_version()}"],
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        found = list(home.glob("*.tar.gz"))
        if not found:
            pytest.skip(f"pip did not bring Django's source: {done.stderr.strip()[-200:]}")
        with tarfile.open(found[0]) as archive:
            own = [m for m in archive.getmembers() if "/tests/tasks/" in m.name]
            archive.extractall(home, members=own, filter="data")
    return tests


def run(module: ModuleType, dummy_: type[Any], immediate_: type[Any], out: set[str]) -> int:
    """Run a module's tests with these backends instead of Django's; returns how many tests ran."""
    found = unittest.TestSuite()
    for case in vars(module).values():
        if not (isinstance(case, type) and issubclass(case, unittest.TestCase)):
            continue
        if case.__module__ != module.__name__:
            continue
        bases = (case,) if issubclass(case, TransactionTestCase) else (case, TransactionTestCase)
        ours = type(case.__name__, bases, {"available_apps": None})
        for name in unittest.TestLoader().getTestCaseNames(ours):
            if f"{case.__name__}.{name}" not in out:
                found.addTest(ours(name))
    with (
        mock.patch.object(dummy, "DummyBackend", dummy_),
        mock.patch.object(immediate, "ImmediateBackend", immediate_),
        mock.patch.object(module, "DummyBackend", dummy_, create=True),
        mock.patch.object(module, "ImmediateBackend", immediate_, create=True),
    ):
        result = unittest.TestResult()
        found.run(result)
    wrong = [text for _, text in [*result.failures, *result.errors]]
    assert not wrong, "\n".join(wrong)
    assert result.skipped == []
    return result.testsRun


@pytest.mark.parametrize(
    ("name", "count"),
    [("test_tasks", 38), ("test_dummy_backend", 17), ("test_immediate_backend", 19)],
)
def test_the_stand_ins_pass_djangos_own_tests(suite, transactional_db, name, count):
    assert run(suite[name], DummyBackend, ImmediateBackend, set()) >= count


@pytest.mark.parametrize(
    ("name", "immediate_", "count"),
    [
        ("test_tasks", ImmediateBackend, 38),
        ("test_dummy_backend", ImmediateBackend, 15),
        ("test_immediate_backend", Worked, 14),
    ],
)
def test_the_queues_backend_passes_djangos_own_tests(suite, committed, name, immediate_, count):
    assert run(suite[name], Stored, immediate_, NOT_OURS) >= count
