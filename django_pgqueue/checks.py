"""System checks: find mistakes in the configuration before they cause failures.

Checks that query the database run with ``manage.py check --database default`` and ``migrate``. They
pass if the database cannot be reached: its outage is not a mistake in the configuration.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

import psycopg
from django.conf import settings as django_settings
from django.core import mail
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseProblem
from django.db import OperationalError, connections, router, transaction
from django.db.migrations.loader import MigrationLoader
from django.utils.module_loading import import_string

from django_pgqueue import conf, schedules
from django_pgqueue.conf import settings
from django_pgqueue.ddl import inspection
from django_pgqueue.engine.settings import DEFAULTS
from django_pgqueue.errors import PgQueueError
from django_pgqueue.handlers import DEFAULT_RETRY, Handler, autodiscover, handlers
from django_pgqueue.handlers.unimported import unimported
from django_pgqueue.models import Message, Queue
from django_pgqueue.operations import CreateQueue, operations_in
from django_pgqueue.retries import is_unlimited
from django_pgqueue.worker.connections import small_pools
from django_pgqueue.worker.listener import can_listen

OLDEST_SERVER = 15
APP = Queue._meta.app_label
EMBEDDED = "django_pgqueue.embedded"

Messages = Iterator[CheckMessage]
Check = Callable[..., list[CheckMessage]]


def of_code(check: Callable[[], Messages]) -> Check:
    """Register a check of code and settings. It is skipped if PGQUEUE["DATABASE"] is invalid."""

    @register(Tags.compatibility)
    def run(**kwargs: Any) -> list[CheckMessage]:
        return [] if conf.problem("DATABASE") else list(check())

    return run


def of_database(check: Callable[[str], Messages]) -> Check:
    """Register a check of the queues' database. ``check`` takes the database alias."""

    @register(Tags.database)
    def run(*, databases: Any = None, **kwargs: Any) -> list[CheckMessage]:
        if conf.problem("DATABASE"):
            return []
        alias = Queue.objects.database()
        if alias not in (databases or ()) or connections[alias].vendor != "postgresql":
            return []
        try:
            return list(check(alias))
        except OperationalError:
            return []

    return run


def of_consumers(check: Callable[[str, dict[str, Queue], list[Handler]], Messages]) -> Check:
    """Register a check of each database that has consumers.

    ``check`` takes the alias, the database's queues by name in lower case, and its handlers.
    Handlers whose queue an unapplied migration will make are left out.
    """

    @register(Tags.database)
    def run(*, databases: Any = None, **kwargs: Any) -> list[CheckMessage]:
        if conf.problem("DATABASE") or check_handlers():
            return []
        messages: list[CheckMessage] = []
        for alias in databases or ():
            consumed = [h for h in handlers() if Queue.objects.database(h.using) == alias]
            if not consumed or connections[alias].vendor != "postgresql":
                continue
            try:
                # A savepoint, so that a query that fails does not break a test's transaction.
                with transaction.atomic(using=alias):
                    queues = {queue.name.lower(): queue for queue in Queue.objects.using(alias)}
                    if any(handler.queue.lower() not in queues for handler in consumed):
                        awaited = _planned(alias) - queues.keys()
                        consumed = [h for h in consumed if h.queue.lower() not in awaited]
            except DatabaseProblem:
                # The database is down or not migrated. Other commands report that.
                continue
            messages += check(alias, queues, consumed)
        return messages

    return run


@register(Tags.compatibility)
def check_keys(**kwargs: Any) -> list[CheckMessage]:
    return [
        Error(
            f"PGQUEUE has no setting {key!r}.",
            hint=f"Did you mean {close[0]!r}?"
            if close
            else f"Its settings: {', '.join(DEFAULTS)}.",
            id="django_pgqueue.E001",
        )
        for key in (() if conf.problem() else getattr(django_settings, "PGQUEUE", {}))
        if key not in DEFAULTS
        for close in [get_close_matches(str(key).upper(), DEFAULTS, n=1)]
    ]


@register(Tags.compatibility)
def check_values(**kwargs: Any) -> list[CheckMessage]:
    wrong = [conf.problem()] if conf.problem() else [conf.problem(name) for name in DEFAULTS]
    return [
        Error(
            f"{text}.",
            hint=f"{conf.__file__} lists every key with its default and its meaning.",
            id="django_pgqueue.E006",
        )
        for text in wrong
        if text
    ]


@of_code
def check_queues_for() -> Messages:
    path = None if conf.problem("QUEUES_FOR") else settings.QUEUES_FOR
    try:
        if path is None or callable(import_string(path)):
            return
        wrong = "it is not a function"
    except ImportError as error:
        wrong = str(error)
    yield Error(
        f"PGQUEUE['QUEUES_FOR'] is {path!r}, which cannot be called: {wrong}.",
        hint="Set it to the dotted name of a function, such as 'shop.access.queues_for'.",
        id="django_pgqueue.E006",
    )


@of_code
def check_vendor() -> Messages:
    alias = Queue.objects.database()
    if alias in connections and connections[alias].vendor != "postgresql":
        yield Error(
            f"The queues' database {alias!r} is {connections[alias].display_name}, not PostgreSQL.",
            hint=f"Set DATABASES[{alias!r}]['ENGINE'] to "
            f"'django.db.backends.postgresql', with NAME, USER and HOST of your server. To keep "
            f"only the queues in PostgreSQL, give their database an alias of its own, name it in "
            f"PGQUEUE['DATABASE'], and add django_pgqueue.routers.QueueRouter to "
            f"DATABASE_ROUTERS.",
            id="django_pgqueue.E002",
        )


@of_database
def check_server_version(alias: str) -> Messages:
    version = connections[alias].pg_version  # type: ignore[attr-defined]
    if version < OLDEST_SERVER * 10_000:
        yield Error(
            f"The server of database {alias!r} is PostgreSQL {version // 10_000}.",
            hint=f"Queues need PostgreSQL {OLDEST_SERVER} or newer.",
            id="django_pgqueue.E003",
        )


@of_code
def check_database_exists() -> Messages:
    alias = settings.DATABASE
    if alias is not None and alias not in connections:
        yield Error(
            f"PGQUEUE['DATABASE'] is {alias!r}, which is not in DATABASES.",
            hint=f"Set it to one of the aliases in DATABASES: {', '.join(map(repr, connections))}.",
            id="django_pgqueue.E004",
        )


@of_database
def check_made_by_migrations(alias: str) -> Messages:
    kind = inspection.kind_of_table(connections[alias])
    switched_off = django_settings.MIGRATION_MODULES.get(APP, "") is None
    if kind != "p" and (kind is not None or switched_off):
        yield Error(
            f"The queues' tables in database {alias!r} were not made by the migrations.",
            hint=f"Only the migrations make partitioned tables, which queues need: remove {APP!r} "
            f"from MIGRATION_MODULES. In tests that run with --no-migrations, call "
            f"django_pgqueue.testing.make_tables().",
            id="django_pgqueue.E005",
        )


@of_database
def check_objects(alias: str) -> Messages:
    for each in inspection.damage(connections[alias]):
        yield Error(
            f"In database {alias!r}, {each}.",
            hint=each.remedy,
            id=f"django_pgqueue.{'E010' if each.kind == 'table' else 'E009'}",
        )


@of_consumers
def check_listening(alias: str, queues: dict[str, Queue], consumed: list[Handler]) -> Messages:
    with suppress(psycopg.Error):
        if not can_listen(alias):
            yield Warning(
                f"Database {alias!r} is behind a pooler in transaction mode, which does not pass "
                f"on notifications: consumers find messages by polling, up to a second later.",
                hint="Run runconsumer with settings that connect to the server directly, or "
                "through a pooler in session mode. If polling is fast enough, start it with "
                "--no-listen, and add this check's id to SILENCED_SYSTEM_CHECKS.",
                id="django_pgqueue.W004",
            )


@of_code
def check_pools() -> Messages:
    if check_handlers():
        return
    found = [(Queue.objects.database(each.using), each, each.workers) for each in handlers()]
    for alias, size, count, needed in small_pools(each for each in found if each[0] in connections):
        yield Warning(
            f"The pool of database {alias!r} has {size} connections, but a consumer process that "
            f"runs all handlers has {count} workers.",
            hint=f"Set DATABASES[{alias!r}]['OPTIONS']['pool']['max_size'] to {needed} or "
            f"more: a worker that gets no connection releases its message. If no process runs "
            f"all queues, silence this check.",
            id="django_pgqueue.W005",
        )


@register(Tags.compatibility)
def check_embedded(**kwargs: Any) -> list[CheckMessage]:
    messages: list[CheckMessage] = []
    for alias, known in connections.settings.items():
        if known["ENGINE"] != EMBEDDED:
            continue
        try:
            connections[alias].server()  # type: ignore[attr-defined]
        except ImproperlyConfigured as error:
            text = f"The server of database {alias!r} cannot start: {error}"
            messages.append(Error(text, id="django_pgqueue.E012"))
        # Test runners switch DEBUG off, and collect mails.
        if not django_settings.DEBUG and not hasattr(mail, "outbox"):
            messages.append(
                Warning(
                    f"Database {alias!r} is embedded, and DEBUG is off: the server has no "
                    f"password, no backup, and ends with the last process that uses it.",
                    hint=f"Set DATABASES[{alias!r}]['ENGINE'] to 'django.db.backends.postgresql', "
                    f"with NAME, USER and HOST of your server. {EMBEDDED} is for development and "
                    f"tests.",
                    id="django_pgqueue.W006",
                )
            )
    return messages


@of_code
def check_routers() -> Messages:
    alias = settings.DATABASE
    if alias is None or alias not in connections:
        return
    follows = router.db_for_read(Message) == router.db_for_write(
        Message
    ) == alias and router.allow_migrate_model(alias, Message)
    if not follows:
        yield Warning(
            f"PGQUEUE['DATABASE'] is {alias!r}, but the routers choose another database for the "
            f"queues' models.",
            hint="Put django_pgqueue.routers.QueueRouter first in DATABASE_ROUTERS. Otherwise "
            "queue() uses one database, and migrations, the admin and the ORM use another.",
            id="django_pgqueue.W001",
        )


@register(Tags.compatibility)
def check_handlers(**kwargs: Any) -> list[CheckMessage]:
    try:
        autodiscover()
    except (PgQueueError, TypeError) as error:
        return [
            Error(
                f"A consumer is invalid: {error}",
                hint=f"{_place(error)}manage.py runconsumer stops with the same error.",
                id="django_pgqueue.E007",
            )
        ]
    if conf.problem("DATABASE"):
        return []
    messages: list[CheckMessage] = []
    known: dict[tuple[str, str], Handler] = {}
    for handler in handlers():
        alias = Queue.objects.database(handler.using)
        other = known.setdefault((handler.queue.lower(), alias), handler)
        if other is not handler:
            messages.append(
                Error(
                    f"Queue {handler.queue!r} in database {alias!r} is consumed by {other.label} "
                    f"and by {handler.label}.",
                    hint="Each message would go to only one of them. Give each its own queue. To "
                    "send a message to both, bind both queues to a topic.",
                    id="django_pgqueue.E008",
                )
            )
    return messages


@of_code
def check_imported() -> Messages:
    if check_handlers():
        return
    for each in unimported():
        functions = ", ".join(each.functions)
        if each.app is None:
            yield Warning(
                f"{each.path} has handlers ({functions}), but its app {each.path.parent.name!r} is "
                f"not installed, so no consumer runs them.",
                hint="Add it to INSTALLED_APPS. If only other settings have it there, silence this "
                "check.",
                id="django_pgqueue.W007",
            )
            continue
        package, _, name = each.module.rpartition(".")
        yield Warning(
            f"{each.path} has handlers ({functions}), but is never imported, so no consumer runs "
            f"them.",
            hint=f"Import it in the consumers.py of the app: from {package} import {name}. Or put "
            f"its handlers there.",
            id="django_pgqueue.W007",
        )


@register(Tags.compatibility)
def check_schedules(**kwargs: Any) -> list[CheckMessage]:
    return [
        Error(
            f"The schedule {each.name} has no queue.",
            hint=f"Add @consumer or @task to {each.path}.",
            id="django_pgqueue.E011",
        )
        for each in (() if check_handlers() else schedules.declared())
        if not each.has_queue
    ]


@of_consumers
def check_queues_exist(alias: str, queues: dict[str, Queue], consumed: list[Handler]) -> Messages:
    for handler in consumed:
        name = handler.queue
        if name.lower() in queues:
            continue
        hint = (
            f"Create it in a migration with CreateQueue({name!r}), or now with "
            f"manage.py pgqueue_create {name}."
        )
        if handler.queue_made_by is not None:
            hint = f"Run {handler.queue_made_by}, which makes it."
        elif close := get_close_matches(name.lower(), queues, n=1):
            hint = f"Did you mean {queues[close[0]].name!r}?"
        yield Warning(
            f"There is no queue {name!r} in database {alias!r} for {handler.label}.",
            hint=hint,
            id="django_pgqueue.W002",
        )


@of_consumers
def check_deliveries(alias: str, queues: dict[str, Queue], consumed: list[Handler]) -> Messages:
    for handler in consumed:
        queue = queues.get(handler.queue.lower())
        deliveries = handler.max_deliveries or (queue and queue.max_deliveries)
        attempts = getattr(handler.retry, "max_attempts", None)
        if deliveries is None:
            continue
        if is_unlimited(handler.retry):
            asked = "tries a message without a limit"
            hint = (
                f"Set max_attempts of its {type(handler.retry).__name__} below {deliveries}: "
                f"deliveries that end in a crash count too. The default strategy has "
                f"max_attempts={DEFAULT_RETRY.max_attempts}, jitter={DEFAULT_RETRY.jitter}."
            )
        elif attempts is not None and deliveries < attempts:
            asked = f"asks for {attempts} attempts"
            hint = (
                f"Set max_deliveries above {attempts}: deliveries that end in a crash count "
                f"too. Or lower max_attempts of the handler's retry."
            )
        else:
            continue
        yield Warning(
            f"{handler.label} {asked}, but a message of queue {handler.queue!r} is "
            f"delivered {deliveries} times at most.",
            hint=hint,
            id="django_pgqueue.W003",
        )


def _planned(alias: str) -> set[str]:
    """Return the names of the queues that unapplied migrations will make."""
    loader = MigrationLoader(connections[alias])
    return {
        operation.name.lower()
        for key, operation in operations_in(loader.graph)
        if key not in loader.applied_migrations and isinstance(operation, CreateQueue)
    }


def _place(error: BaseException) -> str:
    """Name the file and line of the project's code that raised an error, or nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    own = __file__.rpartition("checks.py")[0]
    theirs = [
        frame
        for frame in frames
        if not frame.filename.startswith((own, "<")) and "site-packages" not in frame.filename
    ]
    return f"See {theirs[-1].filename}, line {theirs[-1].lineno}. " if theirs else ""
