"""The overview: alerts, and a row for each queue."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.timezone import now

from django_pgqueue import queue
from django_pgqueue.models import BoundQueue, History, Message, Process, Queue
from tests.admin.conftest import alerts, overview, page, queries


def consumer(*queues: str, silent_for: float = 0, **values: Any) -> Process:
    return Process.objects.create(
        host="web-1",
        pid=7,
        version="1",
        queues=list(queues),
        heartbeat_at=now() - dt.timedelta(seconds=silent_for),
        **values,
    )


def test_each_queue_has_a_row_whose_numbers_add_up(operator: Client, orders: BoundQueue) -> None:
    orders.send_batch([1, 2, 3, 4])
    orders.send(5, delay=60)
    orders.read()
    due = orders.send(6)
    orders.set_vt(orders.read(qty=4)[-1], 0)
    orders.send_batch([7, 8], group="g")
    queue("mails").create()

    found = overview(operator)

    assert due
    assert found["orders"] == {
        "ready": "1",
        "due": "1",
        "waiting": "1",
        "in flight": "4",
        "delayed": "1",
        "all": "8",
        "oldest readable": "0 s",
        "in per minute": "0",
        "out per minute": "0",
        "failed in 1 h": "0",
        "dead in 1 h": "0",
        "wait p95": "-",
        "run p95": "-",
        "consumers": "0",
    }
    assert set(found["mails"].values()) == {"0", "-"}


def test_a_number_leads_to_its_messages_where_there_are_any(
    operator: Client, orders: BoundQueue
) -> None:
    orders.send(1)
    of_queue = f"?queue={Queue.objects.get().pk}&amp;state="

    html = page(operator, "queue")

    assert f"{of_queue}ready" in html
    assert f"{of_queue}delayed" not in html


def test_a_page_asks_as_often_for_many_queues(operator: Client, orders: BoundQueue) -> None:
    queue("other").create()
    with CaptureQueriesContext(connection) as few:
        page(operator, "queue")
    for number in range(60):
        queue(f"other-{number}").create()

    with CaptureQueriesContext(connection) as many:
        page(operator, "queue")

    assert queries(many) == queries(few) <= 16


def test_a_queue_can_be_added_from_here(
    operator: Client, staff: Callable[..., Client], orders: BoundQueue
) -> None:
    link = f'<a href="{reverse("admin:django_pgqueue_queue_add")}" class="addlink">Add queue</a>'

    assert page(operator, "queue").count(link) == 1
    User.objects.all().delete()
    assert link not in page(staff("view_queue"), "queue")


def test_a_queue_without_a_live_consumer_is_an_alert(operator: Client, orders: BoundQueue) -> None:
    orders.send(1)
    consumer("orders", silent_for=60)
    alone = alerts(operator)
    consumer("orders")

    assert alone == [
        "orders has no live consumer, and 1 message to read",
        "Consumer web-1:7 has sent no heartbeat for 1 min",
    ]
    assert overview(operator)["orders"]["consumers"] == "1"
    assert alerts(operator) == ["Consumer web-1:7 has sent no heartbeat for 1 min"]


def test_a_consumer_that_stops_does_not_count(operator: Client, orders: BoundQueue) -> None:
    consumer("orders", stopping=True)

    assert overview(operator)["orders"]["consumers"] == "0"


def test_a_queue_with_nothing_to_read_needs_no_consumer(
    operator: Client, orders: BoundQueue
) -> None:
    orders.send(1, delay=60)

    assert alerts(operator) == ["Nothing needs attention."]


def test_a_message_that_waits_for_too_long_is_an_alert(
    operator: Client, orders: BoundQueue, sql: Callable[..., Any]
) -> None:
    orders.send(1)
    orders.send_batch([2] * 3, priority=5)
    consumer("orders")
    sql("UPDATE pgqueue_ready SET enqueued_at = enqueued_at - interval '20 min' WHERE priority = 0")

    assert alerts(operator) == ["orders: the oldest message has waited for 20 min"]
    assert overview(operator)["orders"]["oldest readable"] == "20 min"


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ("10min", ["orders: the oldest message has waited for 20 min"]),
        ("2h", ["Nothing needs attention."]),
    ],
)
def test_a_queue_has_its_own_limit_of_age(
    operator: Client, orders: BoundQueue, sql: Callable[..., Any], limit: str, told: list[str]
) -> None:
    orders.send(1)
    consumer("orders")
    sql("UPDATE pgqueue_ready SET enqueued_at = enqueued_at - interval '20 min'")
    change = reverse("admin:django_pgqueue_queue_change", args=[Queue.objects.get().pk])

    form = {"visibility_timeout": 30, "max_deliveries": 20, "age_limit": limit}
    assert operator.post(change, form).status_code == 302

    assert alerts(operator) == told


def happened(minutes: float, process_id: int = 1, **counts: Any) -> None:
    """Add consumer history for the queue ``orders``, some minutes old."""
    History.objects.create(
        queue=Queue.objects.get(name="orders"),
        bucket=(now() - dt.timedelta(minutes=minutes)).replace(second=0, microsecond=0),
        seconds=60,
        process_id=process_id,
        **counts,
    )


def test_the_last_hour_is_told_by_its_history(operator: Client, orders: BoundQueue) -> None:
    for minutes in (1, 2, 3, 30):
        happened(minutes, completed=600, waits={"0": 9}, runs={"-20": 99, "4": 1})
    happened(3, 0, sent=1200)
    happened(30, 2, failed=3, dead_lettered=2)
    happened(70, completed=9999, failed=9999)

    row = overview(operator)["orders"]

    assert (row["failed in 1 h"], row["dead in 1 h"]) == ("3", "2")
    assert (row["wait p95"], row["run p95"]) == ("1.09 s", "34.1 ms")
    assert 150 <= float(row["in per minute"]) <= 240
    assert 300 <= float(row["out per minute"]) <= 360
    assert page(operator, "queue").count('<svg class="spark"') == 1


def test_failures_that_rise_are_an_alert(operator: Client, orders: BoundQueue) -> None:
    consumer("orders")
    happened(20, completed=10_000, retried=10)
    calm = alerts(operator)
    happened(0, completed=900, retried=100)

    assert calm == ["Nothing needs attention."]
    assert alerts(operator) == [
        "orders: failures are rising, 10% of attempts in the last two minutes and 1% in an hour"
    ]
    assert '<p class="alert bad">' in page(operator, "queue")


def test_failures_that_are_over_are_a_warning(operator: Client, orders: BoundQueue) -> None:
    happened(20, completed=10, failed=10)
    happened(0, completed=20)

    assert alerts(operator) == ["orders: 10 of 40 attempts failed in the last hour"]
    assert '<p class="alert warning">' in page(operator, "queue")


def test_failures_lead_to_the_dead_letters_where_they_go_there(
    operator: Client, orders: BoundQueue
) -> None:
    dead = Message.objects.create_queue("dead")
    Queue.objects.filter(name="orders").update(dead_letter_queue=dead)
    happened(0, dead_lettered=10)

    assert f"/message/?queue={dead.pk}" in page(operator, "queue")


def test_failures_are_an_alert_that_leads_to_them(operator: Client, orders: BoundQueue) -> None:
    orders.send_batch([1] * 40)
    consumer("orders")
    read = orders.read(qty=40)
    orders.archive(read[4:])
    for message in read[:4]:
        message.reject("no")

    pk = Queue.objects.get().pk
    text = page(operator, "queue")

    assert alerts(operator) == ["orders: 4 of 40 attempts failed in the last hour"]
    assert f"/archivedmessage/?queue={pk}&amp;state=failed" in text
    assert overview(operator)["orders"]["failed in 1 h"] == "4"


@pytest.mark.parametrize("listed", [100, 0])
def test_failures_are_told_of_queues_without_a_consumer_too(
    operator: Client, orders: BoundQueue, monkeypatch: pytest.MonkeyPatch, listed: int
) -> None:
    monkeypatch.setattr("django_pgqueue.admin.overview.LISTED", listed)
    orders.send_batch([1] * 5)
    for message in orders.read(qty=5):
        message.reject("no")
    happened(0, sent=5, depth=0)

    assert alerts(operator) == ["orders: 5 of 5 attempts failed in the last hour"]


def test_few_failures_among_many_are_none(operator: Client, orders: BoundQueue) -> None:
    orders.send_batch([1] * 100)
    read = orders.read(qty=100)
    orders.archive(read[3:])
    for message in read[:3]:
        message.reject("no")

    assert alerts(operator) == ["Nothing needs attention."]


def test_dead_letters_are_an_alert(operator: Client, orders: BoundQueue) -> None:
    Message.objects.create_queue("source", dead_letter_queue="orders")
    orders.send(1)

    assert alerts(operator) == ["Dead letters: 1 message from source in orders"]


def test_a_paused_queue_is_an_alert_while_something_waits(
    operator: Client, orders: BoundQueue
) -> None:
    Queue.objects.update(paused=True)
    empty = alerts(operator)
    orders.send(1)

    assert empty == ["Nothing needs attention."]
    assert alerts(operator) == ["orders is paused with 1 message"]
    assert '<span class="badge">paused</span>' in page(operator, "queue")


def test_the_worst_queue_is_first_or_queues_go_by_name(
    operator: Client, orders: BoundQueue
) -> None:
    for name in ("Z", "a"):
        queue(name).create()
    queue("Z").send(1)

    assert next(iter(overview(operator))) == "Z"
    assert list(overview(operator, by="name")) == ["a", "orders", "Z"]
    assert list(overview(operator, q="ORD")) == ["orders"]
    assert overview(operator, q="\x00") == {}


def test_queues_are_paused_and_resumed_by_a_button(operator: Client, orders: BoundQueue) -> None:
    pk = Queue.objects.get().pk
    pause = reverse("admin:django_pgqueue_queue_pause", args=[pk])
    resume = reverse("admin:django_pgqueue_queue_resume", args=[pk])

    assert f'action="{pause}"' in page(operator, "queue")
    operator.post(pause)
    operator.post(pause)
    paused = Queue.objects.get().paused
    assert f'action="{resume}"' in page(operator, "queue")
    operator.post(resume)

    assert paused
    assert not Queue.objects.get().paused
    assert [e.get_change_message() for e in LogEntry.objects.order_by("pk")] == [
        "Paused.",
        "Resumed.",
    ]


def test_pausing_takes_a_post_and_a_queue(operator: Client, orders: BoundQueue) -> None:
    pause = reverse("admin:django_pgqueue_queue_pause", args=[Queue.objects.get().pk])

    assert operator.get(pause).status_code == 405
    assert operator.post(pause.replace(str(Queue.objects.get().pk), "999")).status_code == 404
    assert not Queue.objects.get().paused


def test_programs_get_the_same(operator: Client, orders: BoundQueue) -> None:
    orders.send(1)

    response = operator.get(reverse("admin:django_pgqueue_overview_json"))

    found = json.loads(response.content)
    [row] = found["queues"]
    assert (row["queue"], row["ready"], row["length"], row["consumers"]) == ("orders", 1, 1, 0)
    assert (row["in_per_minute"], row["failed_last_hour"], row["wait_p95_seconds"]) == (0, 0, None)
    assert found["alerts"] == [
        {
            "level": "bad",
            "text": "orders has no live consumer, and 1 message to read",
            "queue": "orders",
        }
    ]


def test_programs_may_show_a_token(client: Client, orders: BoundQueue, settings: Any) -> None:
    url = reverse("admin:django_pgqueue_overview_json")
    without = client.get(url, headers={"Authorization": "Bearer None"})
    settings.PGQUEUE = {"OVERVIEW_TOKEN": "s3cret"}

    wrong = client.get(url, headers={"Authorization": "Bearer guess"})
    right = client.get(url, headers={"Authorization": "Bearer s3cret"})

    assert (without.status_code, wrong.status_code, right.status_code) == (401, 401, 200)
    assert json.loads(right.content)["queues"][0]["queue"] == "orders"


def test_the_overview_is_for_those_who_may_view_queues(
    staff: Callable[..., Client], orders: BoundQueue
) -> None:
    client = staff("view_message")

    for name in ("queue_changelist", "overview_json"):
        assert client.get(reverse(f"admin:django_pgqueue_{name}")).status_code == 403


def test_a_refresh_takes_the_live_part_and_leaves_messages_alone(
    operator: Client, orders: BoundQueue
) -> None:
    operator.post(reverse("admin:django_pgqueue_queue_pause", args=[Queue.objects.get().pk]))
    url = reverse("admin:django_pgqueue_queue_changelist")

    live = operator.get(url, headers={"X-Requested-With": "pgqueue"}).content.decode()

    assert live.startswith('<div id="pgqueue-live">')
    assert "<html" not in live
    assert "Paused orders: consumers leave it alone" in page(operator, "queue")
