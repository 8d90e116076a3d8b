"""The archive's page: how messages ended."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_pgqueue import queue
from django_pgqueue.acks import describe
from django_pgqueue.admin import states
from django_pgqueue.models import ArchivedMessage, BoundQueue, Queue
from tests.admin.conftest import page, rows


@pytest.fixture
def completed(orders: BoundQueue) -> int:
    message_id = orders.send({"total": 8})
    orders.archive(orders.read())
    return message_id


def test_list_shows_outcome_error_and_message(
    operator: Client, failed: int, completed: int
) -> None:
    listed = rows(operator, "archivedmessage")

    assert [cells[:5] for cells in listed] == [
        [str(completed), "orders", "completed", "-", "1"],
        [str(failed), "orders", "failed", "card <expired>", "1"],
    ]
    assert f"/message/{failed}/change/" in page(operator, "archivedmessage", "change", failed)


def test_list_shows_what_went_wrong_however_long_the_traceback(
    operator: Client, orders: BoundQueue
) -> None:
    def fall(depth: int) -> None:
        if depth:
            fall_deeper(depth)
        raise ValueError("no such card")

    def fall_deeper(depth: int) -> None:
        fall(depth - 1)

    orders.send(1)
    [message] = orders.read()
    with pytest.raises(ValueError, match="no such card") as raised:
        fall(60)
    message.reject(describe(raised.value))

    [listed] = rows(operator, "archivedmessage")

    assert listed[3] == "ValueError: no such card"


def test_state_and_queue_narrow_the_list(operator: Client, failed: int, completed: int) -> None:
    queue("mails").create()
    mail = queue("mails").send(1)
    queue("mails").archive(mail)
    orders = Queue.objects.get(name="orders").pk

    by_state = rows(operator, "archivedmessage", state="completed")
    by_both = rows(operator, "archivedmessage", state="completed", queue=orders)

    assert [cells[0] for cells in by_state] == [str(mail), str(completed)]
    assert [cells[0] for cells in by_both] == [str(completed)]


def test_state_filter_looks_at_the_newest_only(
    operator: Client, failed: int, completed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states.newest, "__defaults__", (1,))

    assert rows(operator, "archivedmessage", state="failed") == []
    assert len(rows(operator, "archivedmessage", state="completed")) == 1


def test_outcome_is_shown_with_body_headers_and_error(operator: Client, failed: int) -> None:
    text = page(operator, "archivedmessage", "change", failed)

    assert "card &lt;expired&gt;" in text
    assert "&quot;&lt;b&gt;7&lt;/b&gt;&quot;" in text
    assert "&quot;trace&quot;" in text
    assert "<b>7</b>" not in text


def test_search_finds_ids(operator: Client, failed: int, completed: int) -> None:
    assert [cells[0] for cells in rows(operator, "archivedmessage", q=failed)] == [str(failed)]


def test_a_page_costs_the_same_for_one_outcome_and_for_many(
    operator: Client, orders: BoundQueue, completed: int
) -> None:
    with CaptureQueriesContext(connection) as one:
        page(operator, "archivedmessage")
    orders.archive(orders.send_batch(list(range(30))))

    with CaptureQueriesContext(connection) as many:
        assert len(rows(operator, "archivedmessage")) == 31

    assert len(many) == len(one)


def test_outcomes_cannot_be_added_changed_or_deleted(operator: Client, failed: int) -> None:
    change = reverse("admin:django_pgqueue_archivedmessage_change", args=[failed])

    assert operator.get(reverse("admin:django_pgqueue_archivedmessage_add")).status_code == 403
    assert operator.post(change, {"state": "COMPLETED"}).status_code == 403
    assert operator.post(change.replace("change", "delete")).status_code == 403
    assert ArchivedMessage.objects.get().state == "FAILED"
