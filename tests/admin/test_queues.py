"""The queues' page: backlogs, settings, creating, dropping and purging."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_pgqueue import queue
from django_pgqueue.errors import QueueBusy
from django_pgqueue.maintenance.partitions import AHEAD
from django_pgqueue.models import AuditEntry, Message, PurgeMark, Queue
from tests.admin.conftest import confirm, page, plain

SETTINGS = {"name": "mails", "visibility_timeout": 60, "max_deliveries": 20, "notify": "on"}


def posted(client: Client, view: str, *args: object, **data: Any) -> str:
    response = client.post(
        reverse(f"admin:django_pgqueue_queue_{view}", args=args), data, follow=True
    )
    assert response.status_code == 200
    return response.content.decode()


def test_adding_a_queue_makes_its_tables(operator):
    posted(operator, "add", **SETTINGS)

    assert queue("mails").send(1)
    assert Queue.objects.get().visibility_timeout == 60


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        pytest.param({"name": "two words"}, "is not a queue name", id="name"),
        pytest.param({"name": "ORDERS"}, "A queue of this name exists", id="name-taken"),
        pytest.param({"visibility_timeout": 0}, "Enter at least one second", id="timeout"),
        pytest.param({"max_deliveries": 0}, "Enter 1 or more", id="deliveries"),
        pytest.param({"retention": "0s"}, "Enter at least one second", id="retention"),
        pytest.param({"retention": "7"}, "Add the unit: 7d for days", id="retention-unit"),
        pytest.param({"retention": "a week"}, "such as 30s, 10min, 2h, 7d", id="retention-words"),
        pytest.param(
            {"retention": "9" * 30 + "d"}, "Enter a duration, such as", id="retention-long"
        ),
        pytest.param({"unique_window": "-1 day"}, "Enter at least one second", id="window"),
        pytest.param({"age_limit": "0s"}, "Enter at least one second", id="age"),
        pytest.param({"rate": "often"}, "rate must be a number of messages", id="rate"),
        pytest.param({"group_burst": 5}, "group_burst needs a group_rate", id="burst"),
    ],
)
def test_form_refuses_what_create_queue_refuses(operator, orders, wrong, message):
    text = posted(operator, "add", **{**SETTINGS, **wrong})

    assert text.count(message) == 1
    assert Queue.objects.count() == 1


def test_settings_are_changed_and_the_name_is_not(operator, orders):
    pk = Queue.objects.get().pk

    posted(
        operator,
        "change",
        pk,
        name="renamed",
        visibility_timeout=5,
        max_deliveries=3,
        retention="7d",
        rate="100/s",
        burst="",
        group_limit=5,
        paused="on",
    )

    changed = Queue.objects.get()
    assert (changed.name, changed.visibility_timeout, changed.max_deliveries) == ("orders", 5, 3)
    assert (changed.rate, changed.burst, changed.group_limit) == ("100/s", None, 5)
    assert changed.retention is not None
    assert changed.retention.days == 7
    assert changed.paused
    assert not changed.notify


def test_a_queue_is_not_its_own_dead_letter_queue(operator, orders):
    pk = Queue.objects.get().pk

    text = posted(operator, "change", pk, visibility_timeout=5, dead_letter_queue=pk)

    assert "cannot be its own dead-letter queue" in text


def test_dead_letters_do_not_go_round(operator, orders):
    first = Message.objects.create_queue("first", dead_letter_queue="orders")
    second = Message.objects.create_queue("second", dead_letter_queue=first)
    pk = Queue.objects.get(name="orders").pk

    text = posted(operator, "change", pk, visibility_timeout=5, dead_letter_queue=second.pk)

    assert (
        "The dead-letter queues would form a cycle: orders -&gt; second -&gt; first -&gt; orders"
        in text
    )
    assert Queue.objects.get(name="orders").dead_letter_queue is None


def test_spans_are_shown_as_they_are_written(operator, orders):
    Queue.objects.update(retention=dt.timedelta(days=7), unique_window=dt.timedelta(hours=36))

    text = page(operator, "queue", "change", Queue.objects.get().pk)

    assert 'value="7d"' in text
    assert 'value="1d 12h"' in text


def test_an_address_with_nul_is_refused(operator, orders):
    for model in ("message", "rollup"):
        for name in ("q", "state", "queue", "p", "o"):
            url = reverse(f"admin:django_pgqueue_{model}_changelist")
            assert operator.get(url, {name: "\x00"}).status_code == 400


def test_a_queues_page_shows_the_partitions_and_when_something_was_removed(operator, orders):
    daily = Message.objects.create_queue("daily", partition_interval=86_400, retention=1)
    PurgeMark.objects.create(queue=daily, below_xid=7)

    text = page(operator, "queue", "overview", daily.pk)
    plain = page(operator, "queue", "overview", Queue.objects.get(name="orders").pk)

    removed = PurgeMark.objects.get().purged_at
    assert f"{AHEAD + 1} of 1d each" in text
    assert f"{removed:%Y-%m-%d %H:%M:%S}" in text
    assert "Partitions by time" not in plain


def test_a_queues_page_lists_the_groups_with_their_own_limits(operator, orders):
    pk = Queue.objects.get().pk
    before = page(operator, "queue", "overview", pk)
    orders.group("customer 12").limit(50)
    orders.group("customer 13").pause()

    text = page(operator, "queue", "overview", pk)

    assert "customer" not in before
    rows = [plain(row) for row in re.findall(r"<tr.*?</tr>", text, re.DOTALL) if "customer" in row]
    assert rows == ["customer 13 0 ▲ paused Resume", "customer 12 0 50 Pause"]


def test_deleting_says_what_goes_and_drops_it(operator, orders):
    orders.send_batch(list(range(12)))
    orders.archive(orders.read(qty=2))
    pk = Queue.objects.get().pk

    with CaptureQueriesContext(connection) as asked:
        text = page(operator, "queue", "delete", pk)
    posted(operator, "delete", pk, post="yes", typed="orders")

    assert "10 messages in the queue" in text
    assert "2 messages in the archive" in text
    # Messages are counted up to a limit, not listed.
    assert not [q for q in asked if 'FROM "pgqueue_message"' in q["sql"]]
    assert not Queue.objects.exists()


def test_a_dead_letter_queue_is_not_deleted_under_its_source(operator, orders):
    Message.objects.create_queue("source", dead_letter_queue="orders")
    pk = Queue.objects.get(name="orders").pk

    text = page(operator, "queue", "delete", pk)
    posted(operator, "delete", pk, post="yes", typed="orders")

    assert "source, whose dead-letter queue is orders" in text
    assert Queue.objects.count() == 2


def test_a_busy_queue_is_said_to_be_busy(operator, orders, monkeypatch):
    def busy(self: Queue, **kwargs: Any) -> None:
        raise QueueBusy(self.name, 30)

    monkeypatch.setattr(Queue, "delete", busy)
    pk = Queue.objects.get().pk

    text = posted(operator, "delete", pk, post="yes", typed="orders")
    assert "could not be locked within 30 seconds" in text
    assert Queue.objects.exists()


def test_the_way_back_looks_as_on_the_admins_own_pages(operator, orders):
    queue = Queue.objects.get()
    own = operator.get("/admin/password_change/").content.decode()

    text = page(operator, "queue", "purge", queue.pk)

    [tag] = re.findall('<[a-z]+ class="breadcrumbs">', own)
    assert text.count(tag) == 1


def test_purging_empties_the_queue_and_is_logged(operator, orders):
    orders.send_batch([1, 2, 3])
    orders.archive(orders.read())

    url = reverse("admin:django_pgqueue_queue_purge", args=[Queue.objects.get().pk])
    text = confirm(operator, url, operator.get(url).content.decode(), typed="orders")

    assert "2 messages purged." in text
    assert (orders.metrics().length, orders.metrics().archived) == (0, 1)
    entry = AuditEntry.objects.get(operation="purge")
    assert (entry.who, entry.place, entry.queue_name, entry.count) == ("ann", "admin", "orders", 2)
    assert not LogEntry.objects.exists()  # there is one log


def test_who_may_only_view_changes_nothing(staff, orders):
    orders.send(1)
    client = staff("view_queue")
    pk = Queue.objects.get().pk

    for action in ("purge", "pause", "resume"):
        url = reverse(f"admin:django_pgqueue_queue_{action}", args=[pk])
        assert client.post(url, {"confirmed": "yes", "typed": "orders"}).status_code == 403
    response = client.post(
        reverse("admin:django_pgqueue_queue_change", args=[pk]), {"visibility_timeout": 1}
    )

    assert response.status_code == 403
    assert orders.metrics().length == 1
    assert not Queue.objects.get().paused
    assert 'method="post"' not in page(client, "queue").partition('id="pgqueue-live"')[2]


def test_a_change_of_the_settings_leads_to_the_queue(operator, orders):
    pk = Queue.objects.get().pk
    url = reverse("admin:django_pgqueue_queue_change", args=[pk])
    form = {"visibility_timeout": 45, "max_deliveries": 20}

    changed = operator.post(url, form)
    stays = operator.post(url, {**form, "_continue": "1"})

    assert changed.url == reverse("admin:django_pgqueue_queue_overview", args=[pk])
    assert stays.url == url
