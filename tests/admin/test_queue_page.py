"""A queue's page: its history, consumers, failures and actions."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_pgqueue import queue
from django_pgqueue.models import Attempt, AuditEntry, Message, Queue
from tests.admin.conftest import (
    MOST,
    OF_PERMISSIONS,
    confirm,
    consumer,
    happened,
    page,
    plain,
    queries,
)
from tests.conftest import run_sql


def shown(client: Client, **query: Any) -> str:
    """The text of the queue ``orders``'s page."""
    return page(client, "queue", "overview", Queue.objects.get(name="orders").pk, **query)


def chart(text: str, title: str) -> list[list[str]]:
    """A chart's table, the newest span first."""
    found = text.partition(f"<h2>{title}</h2>")[2].partition("</figure>")[0]
    rows = found.partition("<tbody>")[2].split("</tr>")[:-1]
    return [re.findall(r"<td>(.*?)</td>", row) for row in rows]


def test_an_hour_is_drawn_by_the_minute(operator, orders):
    happened(1, 0, sent=5, completed=3, failed=1, depth=7, oldest=90)
    happened(1, 4, completed=2, waits={"0": 1}, runs={"4": 2})

    text = shown(operator)

    assert len(chart(text, "Throughput")) == 60
    assert ["5", "6"] in chart(text, "Throughput")[:3]
    assert ["7"] in chart(text, "Depth")[:3]
    assert ["1.5 min"] in chart(text, "Oldest message")[:3]
    assert ["0", "0", "1"] in chart(text, "Failures")[:3]
    assert ["1.09 s"] * 3 in chart(text, "Wait times")[:3]
    assert ["2.18 s"] * 3 in chart(text, "Run times")[:3]


def test_messages_out_are_drawn_by_consumer(operator, orders):
    known = consumer("orders")
    happened(1, known.pk, completed=2, dead_lettered=1)
    happened(2, 0, completed=9, by_process={str(known.pk): 4, "901": 3, "902": 1, "903": 1})

    text = shown(operator)

    told = plain(text.partition("<h2>Out by consumer</h2>")[2].partition("</figure>")[0])
    assert re.search(rf"{known} process 901 process 90[23] others", told)
    assert ["3", "0", "0", "0"] in chart(text, "Out by consumer")[:3]
    assert ["4", "3", "1", "1"] in chart(text, "Out by consumer")[:4]


def test_run_times_are_counted_in_a_histogram_of_the_range(operator, orders):
    happened(1, 4, completed=4, runs={"0": 3, "4": 1})
    happened(1, 5, completed=1, runs={"0": 1, "-40": 1})
    happened(180, 0, seconds=3600, completed=1, runs={"40": 5})

    def bars(text: str) -> dict[str, str]:
        table = text.partition('id="pgqueue-histogram"')[2].partition("</details>")[0]
        found = re.findall(r'<th scope="row">(.*?)</th><td class="number">(.*?)</td>', table)
        return {times: count for times, count in found if count != "0"}

    assert bars(shown(operator)) == {
        "up to 1.38 ms": "1",
        "1 s \u2013 1.41 s": "4",
        "2 s \u2013 2.83 s": "1",
    }
    assert sum(map(int, bars(shown(operator, range="day")).values())) == 11
    assert "6 in all, most often 1 s" in shown(operator)


def test_days_are_drawn_by_the_hour_minutes_included(operator, orders):
    happened(180, 0, seconds=3600, completed=10)
    happened(0, 0, completed=1)
    happened(0, 4, completed=2)

    text = shown(operator, range="day")

    table = chart(text, "Throughput")
    assert len(table) == 24
    assert (table[0], table[3]) == (["0", "3"], ["0", "10"])
    assert len(chart(shown(operator, range="fortnight"), "Throughput")) == 84
    assert len(chart(shown(operator, range="nonsense"), "Throughput")) == 60


def test_consumers_errors_groups_and_storage_are_told(operator, orders):
    [first, *_] = orders.send_batch([1, 2, 3], group="customer <7>")
    pk = Queue.objects.get().pk
    consumer("orders", working_on={"orders": [first]})
    consumer("mails", host="web-2")
    Attempt.objects.create(
        message_id=first,
        queue_id=pk,
        attempt=2,
        error_class="shop.Declined",
        message="card <4242>\u202e",
        traceback="",
    )

    text = shown(operator)

    assert "web-1:7" in text
    assert "web-2:7" not in text
    assert "Declined: card &lt;4242&gt;\\u202e" in text
    assert reverse("admin:django_pgqueue_message_change", args=[first]) in text
    assert "customer &lt;7&gt;</a>" in text
    assert "Messages and their bodies" in text


def test_a_page_of_one_queue_asks_as_often_as_any(operator, orders):
    shown(operator)
    with CaptureQueriesContext(connection) as asked:
        shown(operator)

    assert queries(asked) <= MOST + OF_PERMISSIONS


def test_a_queue_is_paused_on_its_page(operator, orders):
    pk = Queue.objects.get().pk
    url = reverse("admin:django_pgqueue_queue_overview", args=[pk])
    pause = reverse("admin:django_pgqueue_queue_pause", args=[pk])
    assert f'action="{pause}"' in shown(operator)

    there = operator.post(pause, {"back": f"{url}?range=day"})
    elsewhere = operator.post(pause, {"back": "https://example.com/"})

    assert there.headers["Location"] == f"{url}?range=day"
    assert elsewhere.headers["Location"] == reverse("admin:django_pgqueue_queue_changelist")
    assert Queue.objects.get().paused


def test_a_message_is_sent(operator, orders):
    url = reverse("admin:django_pgqueue_queue_send", args=[Queue.objects.get().pk])

    answer = operator.post(
        url,
        {
            "body": '{"order": 7}',
            "headers": '{"trace": "x"}',
            "delay": "10min",
            "expires": "1h",
            "priority": "5",
        },
        follow=True,
    )

    sent = Message.objects.get()
    assert round((sent.expires_at - sent.enqueued_at).total_seconds()) == 3600
    assert "Sent message <a" in answer.content.decode()
    assert (sent.body, sent.headers, sent.priority) == ({"order": 7}, {"trace": "x"}, 5)
    assert orders.metrics().delayed == 1
    entry = AuditEntry.objects.get(operation="send")
    assert (entry.who, entry.arguments) == ("ann", {"ids": [sent.pk]})


def test_a_message_whose_unique_key_is_held_is_not_called_sent(operator, orders):
    url = reverse("admin:django_pgqueue_queue_send", args=[Queue.objects.get().pk])
    first = orders.send(1, unique="order 7")

    answer = operator.post(url, {"body": "2", "unique": "order 7"}, follow=True)

    text = answer.content.decode()
    assert "Nothing was sent: message <a" in text
    assert f"/message/{first}/change/" in text
    assert not AuditEntry.objects.filter(operation="send").exists()
    assert Message.objects.get().body == 1


def once(client, url):
    """The token in the form of a page."""
    [token] = set(re.findall(r'name="once" value="(\w+)"', client.get(url).content.decode()))
    return token


@pytest.mark.parametrize("key", ["", "order 7"])
@pytest.mark.parametrize("session", ["the same", "of another request"])
def test_a_form_that_is_submitted_twice_sends_one_message(operator, orders, session, key):
    """A request at the same moment does not see the session of the first."""
    url = reverse("admin:django_pgqueue_queue_send", args=[Queue.objects.get().pk])
    given = {"body": "1", "unique": key, "once": once(operator, url)}
    other = Client()
    other.force_login(get_user_model().objects.get())

    operator.post(url, given)
    again = operator if session == "the same" else other
    text = again.post(url, given, follow=True).content.decode()

    [message] = Message.objects.all()
    assert f"/message/{message.pk}/change/" in text
    assert "submitted before" in text or (key and "Nothing was sent: message <a" in text)
    assert AuditEntry.objects.filter(operation="send").count() == 1


def test_a_form_remembers_its_message_after_its_key_is_free_again(operator, orders):
    Queue.objects.update(unique_window=dt.timedelta(seconds=1))
    url = reverse("admin:django_pgqueue_queue_send", args=[Queue.objects.get().pk])
    given = {"body": "1", "unique": "order 7", "once": once(operator, url)}
    operator.post(url, given)
    run_sql("UPDATE pgqueue_claim SET until = '2020-01-01Z'")

    assert "submitted before" in operator.post(url, given, follow=True).content.decode()
    assert len(Message.objects.all()) == 1


def test_a_form_that_is_opened_again_sends_another_message(operator, orders):
    url = reverse("admin:django_pgqueue_queue_send", args=[Queue.objects.get().pk])

    for _ in range(2):
        operator.post(url, {"body": "1", "once": once(operator, url)})

    assert [message.body for message in Message.objects.all()] == [1, 1]


def test_a_form_with_an_error_is_sent_once_it_is_corrected(operator, orders):
    url = reverse("admin:django_pgqueue_queue_send", args=[Queue.objects.get().pk])
    token = once(operator, url)

    operator.post(url, {"body": "{", "once": token})
    operator.post(url, {"body": "1", "once": token})

    assert Message.objects.get().body == 1


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"body": "{"}, "Correct the JSON"),
        ({"headers": "[1]"}, "Enter a JSON object"),
        ({"priority": "101"}, "less than or equal to 100"),
        ({"delay": "7"}, "Add the unit"),
    ],
)
def test_a_message_that_cannot_be_sent_says_why(operator, orders, wrong, told):
    url = reverse("admin:django_pgqueue_queue_send", args=[Queue.objects.get().pk])

    answer = operator.post(url, {"body": "1", **wrong})

    assert told in answer.content.decode()
    assert not Message.objects.exists()


def test_without_the_permission_there_is_no_button_and_no_way(staff, orders):
    Message.objects.create_queue("mails", dead_letter_queue="orders")
    client = staff("view_queue", "view_message")
    pk = Queue.objects.get(name="orders").pk

    text = shown(client)

    for name in ("send", "pause", "purge", "redrive"):
        url = reverse(f"admin:django_pgqueue_queue_{name}", args=[pk])
        assert url not in text
        assert client.post(url).status_code == 403


def test_dead_letters_are_redriven_from_their_queue(operator, orders):
    Message.objects.create_queue("mails", dead_letter_queue="orders")
    queue("mails").send_batch([1, 2, 3])
    for message in queue("mails").read(qty=2):
        message.reject("no")
    pk = Queue.objects.get(name="orders").pk
    url = reverse("admin:django_pgqueue_queue_redrive", args=[pk])
    assert url in shown(operator)
    assert url not in page(operator, "queue", "overview", Queue.objects.get(name="mails").pk)

    asked = operator.post(url).content.decode()
    confirm(operator, url, asked)

    assert "Send 2 messages of orders back to the queues where they failed?" in asked
    assert (orders.metrics().length, queue("mails").metrics().length) == (0, 3)


@pytest.mark.parametrize(
    "body",
    [
        r'{"a": "\ud800"}',
        r'{"a": "\u0000"}',
        '{"a": NaN}',
        "1e400",
        "9" * 5000,
        "[" * 100_000,
        "[" * 3000 + "]" * 3000,
        "[" * 100_000 + "]" * 100_000,
    ],
    ids=["surrogate", "nul", "nan", "infinity", "digits", "open", "deep", "nested"],
)
def test_a_body_that_cannot_be_stored_is_an_error_of_the_form(operator, orders, body):
    url = reverse("admin:django_pgqueue_queue_send", args=[Queue.objects.get().pk])

    response = operator.post(url, {"body": body, "priority": "0"})

    assert response.status_code == 200
    assert "Correct the JSON" in response.content.decode()
    assert orders.metrics().length == 0
