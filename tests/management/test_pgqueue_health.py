"""The command ``pgqueue_health``: does every queue with work have a consumer?"""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import call_command

from django_pgqueue.models import Message, Process, Queue
from tests.conftest import run_sql


def health(*arguments: str) -> tuple[int, str]:
    out = StringIO()
    try:
        call_command("pgqueue_health", *arguments, stdout=out)
    except SystemExit as exit_:
        return int(exit_.code or 0), out.getvalue()
    return 0, out.getvalue()


def test_an_empty_queue_needs_no_consumer(orders):
    code, out = health()

    assert (code, out.split(":")[0]) == (0, "ok   orders")


def test_a_backlog_without_a_consumer_is_unhealthy(orders):
    orders.send(1)

    code, out = health()

    assert (code, out) == (1, "FAIL orders: 0 consumers, backlog 1\n")


def test_a_live_consumer_makes_it_healthy(orders):
    orders.send(1)
    Process.objects.register(["orders"], version="1", using="default")

    assert health()[0] == 0


@pytest.mark.parametrize(
    "change", ["heartbeat_at = now() - interval '1 minute'", "stopping = true", "queues = '[]'"]
)
def test_a_consumer_that_is_dead_or_stopping_or_of_another_queue_does_not_count(orders, change):
    orders.send(1)
    Process.objects.register(["orders"], version="1", using="default")
    run_sql(f"UPDATE pgqueue_process SET {change}")

    assert health()[0] == 1


def test_a_queue_that_is_paused_or_not_due_needs_no_consumer(orders):
    Message.objects.create_queue("paused")
    Queue.objects.filter(name="paused").update(paused=True)
    Message.objects.send("paused", 1)
    orders.send(1, delay=60)

    code, out = health()

    assert (code, "paused: 0 consumers, backlog 1, paused" in out) == (0, True)


def test_dead_letters_need_no_consumer(orders, dead_letters):
    dead_letters.send(1)

    code, out = health()

    assert (code, "dead: 0 consumers, backlog 1, dead letters\n" in out) == (0, True)


def test_an_estimated_backlog_is_marked(orders, settings):
    settings.PGQUEUE = {"EXACT_COUNT_LIMIT": 5}
    orders.send_batch(range(20))

    assert "backlog ≈ " in health()[1]
    assert json.loads(health("--json")[1])["queues"][0]["exact"] is False


def test_only_the_queues_named_count(orders):
    Message.objects.create_queue("mails")
    orders.send(1)

    assert (health("mails")[0], health("orders")[0]) == (0, 1)


def test_the_findings_can_be_had_as_json(orders):
    orders.send(1)

    code, out = health("--json")

    assert (code, json.loads(out)) == (
        1,
        {
            "healthy": False,
            "queues": [
                {
                    "queue": "orders",
                    "consumers": 0,
                    "backlog": 1,
                    "exact": True,
                    "paused": False,
                    "dead_letters": False,
                    "position_lost": False,
                    "healthy": False,
                }
            ],
        },
    )
