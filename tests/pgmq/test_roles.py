"""Roles may do through PGMQ's functions what pgqueue_grants lets them do, and no more."""

from __future__ import annotations

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
    "send_batch('orders', ARRAY['1']::jsonb[])",
    "send('orders', '1', '{\"x-pgmq-group\": \"7\"}'::jsonb)",
    "send_topic('a', '1')",
)
CONSUME = (
    "read('orders', 30, 1)",
    "read('orders', 0, 20)",
    "read_grouped('orders', 30, 5)",
    "pop('orders')",
    "archive('orders', 3)",
    "delete('orders', 4)",
    "set_vt('orders', 5, 0)",
    "purge_queue('orders')",
)
LOOK = ("list_queues()", "metrics('orders')", "metrics_all()", "q_orders", "a_orders", "meta")
MANAGE = ("create('other')", "drop_queue('orders')", "enable_notify_insert('orders')")


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
        ("sender", SEND, (*CONSUME, "q_orders", *MANAGE)),
        ("consumer", (*SEND, *CONSUME, *LOOK), (*MANAGE, "bind_topic('b', 'orders')")),
        ("operator", (*SEND, *CONSUME, *LOOK, "bind_topic('b', 'orders')"), MANAGE),
        ("analyst", LOOK, (*SEND, *CONSUME, *MANAGE)),
    ],
)
def test_a_role_may_do_what_it_may_in_django(role, committed_pgmq, kind, allowed, denied):  # noqa: F811
    committed_pgmq("create('orders')")
    committed_pgmq("bind_topic('a', 'orders')")
    committed_pgmq("send_batch('orders', array_fill('1'::jsonb, ARRAY[40]))")
    call_command("pgqueue_grants", "--role", role, "--for", kind, "--apply", verbosity=0)
    may(role, *allowed)
    may_not(role, *denied)


def test_a_role_of_one_queue_cannot_use_another(role, committed_pgmq):  # noqa: F811
    committed_pgmq("create('orders')")
    committed_pgmq("create('mails')")
    arguments = ("--role", role, "--for", "consumer", "--queue", "orders", "--apply")
    call_command("pgqueue_grants", *arguments, verbosity=0)
    may(role, "send('orders', '1')", "read('orders', 30, 1)", "archive('orders', 1)")
    may_not(role, "send('mails', '1')", "q_mails")


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
