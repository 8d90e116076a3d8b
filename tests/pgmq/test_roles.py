"""Roles may do through PGMQ's functions what pgqueue_grants lets them do, and no more."""

from __future__ import annotations

import re

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection

from django_pgqueue import queue
from django_pgqueue.models import Message, Queue
from tests.conftest import run_sql
from tests.management.roles import acting, refused, role  # noqa: F401
from tests.pgmq.conftest import call

SEND = (
    "send('orders', '1')",
    "send('orders', '1', 60)",
    "send('orders', '1', '60')",
    "send('orders', '1', '{\"x-pgmq-group\": \"7\"}'::jsonb)",
    "send_batch('orders', ARRAY['1']::jsonb[])",
    "send_topic('a', '1')",
    "send_batch_topic('a', ARRAY['1']::jsonb[])",
)
CONSUME = (
    "read('orders', 30, 1)",
    "read('orders', 0, 20)",
    "read('orders', 30, 1, '2')",
    "read_with_poll('orders', 30, 1)",
    *(
        f"{name}{poll}('orders', 0, 5)"
        for name in ("read_grouped", "read_grouped_rr", "read_grouped_head")
        for poll in ("", "_with_poll")
    ),
    "pop('orders')",
    "archive('orders', 3)",
    "archive('orders', ARRAY[13])",
    "delete('orders', 4)",
    "delete('orders', ARRAY[14])",
    "set_vt('orders', 5, 0)",
    "purge_queue('orders')",
)
LOOK = ("metrics('orders')", "metrics_all()", "q_orders", "a_orders")
BIND = ("bind_topic('b', 'orders')", "unbind_topic('b', 'orders')")
MANAGE = (
    "create('other')",
    "create_unlogged('other')",
    "create_non_partitioned('other')",
    "create_partitioned('other')",
    "drop_queue('orders')",
    "drop_queue('orders', false)",
    "enable_notify_insert('orders')",
    "disable_notify_insert('orders')",
    "update_notify_insert('orders', 5)",
)
# Show the names of queues and bindings, or nothing at all.
ANYONE = (
    "list_queues()",
    "meta",
    "list_topic_bindings()",
    "list_notify_insert_throttles()",
    "notify_insert_throttle",
    "test_routing('a')",
    "create_fifo_index('orders')",
    "create_fifo_indexes_all()",
    "detach_archive('orders')",
    "validate_queue_name('a')",
    "validate_routing_key('a')",
    "validate_topic_pattern('a')",
    "format_table_name('orders', 'q')",
    "topic_regex('a.*')",
)
# By their own SQL, without the functions. Operators may write the bindings.
INSIDE = (
    "UPDATE pgmq.topic_bindings SET queue_name = 'mails' RETURNING 1",
    "INSERT INTO pgmq.own_queue VALUES (0, now(), 5)",
    "UPDATE pgmq.own_queue SET dropped = true",
    "CREATE FUNCTION pgmq.pop(name name) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "DROP FUNCTION pgmq.pop(text, integer)",
)


def may(name: str, *texts: str) -> None:
    with acting(name):
        for text in texts:
            call(text)


def may_not(name: str, *texts: str) -> None:
    with acting(name):
        for text in texts:
            assert refused(lambda text=text: call(text)), text


@pytest.mark.parametrize(
    ("kind", "allowed", "denied"),
    [
        ("sender", SEND, (*CONSUME, *LOOK, *BIND, *MANAGE)),
        ("consumer", (*SEND, *CONSUME, *LOOK), (*BIND, *MANAGE)),
        ("operator", (*SEND, *CONSUME, *LOOK, *BIND), MANAGE),
        ("analyst", LOOK, (*SEND, *CONSUME, *BIND, *MANAGE)),
        ("spark", (*SEND, *CONSUME, *LOOK), (*BIND, *MANAGE)),
    ],
)
def test_a_role_may_do_what_it_may_in_django(role, committed_pgmq, kind, allowed, denied):  # noqa: F811
    committed_pgmq("create('orders')")
    committed_pgmq("enable_notify_insert('orders')")
    committed_pgmq("bind_topic('a', 'orders')")
    committed_pgmq("send_batch('orders', array_fill('1'::jsonb, ARRAY[40]))")
    call_command("pgqueue_grants", "--role", role, "--for", kind, "--apply", verbosity=0)
    may_not(role, *denied)
    may(role, *allowed, *ANYONE)
    with acting(role):
        for text in INSIDE[kind == "operator" :]:
            assert refused(lambda text=text: run_sql(text)), text


def test_every_function_is_in_these_lists(pgmq):
    # The one is an error for everybody; the views q_orders and a_orders call the others.
    untried = ("convert_archive_partitioned", "live_messages", "archived_messages")
    texts = (*SEND, *CONSUME, *LOOK, *BIND, *MANAGE, *ANYONE, *untried)
    functions = run_sql(
        "SELECT DISTINCT proname FROM pg_proc WHERE pronamespace = 'pgmq'::regnamespace "
        "AND proname !~ '^_' AND prorettype <> 'trigger'::regtype"
    )
    assert {name for (name,) in functions} <= {re.match(r"\w+", text)[0] for text in texts}


def test_a_role_of_one_queue_cannot_use_another(role, committed_pgmq):  # noqa: F811
    committed_pgmq("create('orders')")
    committed_pgmq("create('mails')")
    committed_pgmq("send_batch('mails', array_fill('1'::jsonb, ARRAY[40]))")
    arguments = ("--role", role, "--for", "consumer", "--queue", "orders", "--apply")
    call_command("pgqueue_grants", *arguments, verbosity=0)
    may(role, "send('orders', '1')", "read('orders', 30, 1)", "archive('orders', 1)")
    elsewhere = [text.replace("orders", "mails") for text in (*SEND[:5], *CONSUME, *LOOK)]
    may_not(role, *elsewhere)
    assert committed_pgmq("metrics('mails')")[0][1] == 40


@pytest.mark.parametrize("granted_first", [True, False])
def test_a_sender_shares_the_throttle_of_notifications(role, committed_pgmq, granted_first):  # noqa: F811
    Message.objects.create_queue("orders")
    steps = [
        lambda: call_command("pgqueue_grants", "--role", role, "--for", "sender", "--apply"),
        lambda: committed_pgmq("enable_notify_insert('orders')"),
    ]
    for step in steps if granted_first else reversed(steps):
        step()
    # A sender of Django's needs no right on the schema.
    run_sql(f"REVOKE USAGE ON SCHEMA pgmq FROM {role}")
    with acting(role):
        queue("orders").send(1)
    [(_, _, notified)] = committed_pgmq("list_notify_insert_throttles()")
    assert notified.year > 1970


def test_a_sender_without_a_right_on_the_throttle_sends_and_notifies(role, committed_pgmq):  # noqa: F811
    committed_pgmq("create('orders')")
    call_command("pgqueue_grants", "--role", role, "--for", "sender", "--apply", verbosity=0)
    committed_pgmq("enable_notify_insert('orders', 100000)")
    committed_pgmq("send('orders', '1')")
    pk = Queue.objects.get().pk
    run_sql(f"REVOKE ALL ON SEQUENCE pgmq.pgqueue_wake_q{pk} FROM {role}")
    with connection.cursor() as cursor:
        cursor.execute('LISTEN "pgmq.q_orders.INSERT"')
        with psycopg.connect(**connection.get_connection_params(), autocommit=True) as sender:
            sender.execute(f"SET ROLE {role}")
            sender.execute("SELECT pgmq.send('orders', '1')")
        assert [each.channel for each in connection.connection.notifies(timeout=5, stop_after=1)]
