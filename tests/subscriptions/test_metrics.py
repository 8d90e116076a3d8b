"""What the metrics of a subscription count."""

from __future__ import annotations

import json

import pytest
from django.core.management import call_command
from django.db import connection

from django_pgqueue.history import keep
from django_pgqueue.models import Message, Queue, queue

pytestmark = pytest.mark.django_db(transaction=True)


def send(orders, number):
    return orders.send_batch([{"n": n} for n in range(number)])


def all_metrics(name):
    [found] = [each for each in Message.objects.metrics_all() if each.queue_name == name]
    return found


@pytest.fixture(params=["metrics", "metrics_all"])
def measure(request):
    return {"metrics": lambda name: queue(name).metrics(), "metrics_all": all_metrics}[
        request.param
    ]


def test_unread_messages_are_ready(orders, audit, measure):
    send(orders, 5)
    audit.read(qty=2)

    found = measure("audit")
    assert (found.length, found.ready, found.unread, found.in_flight) == (5, 3, 3, 2)
    assert found.visible == 3
    assert found.oldest_age >= found.newest_age >= 0
    assert found.exact
    assert measure("orders").unread == 0


def test_a_round_that_is_under_way_does_not_hide_later_messages(orders, audit, measure):
    send(orders, 2)
    audit.read()
    send(orders, 3)

    assert measure("audit").unread == 4


def test_own_messages_and_unread_ones_add_up(orders, audit, measure):
    send(orders, 4)
    first, second = audit.read(qty=2)
    audit.retry({first.receipt: 60.0})
    audit.archive(second)

    found = measure("audit")
    assert (found.length, found.ready, found.delayed, found.unread) == (3, 2, 1, 2)


def test_unread_messages_of_a_paused_subscription_are_blocked(orders, audit, measure):
    send(orders, 3)
    audit.alter(paused=True)

    assert measure("audit").blocked == {"queue_paused": 3}


def test_a_long_lag_is_an_estimate(orders, audit, measure, settings):
    settings.PGQUEUE = {"EXACT_COUNT_LIMIT": 20}
    send(orders, 400)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT 1")
    audit.read(qty=100)

    found = measure("audit")
    assert {"ready", "unread"} <= set(found.estimated)
    assert not found.exact
    assert found.unread >= 21


def test_a_lost_position_is_told(orders, audit, measure):
    send(orders, 3)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM pgqueue_cursor")

    found = measure("audit")
    assert found.position_lost
    assert not found.exact
    assert "ready" in found.estimated


def test_lost_messages_are_counted(orders, audit, measure):
    send(orders, 3)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_cursor SET lost = 2")

    assert measure("audit").lost == 2


def test_other_queues_take_no_further_statement(orders, django_assert_num_queries):
    orders.metrics()

    with django_assert_num_queries(2):
        orders.metrics()
    with django_assert_num_queries(2):
        Message.objects.metrics_all()


def test_pgqueue_queues_lists_a_subscription(orders, audit, capsys):
    send(orders, 3)
    call_command("pgqueue_queues", "audit", "--json")
    [found] = json.loads(capsys.readouterr().out)
    assert (found["source"], found["ready"], found["unread"]) == ("orders", 3, 3)

    call_command("pgqueue_queues")
    assert "subscription to orders" in capsys.readouterr().out

    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM pgqueue_cursor")
    call_command("pgqueue_queues")
    assert "position lost" in capsys.readouterr().out


def test_history_samples_what_is_unread(orders, audit):
    pk = Queue.objects.get(name="audit").pk
    send(orders, 3)
    keep._sample("default")
    send(orders, 2)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT 1")
    keep._sample("default")

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT depth, sent, oldest > 0 FROM pgqueue_history WHERE queue_id = %s", [pk]
        )
        [row] = cursor.fetchall()
    assert row == (5, 2, True)
