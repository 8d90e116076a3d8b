"""System checks: what is wrong with the configuration, said before it hurts.

======================  ========================================================================
django_pgqueue.E001     ``PGQUEUE`` has a key that means nothing
django_pgqueue.E002     the queues' database is not PostgreSQL
django_pgqueue.E003     its server is older than PostgreSQL 15 (asks the database)
django_pgqueue.E004     ``PGQUEUE["DATABASE"]`` is no alias of ``DATABASES``
django_pgqueue.E005     the tables were made without the migrations (asks the database)
django_pgqueue.W001     the routers send the models elsewhere than ``PGQUEUE["DATABASE"]``
======================  ========================================================================

Those that ask the database run with ``manage.py check --database default``, and with ``migrate``.
A database that cannot be reached passes: that is no matter of configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from django.apps.config import AppConfig
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import OperationalError, connections, router

from django_pgqueue.conf import DEFAULTS, settings
from django_pgqueue.models import Message, Queue

__all__ = [
    "check_database_exists",
    "check_keys",
    "check_made_by_migrations",
    "check_routers",
    "check_server_version",
    "check_vendor",
]

OLDEST_SERVER = 15
APP = Queue._meta.app_label

Apps = Sequence[AppConfig] | None
Aliases = Sequence[str] | None


@register(Tags.compatibility)
def check_keys(app_configs: Apps = None, **kwargs: Any) -> list[CheckMessage]:
    return [
        Error(
            f"PGQUEUE has no setting {key!r}.",
            hint=f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(DEFAULTS)}.",
            id="django_pgqueue.E001",
        )
        for key in getattr(django_settings, "PGQUEUE", {})
        if key not in DEFAULTS
        for close in [get_close_matches(str(key).upper(), DEFAULTS, n=1)]
    ]


@register(Tags.compatibility)
def check_vendor(app_configs: Apps = None, **kwargs: Any) -> list[CheckMessage]:
    alias = Queue.objects.database()
    if alias not in connections or connections[alias].vendor == "postgresql":
        return []
    return [
        Error(
            f"The queues' database {alias!r} is {connections[alias].display_name}.",
            hint="Queues need PostgreSQL. Name the alias of one in PGQUEUE['DATABASE'] and add "
            "django_pgqueue.routers.QueueRouter to DATABASE_ROUTERS.",
            id="django_pgqueue.E002",
        )
    ]


@register(Tags.database)
def check_server_version(
    app_configs: Apps = None, databases: Aliases = None, **kwargs: Any
) -> list[CheckMessage]:
    alias = _asked(databases)
    if alias is None:
        return []
    try:
        version = connections[alias].pg_version  # type: ignore[attr-defined]
    except OperationalError:
        return []
    if version >= OLDEST_SERVER * 10_000:
        return []
    return [
        Error(
            f"The server of database {alias!r} is PostgreSQL {version // 10_000}.",
            hint=f"Queues need PostgreSQL {OLDEST_SERVER} or newer.",
            id="django_pgqueue.E003",
        )
    ]


@register(Tags.compatibility)
def check_database_exists(app_configs: Apps = None, **kwargs: Any) -> list[CheckMessage]:
    alias = settings.DATABASE
    if alias is None or alias in connections:
        return []
    return [
        Error(
            f"PGQUEUE['DATABASE'] is {alias!r}, which is not in DATABASES.",
            hint=f"DATABASES has {', '.join(map(repr, connections))}.",
            id="django_pgqueue.E004",
        )
    ]


@register(Tags.database)
def check_made_by_migrations(
    app_configs: Apps = None, databases: Aliases = None, **kwargs: Any
) -> list[CheckMessage]:
    alias = _asked(databases)
    if alias is None:
        return []
    try:
        with connections[alias].cursor() as cursor:
            cursor.execute(
                "SELECT relkind::text FROM pg_class WHERE oid = to_regclass(%s)",
                [Message._meta.db_table],
            )
            row = cursor.fetchone()
    except OperationalError:
        return []
    if row == ("p",) or (row is None and not _without_migrations()):
        return []
    return [
        Error(
            f"The queues' tables in database {alias!r} were not made by their migrations.",
            hint=f"They are partitioned, which only migrations can do: take {APP!r} out of "
            f"MIGRATION_MODULES. Tests that run with --no-migrations call "
            f"django_pgqueue.testing.make_tables().",
            id="django_pgqueue.E005",
        )
    ]


@register(Tags.compatibility)
def check_routers(app_configs: Apps = None, **kwargs: Any) -> list[CheckMessage]:
    alias = settings.DATABASE
    if alias is None or alias not in connections:
        return []
    follows = router.db_for_read(Message) == router.db_for_write(
        Message
    ) == alias and router.allow_migrate_model(alias, Message)
    if follows:
        return []
    return [
        Warning(
            f"PGQUEUE['DATABASE'] is {alias!r}, but the routers do not send the queues' models "
            f"there.",
            hint="Put django_pgqueue.routers.QueueRouter first in DATABASE_ROUTERS; otherwise "
            "migrations, the admin and the ORM look into another database than the operations.",
            id="django_pgqueue.W001",
        )
    ]


def _asked(databases: Aliases) -> str | None:
    """The queues' database, if the checks may ask it and it is one that can be asked."""
    alias = Queue.objects.database()
    if alias in (databases or ()) and connections[alias].vendor == "postgresql":
        return alias
    return None


def _without_migrations() -> bool:
    modules = django_settings.MIGRATION_MODULES
    return APP in modules and modules[APP] is None
