"""Fixtures for the whole suite."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import hypothesis
import pytest
import pytest_django
from django.conf import settings
from django.db import connection, connections, transaction
from django.test import override_settings

from django_pgqueue import handlers, queue, schedules
from django_pgqueue.models import BoundQueue, Message, Queue
from tests.actors import Actor, databases, execute
from tests.app import models as shop_models

# A project of its own: tests/acceptance/test_packages.py runs its tests.
collect_ignore = ["first_week"]

DEBIAN_POSTGRES_15 = Path("/usr/lib/postgresql/15/bin")
#: The programs of the suite's own server, and those of PostgreSQL 15.
VERSIONS = ["", pytest.param(str(DEBIAN_POSTGRES_15), marks=pytest.mark.pg15)]
CHROMIUM = Path("/usr/bin/chromium")
_MADE_BY_MIGRATE = {"auth_permission", "django_content_type"}

# A slow example is no failure: the machine may be busy.
hypothesis.settings.register_profile(
    "suite", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--clusters",
        default="",
        metavar="KINDS",
        help="Spark clusters to play the pipeline on, as local-cluster,standalone",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need a program which this machine lacks, with the reason."""
    missing = {}
    if not DEBIAN_POSTGRES_15.exists():
        missing["pg15"] = "needs a PostgreSQL 15 installation (Debian's postgresql-15)"
    if shutil.which("java") is None:
        missing["spark"] = "needs a Java runtime"
    if not CHROMIUM.exists() or find_spec("playwright") is None:
        missing["browser"] = "needs Chromium (Debian's chromium) and Playwright"
    for item in items:
        if _COMMITTING & set(getattr(item, "fixturenames", ())) or _commits(item):
            item.add_marker("commits")
        for marker, reason in missing.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape lone surrogates in a test's output: pytest-xdist cannot transmit them."""
    report = yield
    report.sections = [
        (title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections
    ]
    return report


_COMMITTING = {"committed", "committed_orders", "transactional_db", "actors"}


def _commits(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("django_db")
    return bool(marker and marker.kwargs.get("transaction"))


@pytest.fixture
def own_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the registries of handlers and schedules by empty ones during the test."""
    # Loaded before, since it would register the project's handlers during the test.
    handlers.autodiscover()
    monkeypatch.setattr(handlers.registry, "_handlers", {})
    monkeypatch.setattr(schedules, "_declared", {})


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch, own_handlers: None, db: None) -> None:
    """The project of the guides: an app with orders, and no queue or consumer yet."""
    app = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", app)
    monkeypatch.setitem(sys.modules, "shop.models", shop_models)
    with connection.cursor() as cursor:
        cursor.execute("ALTER SEQUENCE pgqueue_message_id_seq RESTART")


@pytest.fixture(scope="session", autouse=True)
def _quick_flush() -> Iterator[None]:
    """Keep permissions and content types, since recreating them takes longer than a flush.

    Skip the flush if there is nothing to flush, as after most tests: checking takes a tenth of the
    time.
    """
    command = "django.core.management.commands.flush"
    with (
        mock.patch(f"{command}.emit_post_migrate_signal"),
        mock.patch(f"{command}.sql_flush", _sql_flush),
    ):
        yield


def _sql_flush(
    style: Any, connection: Any, reset_sequences: bool = True, allow_cascade: bool = False
) -> list[str]:
    tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
    tables = [name for name in tables if name not in _MADE_BY_MIGRATE]
    any_row = " OR ".join(f'EXISTS (SELECT FROM "{table}")' for table in tables)
    if (
        not reset_sequences
        and tables
        and run_sql(f"SELECT {any_row}", using=connection.alias) == [(False,)]
    ):
        return []
    return connection.ops.sql_flush(
        style, tables, reset_sequences=reset_sequences, allow_cascade=allow_cascade
    )


@pytest.fixture
def orders(db: None) -> BoundQueue:
    """A queue created in the test's transaction, and so rolled back."""
    Message.objects.create_queue("orders")
    return queue("orders")


@pytest.fixture
def dead_letters(orders: BoundQueue) -> BoundQueue:
    """The dead-letter queue of ``orders``."""
    dead = Message.objects.create_queue("dead")
    Queue.objects.filter(name="orders").update(dead_letter_queue=dead)
    return queue("dead")


@pytest.fixture
def committed(request: pytest.FixtureRequest, transactional_db: None) -> Iterator[None]:
    """For tests that commit: drops the queues that they created, since a flush leaves the
    partitions.
    """
    Queue.objects.forget_all()
    yield
    marker = request.node.get_closest_marker("django_db")
    aliases = (marker and marker.kwargs.get("databases")) or ["default"]
    for alias in aliases:
        Queue.objects.using(alias).update(dead_letter_queue=None)
        Queue.objects.using(alias).exclude(source=None).delete()
        Queue.objects.using(alias).all().delete()
    Queue.objects.forget_all()


@pytest.fixture
def committed_orders(committed: None) -> BoundQueue:
    """A committed queue, visible to other processes."""
    Message.objects.create_queue("orders")
    return queue("orders")


@pytest.fixture(scope="session")
def reachable(
    django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker
) -> dict[str, dict[str, Any]]:
    """The tests' databases, as another process can connect to them."""
    with django_db_blocker.unblock():
        return databases()


@pytest.fixture(scope="session")
def _company(reachable: dict[str, dict[str, Any]]) -> Iterator[list[Actor]]:
    company: list[Actor] = []
    yield company
    for actor in company:
        actor.leave()


@pytest.fixture
def actors(
    committed: None, reachable: dict[str, dict[str, Any]], _company: list[Actor]
) -> Iterator[Callable[[int], list[Actor]]]:
    """``actors(n)`` returns n processes with connections, ready to start together."""

    def call(number: int) -> list[Actor]:
        while len(_company) < number:
            _company.append(Actor(reachable))
        ready = [actor.start(execute, "SELECT 1") for actor in _company[:number]]
        for future in ready:
            future.result(timeout=60)
        return _company[:number]

    yield call
    for actor in _company:
        actor.rest()


@pytest.fixture
def actor(actors: Callable[[int], list[Actor]]) -> Actor:
    """Another process, which can hold a transaction open."""
    return actors(1)[0]


@pytest.fixture
def pgqueue() -> Iterator[Callable[..., None]]:
    """Change settings.PGQUEUE during the test: ``pgqueue(COPY_THRESHOLD=3)``."""
    with contextlib.ExitStack() as stack:

        def change(**values: Any) -> None:
            known = getattr(settings, "PGQUEUE", {})
            stack.enter_context(override_settings(PGQUEUE={**known, **values}))

        yield change


@pytest.fixture
def sql(db: None) -> Callable[..., list[tuple[Any, ...]]]:
    """Run plain SQL; returns the rows."""
    return run_sql


def run_sql(statement: str, params: Any = None, using: str = "default") -> list[tuple[Any, ...]]:
    with connections[using].cursor() as cursor:
        cursor.execute(statement, params)
        return cursor.fetchall() if cursor.description else []


@contextlib.contextmanager
def rolled_back(using: str = "default") -> Iterator[None]:
    """Run the block in a transaction, and roll that back."""
    with transaction.atomic(using=using):
        yield
        transaction.set_rollback(True, using=using)


def send_untold(queue: BoundQueue, body: Any) -> int:
    """Send without a notification, as if another send had taken its place and was rolled back."""
    wake = Message.objects.resolve(queue.name).tables["wake"]
    with transaction.atomic():
        run_sql(f"SELECT setval('{wake}', 8)")  # no more notifications may follow
        return queue.send(body)
