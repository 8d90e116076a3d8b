"""Consumers with the messages they hold, and the database's health."""

from __future__ import annotations

import datetime as dt
import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.timezone import now

from django_pgqueue import queue
from django_pgqueue.models import Message, Process, PurgeMark, Queue
from tests.actors import begin, execute, rollback
from tests.admin.conftest import consumer, page, plain
from tests.leasing import lease


def database(client: Client) -> str:
    response = client.get(reverse("admin:django_pgqueue_health"))
    assert response.status_code == 200
    return response.content.decode()


def test_consumers_are_shown_with_what_they_have_in_hand(admin_client, orders, sql):
    pk = orders.send(1)
    orders.read()
    sql("UPDATE pgqueue_deferred SET last_read_at = last_read_at - interval '75 s'")
    sql("UPDATE pgqueue_lease SET read_at = read_at - interval '75 s'")
    consumer("orders", working_on={"orders": [pk, 999]})

    text = page(admin_client, "process")

    assert "web-1:7" in text
    assert f"/message/{pk}/change/" in text
    assert "orders, 1 min 15 s" in text
    assert "/message/999/" not in text


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "running"),
        ({"quiet": True}, "quiet"),
        ({"stopping": True}, "stopping"),
        ({"silent_for": dt.timedelta(hours=1)}, "no heartbeat"),
    ],
)
def test_consumers_are_shown_with_their_state(admin_client, values, told):
    consumer("orders", **values)

    assert told in page(admin_client, "process").partition("<tbody>")[2]


def test_a_consumer_that_was_killed_is_shown_for_a_day_with_what_it_held(admin_client, orders):
    killed = consumer("orders")
    orders.send_batch(range(3))
    lease(Queue.objects.get(name="orders"), qty=2, process_id=killed.pk)
    Process.objects.update(heartbeat_at=now() - dt.timedelta(minutes=1))
    assert Process.objects.reap(dt.timedelta(seconds=12), using="default") == {killed.pk: 2}

    row = page(admin_client, "process").partition("<tbody>")[2]
    overview = overview_of(admin_client)

    assert "web-1:7" in row
    assert "</span> gone <time" in row
    assert "held 2 messages, now released" in row
    assert (
        "● Consumer gone web-1:7 ended without deregistering; it held 2 messages, now released"
        in overview
    )
    Process.every.update(gone_at=now() - dt.timedelta(hours=2))
    assert "web-1:7" in page(admin_client, "process")
    assert "web-1:7" not in overview_of(admin_client)
    Process.every.update(gone_at=now() - dt.timedelta(days=1, minutes=1))
    assert "web-1:7" not in page(admin_client, "process")


def overview_of(client: Client) -> str:
    return plain(page(client, "queue"))


def test_rows_of_dead_consumers_are_deleted_after_a_day(db):
    old, new = consumer(host="old"), consumer(host="new")
    Process.objects.filter(pk=old.pk).update(gone_at=now() - dt.timedelta(days=2))
    Process.objects.filter(pk=new.pk).update(heartbeat_at=now() - dt.timedelta(minutes=1))

    Process.objects.reap(dt.timedelta(seconds=12), using="default")

    assert [process.host for process in Process.every.all()] == ["new"]
    assert not Process.objects.exists()


def test_the_silent_ones_come_first(admin_client):
    for minutes in (0, 60, 1):
        consumer(host=f"silent-for-{minutes}", silent_for=dt.timedelta(minutes=minutes))

    found = re.findall(r">silent-for-(\d+)", page(admin_client, "process"))

    assert found == ["60", "1", "0"]


def test_anything_may_stand_in_what_a_process_works_on(admin_client):
    for told in ([], "x", {"orders": "x"}, {"orders": ["x", None]}, {"orders": {}}):
        consumer(working_on=told)

    assert page(admin_client, "process").count(">web-1:7<") == 5


def test_consumers_cost_the_same_however_many_there_are(admin_client, orders):
    counts = []
    for _ in range(2):
        ids = orders.send_batch([1] * 5)
        orders.read(qty=5)
        consumer("orders", working_on={"orders": ids})
        with CaptureQueriesContext(connection) as asked:
            page(admin_client, "process")
        counts.append(len(asked))

    assert counts[0] == counts[1]


def test_the_database_shows_its_hot_tables_and_retention(admin_client, orders):
    daily = Message.objects.create_queue("daily", retention=dt.timedelta(days=7))
    PurgeMark.objects.update_or_create(queue=daily, defaults={"below_xid": 7})

    text = database(admin_client)

    for table in ("pgqueue_ready", "pgqueue_deferred", "pgqueue_lease"):
        assert f">{table}<" in text
    removed = PurgeMark.objects.get().purged_at
    assert re.search(rf'>7d</td><td[^>]*><time title="{removed:%Y-%m-%d %H:%M:%S}">', text)
    assert "Notification queue in use" in text


@pytest.mark.django_db(transaction=True)
def test_the_database_names_the_oldest_transaction(admin_client, actor, committed):
    actor.do(begin)
    actor.do(execute, "SELECT count(*) FROM pgqueue_queue")

    oldest = database(admin_client).partition("Oldest transactions")[2].partition("</tbody>")[0]

    assert '<th scope="row">session ' in oldest
    assert ">idle in transaction</td>" in oldest
    assert "bad-text" not in oldest
    actor.do(rollback)


def test_a_process_is_quieted_and_woken_from_the_page(admin_client, staff, orders):
    process = consumer("orders")
    quiet = reverse("admin:django_pgqueue_process_quiet", args=[process.pk])
    wake = reverse("admin:django_pgqueue_process_wake", args=[process.pk])

    assert f'action="{quiet}"' in page(admin_client, "process")
    told = admin_client.post(quiet, follow=True).content.decode()
    assert Process.objects.get().quiet
    assert "Process web-1:7 fetches no more messages, and finishes those that it has." in told
    assert f'action="{wake}"' in told
    admin_client.post(wake)
    assert not Process.objects.get().quiet
    assert admin_client.get(quiet).status_code == 405

    viewer = staff("view_process")
    assert viewer.post(quiet).status_code == 403
    assert f'action="{quiet}"' not in page(viewer, "process")


def test_who_may_not_see_all_queues_of_a_process_may_not_quiet_it(staff, orders, settings):
    queue("ann.mails").create()
    settings.PGQUEUE = {"QUEUES_FOR": "tests.admin.access.ours"}
    process = consumer("ann.mails", "orders")
    quiet = reverse("admin:django_pgqueue_process_quiet", args=[process.pk])
    client = staff("view_process", "quiet_process")

    assert f'action="{quiet}"' not in page(client, "process")
    assert client.post(quiet).status_code == 403
    assert not Process.objects.get().quiet
