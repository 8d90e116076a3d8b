"""Roles may do through PGMQ's functions what pgqueue_grants lets them do, and no more."""

from __future__ import annotations

import pytest
from django.core.management import call_command

from django_pgqueue import queue
from django_pgqueue.models import Message
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


def test_a_role_without_rights_on_the_schema_sends_to_a_queue_that_notifies(role, committed_pgmq):  # noqa: F811
    Message.objects.create_queue("orders")
    call_command("pgqueue_grants", "--role", role, "--for", "sender", "--apply", verbosity=0)
    committed_pgmq("enable_notify_insert('orders')")
    run_sql(f"REVOKE USAGE ON SCHEMA pgmq FROM {role}")
    with acting(role):
        queue("orders").send(1)
