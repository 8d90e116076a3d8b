"""Migrations: forward, back to zero, and forward again."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection, connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from django_pgqueue.operations import (
    AlterQueue,
    BindTopic,
    CreateQueue,
    DropQueue,
    InstallPGMQ,
    UnbindTopic,
)
from tests.actors import Actor, call, convert_until, execute, manage
from tests.servers import one_server

# All database objects whose names contain the package's.
LEFT_BEHIND = """
    SELECT 'relation', relname::text FROM pg_class WHERE relname ~ 'pgqueue'
    UNION ALL SELECT 'function', proname FROM pg_proc WHERE proname ~ 'pgqueue'
    UNION ALL SELECT 'type', typname FROM pg_type WHERE typname ~ 'pgqueue'
    UNION ALL SELECT 'trigger', tgname FROM pg_trigger WHERE tgname ~ 'pgqueue'
    UNION ALL SELECT 'constraint', conname FROM pg_constraint WHERE conname ~ 'pgqueue'
"""


def test_the_models_and_the_migrations_agree(db):
    call_command("makemigrations", "django_pgqueue", check=True, dry_run=True, verbosity=0)


@pytest.fixture(scope="module")
def embedded() -> dict[str, Any]:
    """Connection parameters of the suite's own server."""
    return connections["default"].get_connection_params()


@pytest.fixture(scope="module")
def postgres_15() -> Iterator[dict[str, Any]]:
    settings = {"fsync": "off", "shared_buffers": "16MB"}
    with one_server(settings, "/usr/lib/postgresql/15/bin") as server:
        yield conninfo_to_dict(server.url())


@pytest.fixture(
    params=["embedded", pytest.param("postgres_15", marks=pytest.mark.pg15)],
)
def empty(request: pytest.FixtureRequest) -> Iterator[Actor]:
    """A process with an empty database."""
    parameters = request.getfixturevalue(request.param)
    server = {
        key: parameters[key] for key in ("host", "port", "user", "password") if key in parameters
    }
    name = "pgqueue_migrated"
    with psycopg.connect(**server, dbname="postgres", autocommit=True) as admin:
        drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        admin.execute(drop)
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        database = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": name,
            "HOST": server["host"],
            "PORT": server.get("port", ""),
            "USER": server.get("user", ""),
            "PASSWORD": server.get("password", ""),
        }
        with Actor({"default": database}) as actor:
            yield actor
        admin.execute(drop)


def everything(actor: Actor) -> list[tuple[Any, ...]]:
    """The objects created by the migrations, by name."""
    return sorted(
        row for row in actor.do(execute, LEFT_BEHIND) if not row[1].startswith("pg_toast")
    )


def use(actor: Actor) -> None:
    """Create queues of every kind, with messages in every state."""
    for name, options in {
        "plain": {},
        "fast": {"unlogged": True},
        "daily": {"partition_interval": dt.timedelta(days=1)},
        "fast-daily": {"partition_interval": dt.timedelta(hours=1), "unlogged": True},
        "with-dead-letters": {"dead_letter_queue": "plain", "max_deliveries": 1},
    }.items():
        actor.do(call, "create_queue", name, **options)
        sent = actor.do(call, "send_batch", name, [{"n": n} for n in range(5)])
        actor.do(call, "send", name, "later", delay=60)
        [message] = actor.do(call, "read", name)
        actor.do(call, "read", name)
        assert actor.do(call, "archive", name, message) == [sent[0]]
    actor.do(call, "drop_queue", "daily")
    actor.do(call, "create_queue", "daily", partition_interval=60)


@pytest.mark.parametrize("used", [False, True], ids=["empty", "used"])
def test_migrating_back_leaves_nothing_and_forward_again_works(empty, used):
    empty.do(manage, "migrate", "django_pgqueue")
    fresh = everything(empty)
    assert ("relation", "pgqueue_message") in fresh
    if used:
        use(empty)

    empty.do(manage, "migrate", "django_pgqueue", "zero")

    assert empty.do(execute, LEFT_BEHIND) == []
    empty.rest()
    empty.do(manage, "migrate", "django_pgqueue")
    assert everything(empty) == fresh
    use(empty)
    assert empty.do(call, "metrics", "plain").length == 5
    for name in ("with-dead-letters", "plain", "fast", "daily", "fast-daily"):
        assert empty.do(call, "drop_queue", name) is True
    assert everything(empty) == fresh


def test_migrating_back_amid_conversions_leaves_nothing(empty):
    empty.do(manage, "migrate", "django_pgqueue")
    use(empty)
    empty.do(convert_until, "bounds.validate_bound", "with-dead-letters", dt.timedelta(days=1))
    empty.do(convert_until, "switch_tables", "fast", dt.timedelta(days=1))
    begun = {re.sub("_q[0-9]+", "", name) for _, name in everything(empty)}
    assert "pgqueue_bound" in begun

    empty.do(manage, "migrate", "django_pgqueue", "zero")

    assert empty.do(execute, LEFT_BEHIND) == []


def test_a_migration_can_be_undone_step_by_step(empty):
    empty.do(manage, "migrate", "django_pgqueue")
    use(empty)
    names = [
        name
        for (name,) in empty.do(
            execute, "SELECT name FROM django_migrations WHERE app = 'django_pgqueue' ORDER BY id"
        )
    ]

    for name in reversed(["zero", *names[:-1]]):
        empty.do(manage, "migrate", "django_pgqueue", name)

    assert empty.do(execute, LEFT_BEHIND) == []


def run_operations(migration: str, operations: list[Operation]) -> None:
    """Run operations forwards, and then backwards, as a migration that depends on this one."""
    state = MigrationLoader(connection).project_state(("django_pgqueue", migration))
    app = "billing"
    for operation in operations:
        with connection.schema_editor() as editor:
            operation.database_forwards(app, editor, state, state)
    for operation in reversed(operations):
        with connection.schema_editor() as editor:
            operation.database_backwards(app, editor, state, state)


QUEUE_OPERATIONS = [
    CreateQueue("orders", partition_interval=3600),
    AlterQueue("orders", rate="5/s", before={"rate": None}),
    CreateQueue("fast", dead_letter_queue="orders", unlogged=True),
    DropQueue("fast"),
    DropQueue("orders"),
]
TOPIC_OPERATIONS = [
    CreateQueue("orders"),
    BindTopic("order.#", "orders"),
    UnbindTopic("order.#", "orders"),
    BindTopic("order.#", "orders"),
    DropQueue("orders"),
]


@pytest.mark.parametrize(
    ("migration", "operations"),
    [
        ("0001_initial", QUEUE_OPERATIONS),
        ("0002_topics_processes_maintenance", TOPIC_OPERATIONS),
        ("0006_subscriptions", [InstallPGMQ()]),
    ],
    ids=["queues", "topics", "pgmq"],
)
def test_operations_need_no_later_migration_than_their_tables(empty, migration, operations):
    empty.do(manage, "migrate", "django_pgqueue", migration)
    before = everything(empty)

    empty.do(run_operations, migration, operations)

    assert empty.do(execute, "SELECT name FROM pgqueue_queue") == []
    assert everything(empty) == before


def test_a_queue_is_dropped_with_rows_of_tables_that_its_migration_does_not_know(empty):
    empty.do(manage, "migrate", "django_pgqueue")
    empty.do(call, "create_queue", "orders")
    bind = "INSERT INTO pgqueue_binding (queue_id, pattern) SELECT id, 'a.#' FROM pgqueue_queue"
    empty.do(execute, bind)

    empty.do(run_operations, "0001_initial", [DropQueue("orders"), CreateQueue("new")])

    assert empty.do(execute, "SELECT pattern FROM pgqueue_binding") == []
    assert ("orders",) in empty.do(execute, "SELECT dropped FROM pgqueue_purge_mark")


def test_roles_keep_to_their_work_when_a_migration_makes_new_tables(empty):
    empty.do(manage, "migrate", "django_pgqueue", "0003")
    kinds = ("sender", "consumer", "operator", "analyst")
    rights = (
        "SELECT kind || ' ' || relname || ' ' || privilege_type FROM pg_class, "
        "aclexplode(relacl) a JOIN pg_roles r ON r.oid = a.grantee, "
        "LATERAL replace(rolname, 'pgqueue_migrated_', '') AS k (kind) "
        "WHERE rolname LIKE 'pgqueue\\_migrated\\_%' AND relname ~ 'attempt|schedule|bulk_action' ORDER BY 1"
    )
    for kind in kinds:
        role = f"pgqueue_migrated_{kind}"
        empty.do(execute, f"CREATE ROLE {role}")
        empty.do(manage, "pgqueue_grants", "--role", role, "--for", kind, "--apply")
    try:
        empty.do(manage, "migrate", "django_pgqueue")

        extended = empty.do(execute, rights)
        for kind in kinds:
            role = f"pgqueue_migrated_{kind}"
            empty.do(manage, "pgqueue_grants", "--role", role, "--for", kind, "--apply")
        assert extended == empty.do(execute, rights)
        assert ("consumer pgqueue_attempt INSERT",) in extended
        assert ("operator pgqueue_schedule DELETE",) in extended
        assert not [each for (each,) in extended if each.startswith("sender")]
    finally:
        for kind in kinds:
            role = f"pgqueue_migrated_{kind}"
            empty.do(execute, f"DROP OWNED BY {role}")
            empty.do(execute, f"DROP ROLE {role}")


def test_the_sql_of_the_migrations_can_be_shown(empty):
    shown = empty.do(manage, "sqlmigrate", "django_pgqueue", "0001")

    assert "CREATE TABLE pgqueue_message" in shown
    assert "CREATE FUNCTION public.pgqueue_message_inserted()" in shown
