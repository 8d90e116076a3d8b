"""A pytest plugin for projects with pytest-django: the test helpers as fixtures.

pytest loads the plugin before Django is set up, so modules that need Django are imported when a
fixture is used.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from django_pgqueue.models import BoundQueue
    from django_pgqueue.testing import MakeQueue


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """With ``--no-migrations``, make partitioned tables, and the queues of the migrations."""
    if fixturedef.argname != "django_db_setup":
        return (yield)
    apps = import_module("django.apps").apps
    if not apps.is_installed("django_pgqueue"):
        return (yield)
    databases = import_module("django_pgqueue.testing.databases")
    names = databases.names_of_test_databases()
    result = yield
    with request.getfixturevalue("django_db_blocker").unblock():
        databases.make_tables_everywhere(names)
    return result


@pytest.fixture
def make_queue(db: None) -> Iterator[MakeQueue]:
    """Make a queue for this test: ``orders = make_queue("orders", max_deliveries=3)``.

    ``make_queue("audit", to="orders", start="earliest")`` makes a subscription.
    """
    models = import_module("django_pgqueue.models")
    made = []

    def make(
        name: str, *, using: str | None = None, to: str | None = None, **settings: Any
    ) -> BoundQueue:
        queue: BoundQueue = models.queue(name, using=using)
        made.append(queue.create(**settings) if to is None else queue.subscribe(to=to, **settings))
        return queue

    yield make
    connections = import_module("django.db").connections
    for queue in reversed(made):
        # Inside a transaction the rollback removes the queue.
        if not connections[queue.alias].in_atomic_block:
            models.Queue.objects.using(queue.alias).filter(pk=queue.pk).delete()


@pytest.fixture
def eager(db: None) -> Iterator[None]:
    """Handle each message as soon as it is sent, until the end of the test."""
    with import_module("django_pgqueue.testing").eager():
        yield


def _helper(name: str) -> Any:
    """Return a fixture whose value is a function of :mod:`django_pgqueue.testing`."""

    def helper(db: None) -> Any:
        return getattr(import_module("django_pgqueue.testing"), name)

    helper.__doc__ = f":func:`django_pgqueue.testing.{name}`"
    return pytest.fixture(name=name)(helper)


drain = _helper("drain")
travel = _helper("travel")
assert_enqueued = _helper("assert_enqueued")
assert_not_enqueued = _helper("assert_not_enqueued")
captured_messages = _helper("captured_messages")
