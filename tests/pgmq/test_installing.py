"""The schema is installed by a migration or a command, and goes without a trace."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import psycopg
import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.state import ProjectState

from django_pgqueue import queue
from django_pgqueue.errors import ForeignSchema
from django_pgqueue.models import Message, Queue
from django_pgqueue.operations import InstallPGMQ
from django_pgqueue.pgmq import installing
from tests.conftest import run_sql
from tests.pgmq.conftest import call
from tests.waiting import until

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


def test_an_upgrade_keeps_the_last_internal_functions_and_no_older_ones(manage, monkeypatch):
    text = installing.functions

    def internal() -> set[str]:
        return {name for kind, name in objects() if kind != "schema" and "pgmq._open" in name}

    def release(number: int) -> set[str]:
        monkeypatch.setattr(installing, "functions", lambda *args: f"{text(*args)}\n-- {number}")
        manage("install")
        return internal()

    first, second, third = map(release, range(3))

    assert first < second
    assert third & second == second - first
    assert release(2) == third - second


def test_clients_go_on_while_functions_are_replaced(committed_pgmq, monkeypatch):
    """Each release has other parameters of internal functions, and other types."""
    committed_pgmq("create('orders')")
    text, done, ended = installing.functions, [], Event()

    def work() -> None:
        with psycopg.connect(**connection.get_connection_params(), autocommit=True) as client:
            while not ended.is_set():
                client.execute("SELECT pgmq.send('orders', '1')")
                for msg_id, *_ in client.execute("SELECT * FROM pgmq.read('orders', 30, 5)"):
                    client.execute("SELECT pgmq.archive('orders', %s::bigint)", [msg_id])
                    done.append(msg_id)

    with ThreadPoolExecutor(1) as pool:
        client = pool.submit(work)
        for release in range(8):
            other = f"id integer, of_release_{release} text, name text"
            monkeypatch.setattr(
                installing, "functions",
                lambda *args, o=other: text(*args).replace("id integer, name text", o)
            )  # fmt: skip
            call_command("pgqueue_pgmq", "install", verbosity=0)
            more = len(done) + 5
            until(lambda more=more: client.done() or len(done) > more)
        ended.set()
        client.result()
    assert sorted(done) == list(range(1, len(done) + 1))


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
    assert "DROP SCHEMA pgmq CASCADE" in str(ForeignSchema())


def test_public_functions_run_with_the_callers_rights_and_a_fixed_search_path(manage):
    manage("install")
    assert not run_sql(
        "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'pgmq'::regnamespace "
        "AND (prosecdef OR proname NOT LIKE '\\_%' AND "
        "     coalesce(array_to_string(proconfig, ' '), '') NOT LIKE '%search\\_path=%pg\\_temp%')"
    )


def test_only_public_functions_call_internal_ones(manage):
    """Views, triggers and columns use none, which has the caller's search path."""
    manage("install")
    call("create('orders')")
    call("enable_notify_insert('orders')")
    assert not run_sql(
        "SELECT d.classid::regclass, d.objid FROM pg_depend d JOIN pg_proc p "
        "ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = p.oid "
        "WHERE p.pronamespace = 'pgmq'::regnamespace AND p.proname LIKE '\\_%'"
    )


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
    Queue.objects.finish_drops("default", seconds=1)
    assert [each.name for each in Queue.objects.all()] == ["orders"]
    queue("orders").send(1)
