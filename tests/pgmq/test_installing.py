"""The schema is installed by a migration or a command, and goes without a trace."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.state import ProjectState

from django_pgqueue import queue
from django_pgqueue.errors import ForeignSchema
from django_pgqueue.models import Message, Queue
from django_pgqueue.operations import InstallPGMQ
from tests.conftest import run_sql
from tests.pgmq.conftest import call

OBJECTS = """
    SELECT 'class', oid::regclass::text FROM pg_class UNION ALL
    SELECT 'function', oid::regprocedure::text FROM pg_proc UNION ALL
    SELECT 'trigger', tgname || tgrelid::regclass FROM pg_trigger UNION ALL
    SELECT 'type', oid::regtype::text FROM pg_type UNION ALL
    SELECT 'schema', nspname FROM pg_namespace
"""


def objects() -> set[tuple[str, str]]:
    return {(kind, name) for kind, name in run_sql(OBJECTS) if "pg_toast" not in name}


@pytest.fixture
def manage(db):
    return lambda action: call_command("pgqueue_pgmq", action, verbosity=0)


def test_the_schema_goes_without_a_trace(orders, manage):
    before = objects()
    manage("install")
    call("enable_notify_insert('orders')")
    call("bind_topic('a', 'orders')")
    call("send('orders', '1')")
    assert objects() > before

    manage("remove")

    assert objects() == before
    assert len(orders.read()) == 1
    manage("remove")  # nothing to do


def test_removing_finishes_drops(manage):
    manage("install")
    call("create('orders')")
    call("drop_queue('orders')")
    manage("remove")
    assert not Queue.objects.exists()


def test_a_foreign_schema_is_left_alone(manage):
    run_sql("CREATE SCHEMA pgmq; CREATE TABLE pgmq.meta ()")
    for action in ("install", "remove"):
        with pytest.raises(CommandError, match="did not make"):
            manage(action)
    assert run_sql("SELECT relname FROM pg_class WHERE relnamespace = 'pgmq'::regnamespace") == [
        ("meta",)
    ]


def test_installing_again_replaces_functions_and_keeps_what_clients_made(manage):
    manage("install")
    call("create('orders')")
    call("bind_topic('a', 'orders')")
    call("send('orders', '1')")
    oid = run_sql("SELECT 'pgmq.pop'::regproc::oid")
    run_sql("CREATE FUNCTION pgmq.of_an_earlier_release() RETURNS void LANGUAGE sql AS ''")
    run_sql(
        "CREATE OR REPLACE FUNCTION pgmq.create_fifo_indexes_all() RETURNS void LANGUAGE plpgsql "
        "AS $$ BEGIN RAISE EXCEPTION 'old'; END $$"
    )

    manage("install")

    assert run_sql("SELECT 'pgmq.pop'::regproc::oid") == oid
    assert run_sql("SELECT to_regproc('pgmq.of_an_earlier_release')") == [(None,)]
    call("create_fifo_indexes_all()")
    assert call("read('orders', 30, 1)")[0][0] == 1
    assert call("send_topic('a', '1')") == [(1,)]


def test_a_migration_installs_the_schema_and_removes_it(db):
    state = ProjectState.from_apps(apps)
    operation = InstallPGMQ()
    assert operation.deconstruct() == ("InstallPGMQ", (), {})
    with connection.schema_editor(atomic=False) as editor:
        operation.database_forwards("shop", editor, state, state)
        assert call("list_queues()") == []
        operation.database_backwards("shop", editor, state, state)
    assert run_sql("SELECT to_regnamespace('pgmq')") == [(None,)]


def test_the_error_says_what_to_do():
    assert "DROP EXTENSION pgmq" in str(ForeignSchema())


def test_functions_do_not_follow_the_callers_search_path(orders, manage):
    manage("install")
    call("create('orders')")
    run_sql(
        "CREATE SCHEMA evil; CREATE TABLE evil.pgqueue_queue (LIKE pgqueue_queue); "
        "CREATE TEMPORARY TABLE pgqueue_queue (LIKE public.pgqueue_queue); SET search_path = evil"
    )
    assert len(call("send('orders', '1')")) == 1
    assert len(run_sql("SELECT * FROM pgmq.q_orders")) == 1
    assert len(call("read('orders', 30, 1)")) == 1
    assert len(call("pop('orders')")) == 0
    run_sql("SET search_path = public; DROP TABLE pg_temp.pgqueue_queue")


def test_a_name_is_free_once_a_client_dropped_its_queue(manage):
    manage("install")
    call("create('orders')")
    Message.objects.bind("a", "orders")
    call("drop_queue('orders')")
    Message.objects.create_queue("orders")
    Queue.objects.finish_drops("default")
    assert [each.name for each in Queue.objects.all()] == ["orders"]
    queue("orders").send(1)
