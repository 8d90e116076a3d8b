"""Test helpers that make tables and queues without running the project's migrations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from django.apps import apps
from django.conf import settings as django_settings
from django.core.management import call_command
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState
from django.test import override_settings

from django_pgqueue.ddl.inspection import kind_of_table
from django_pgqueue.models import BoundQueue, Queue
from django_pgqueue.operations import operations_in

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from django_pgqueue.tables.queue import QueueSettings


class MakeQueue(Protocol):
    """The type of the pytest fixture ``make_queue``."""

    def __call__(
        self, name: str, *, using: str | None = None, **settings: Unpack[QueueSettings]
    ) -> BoundQueue:
        """Make a queue for this test, and return its operations."""


def make_tables(using: str | None = None) -> None:
    """Make partitioned tables, and the queues, in a test database without migrations.

    With ``pytest --no-migrations`` or ``TEST["MIGRATE"] = False`` Django makes plain tables from
    the models. This function replaces them with partitioned ones, and calls :func:`make_queues`.
    Tables made by migrations stay as they are. The pytest plugin calls it; with Django's own test
    runner, call it in ``setup_databases``.
    """
    alias = Queue.objects.database(using)
    if kind_of_table(connections[alias]) == "p":
        return
    models = [m for m in apps.get_app_config("django_pgqueue").get_models() if m._meta.managed]
    tables = ", ".join(connections[alias].ops.quote_name(m._meta.db_table) for m in models)
    with connections[alias].cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {tables} CASCADE")
    with override_settings(MIGRATION_MODULES=_migration_modules()):
        call_command("migrate", "django_pgqueue", database=alias, verbosity=0)
    make_queues(alias)


def make_queues(using: str | None = None) -> None:
    """Make the queues and bindings that the project's migrations make with ``CreateQueue`` etc.

    Call it in a test database without migrations (:func:`make_tables` calls it), and in a
    TransactionTestCase, which deletes all rows after each test, including the queues::

        class Shipping(TransactionTestCase):
            def setUp(self):
                make_queues()

    Existing queues and bindings are not changed. Queues that a migration makes in another way, such
    as with RunPython, are not made.
    """
    alias = Queue.objects.database(using)
    with override_settings(MIGRATION_MODULES=_migration_modules()):
        operations = list(operations_in(MigrationLoader(None).graph))
    state = ProjectState.from_apps(apps)
    with connections[alias].schema_editor(atomic=False) as editor:
        for (app_label, _), operation in operations:
            operation.database_forwards(app_label, editor, state, state)
    Queue.objects.forget_all()


def replace_plain_tables() -> None:
    """Call :func:`make_tables` for each test database in which Django made plain tables."""
    for connection in connections.all():
        creation: Any = connection.creation
        if (
            connection.vendor == "postgresql"
            # Skip databases that no test uses: their connections still go to the real database.
            and connection.settings_dict["NAME"] == creation._get_test_db_name()
            and kind_of_table(connection) == "r"
        ):
            make_tables(connection.alias)


def _migration_modules() -> dict[str, str]:
    """Return MIGRATION_MODULES without the entries that switch migrations off."""
    modules: Any = django_settings.MIGRATION_MODULES
    if not isinstance(modules, dict):
        # pytest-django --no-migrations sets it to an object that switches all migrations off.
        return {}
    return {label: module for label, module in modules.items() if module is not None}
