"""Test helpers that make tables and queues without running the project's migrations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, overload

from django.apps import apps
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connections
from django.db.backends.base.creation import TEST_DATABASE_PREFIX
from django.db.migrations.loader import MigrationLoader
from django.db.models.signals import post_migrate
from django.test import override_settings

from django_pgqueue.ddl.inspection import kind_of_table
from django_pgqueue.models import BoundQueue, Queue
from django_pgqueue.operations import operations_in, replay, restore_queues

_APP = Queue._meta.app_label

try:
    from django_pgqueue.tasks import consuming
except ImproperlyConfigured:  # Django 5.2 without django-tasks
    consuming = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from django_pgqueue.engine.subscriptions.positions import Start
    from django_pgqueue.tables.queue import QueueSettings, SubscriptionSettings


class MakeQueue(Protocol):
    """The type of the pytest fixture ``make_queue``."""

    @overload
    def __call__(
        self, name: str, *, using: str | None = None, **settings: Unpack[QueueSettings]
    ) -> BoundQueue:
        """Make a queue for this test, and return its operations."""

    @overload
    def __call__(
        self,
        name: str,
        *,
        to: str,
        start: Start = "now",
        using: str | None = None,
        **settings: Unpack[SubscriptionSettings],
    ) -> BoundQueue:
        """Make a subscription for this test, and return its operations."""


def make_tables(using: str | None = None) -> None:
    """Make partitioned tables, and the queues, in a test database without migrations.

    With ``pytest --no-migrations`` or ``TEST["MIGRATE"] = False`` Django makes plain tables from
    the models. This function replaces them with partitioned ones, and calls :func:`make_queues`,
    now and after each flush. Where migrations made the tables, it makes only the queues, if a test
    run before left none. The pytest plugin calls it; with Django's own test runner, call it in
    ``setup_databases``.
    """
    alias = Queue.objects.database(using)
    if kind_of_table(connections[alias]) != "p":
        _replace_tables(alias)
    elif not _lacks_migrations(connections[alias]):
        restore_queues(alias)
        return
    make_queues(alias)
    post_migrate.connect(_restore, apps.get_app_config(_APP), dispatch_uid=f"pgqueue-test-{alias}")


def _replace_tables(alias: str) -> None:
    models = [m for m in apps.get_app_config(_APP).get_models() if m._meta.managed]
    tables = ", ".join(connections[alias].ops.quote_name(m._meta.db_table) for m in models)
    with connections[alias].cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {tables} CASCADE")
    with override_settings(MIGRATION_MODULES=_migration_modules()):
        call_command("migrate", _APP, database=alias, verbosity=0)


def _restore(using: str, plan: Any = None, **kwargs: Any) -> None:
    """Make the queues after a flush. Receives ``post_migrate``, which has no ``plan`` then."""
    if plan is None and _lacks_migrations(connections[using]):
        make_queues(using)


def _lacks_migrations(connection: Any) -> bool:
    """Whether Django makes this test database without migrations."""
    modules: Any = django_settings.MIGRATION_MODULES
    switched_off = _APP in modules and modules[_APP] is None
    return switched_off or connection.settings_dict["TEST"].get("MIGRATE") is False


def make_queues(using: str | None = None) -> None:
    """Make the queues and bindings of the project's migrations, and the queues of tasks.

    Call it where they are gone: after a flush by a TransactionTestCase with ``serialized_rollback``
    or ``available_apps``, and in a test database without migrations (:func:`make_tables` calls it).
    Elsewhere they come back after a flush by themselves::

        class Shipping(TransactionTestCase):
            serialized_rollback = True

            def setUp(self):
                make_queues()

    Only queues that migrations make with ``CreateQueue`` are made, not those of RunPython. Existing
    queues get the settings that a later ``AlterQueue`` sets.
    """
    alias = Queue.objects.database(using)
    with override_settings(MIGRATION_MODULES=_migration_modules()):
        operations = list(operations_in(MigrationLoader(None).graph))
    replay(alias, operations)
    if consuming is not None:
        consuming.create_queues(alias)


def names_of_test_databases() -> dict[str, str]:
    """Return the name that the test database of each alias will get, before Django makes them.

    Afterwards ``NAME`` is already the test database's, and Django would derive another name from
    it. Makes no connection: the project may still change its settings.
    """
    names = {}
    for alias, config in django_settings.DATABASES.items():
        given = config.get("TEST", {}).get("NAME")
        names[alias] = given or f"{TEST_DATABASE_PREFIX}{config.get('NAME', '')}"
    return names


def make_tables_everywhere(names: dict[str, str]) -> None:
    """Call :func:`make_tables` for each test database with tables of queues.

    Skips databases that no test uses: their connections still go to the real database, whose name
    is not in ``names``.
    """
    for connection in connections.all():
        if (
            connection.vendor == "postgresql"
            and connection.settings_dict["NAME"] == names.get(connection.alias)
            and kind_of_table(connection) is not None
        ):
            make_tables(connection.alias)


def _migration_modules() -> dict[str, str]:
    """Return MIGRATION_MODULES without the entries that switch migrations off."""
    modules: Any = django_settings.MIGRATION_MODULES
    if not isinstance(modules, dict):
        # pytest-django --no-migrations sets it to an object that switches all migrations off.
        return {}
    return {label: module for label, module in modules.items() if module is not None}
