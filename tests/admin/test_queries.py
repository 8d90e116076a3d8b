"""The number of queries of each page."""

from __future__ import annotations

from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_pgqueue.acks import Failure
from django_pgqueue.models import Queue
from tests.admin import scenes
from tests.admin.conftest import MOST, act, consumer, page, queries
from tools.screenshots import pages


def test_no_page_asks_more_than_15_times(client, db):
    client.force_login(scenes.superuser())
    scenes.play()
    asked = {}

    for name, path in pages():
        client.get(path)  # Django caches its content types from now on
        with CaptureQueriesContext(connection) as each:
            assert client.get(path).status_code == 200
        asked[name] = queries(each)

    assert {name: number for name, number in asked.items() if number > MOST} == {}


def test_page_of_a_message_that_has_everything_asks_no_more_than_15_times(
    client, orders, dead_letters
):
    """A dead letter of 5 MB with failed attempts, steps, a note, group neighbours and a log."""
    client.force_login(scenes.superuser())
    worker = consumer("orders")
    pk = orders.send({"text": "x" * 5_000_000}, group="g")
    for _ in range(2):
        [message] = orders.read()
        failure = Failure(message.attempts + 1, "shop.Declined", "no card", "Traceback")
        orders.retry(
            {message.receipt: 0},
            errors={message.receipt: "no card"},
            failures={message.receipt: failure},
            process_id=worker.pk,
        )
    [message] = orders.read()
    message.step("charge", lambda: 41)
    message.note({"row": 7})
    message.reject("no card")
    after = dead_letters.send(1, group="g")
    act(client, "message", "readable", pk)

    with CaptureQueriesContext(connection) as asked:
        text = page(client, "message", "change", pk)

    assert queries(asked) <= MOST
    assert "web-1:7" in text
    assert "Step &quot;charge&quot; done" in text
    assert f"/message/{after}/change/" in text.partition("In its group")[2]
    assert f"/queue/{Queue.objects.get(name='orders').pk}/overview/" in text
    assert "pgqueue-log" in text
