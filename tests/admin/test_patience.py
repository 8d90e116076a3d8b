"""No page occupies the database for long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.urls import reverse

from django_pgqueue.admin import messages_page, patience
from django_pgqueue.admin.search import Found, Looked, Search
from django_pgqueue.models import BoundQueue, Queue
from tests.conftest import run_sql

PAGES = ["message_changelist", "queue_changelist", "message_failures", "rollup_charts"]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_that_takes_too_long_says_so(admin_client, orders, monkeypatch, name):
    monkeypatch.setattr(patience, "SECONDS", 0.05)
    model = name.partition("_")[0]
    admin = "django_pgqueue.admin.base.PageAdmin.has_view_or_change_permission"
    view = "has_view_permission" if model == "rollup" else "has_view_or_change_permission"

    asked = []

    def slow(*args: Any, **kwargs: Any) -> bool:
        asked.append(args)
        if len(asked) == 1:  # not for the page that reports the timeout
            run_sql("SELECT pg_sleep(60)")
        return True

    monkeypatch.setattr(admin.replace("has_view_or_change_permission", view), slow)

    response = admin_client.get(reverse(f"admin:django_pgqueue_{name}"))

    assert response.status_code == 503
    assert "took longer than 0.05 s" in response.content.decode()


def test_an_action_has_more_time_than_a_page(admin_client, committed_orders, monkeypatch, sql):
    committed_orders.send(1)
    limits = []

    def look(*args: Any, **kwargs: Any) -> Any:
        limits.append(sql("SHOW statement_timeout")[0][0])
        return Looked([], None, 0)

    monkeypatch.setattr(Search, "find", look)
    monkeypatch.setattr(Search, "extents", lambda *args, **kwargs: look() and {})
    url = reverse("admin:django_pgqueue_message_changelist", query={"state": "ready"})

    admin_client.get(url)
    admin_client.post(url, {"action": "cancel", "_selected_action": ["1"]})

    assert limits[0] == "10s"
    assert limits[-1] == "1min"
    assert sql("SHOW statement_timeout") == [("0",)]


@pytest.fixture
def locked(committed_orders: BoundQueue) -> Iterator[int]:
    """The id of a queue while another session holds the table of queues, for 20 s at most."""
    pk = Queue.objects.get().pk
    other = connection.copy()
    other.set_autocommit(False)
    with other.cursor() as cursor:
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '20s'")
        cursor.execute("LOCK TABLE pgqueue_queue IN ACCESS EXCLUSIVE MODE")
        yield pk
    other.close()


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("get", "overview_json"),
        ("get", "queue_purge"),
        ("get", "queue_redrive"),
        ("get", "message_changelist"),
        ("post", "queue_pause"),
        ("post", "queue_purge"),
        ("post", "queue_redrive"),
        ("post", "queue_change"),
        ("post", "queue_send"),
        ("get", "queue_delete"),
        ("post", "queue_delete"),
        ("post", "message_changelist"),
        ("post", "message_failure"),
    ],
)
def test_no_page_and_no_action_waits_for_a_lock_for_ever(
    admin_client, locked, monkeypatch, method, name
):
    monkeypatch.setattr(patience, "SECONDS", 0.1)
    args = [] if name in ("overview_json", "message_changelist") else [locked]
    query = {"export": "jsonl", "state": "ready"} if name == "message_changelist" else {}
    url = reverse(f"admin:django_pgqueue_{name}", args=args)
    answer = {"action": "discard" if name == "message_failure" else "cancel"}
    data = query if method == "get" else {**answer, "query": "state=ready"}

    response = getattr(admin_client, method)(url, data)

    assert response.status_code == 503


def test_an_export_under_way_waits_for_no_lock_either(admin_client, locked, monkeypatch):
    monkeypatch.setattr(messages_page, "SECONDS", 0.1)
    found = Looked([Found(locked, "", 1)], None, 0)
    monkeypatch.setattr(Search, "find", lambda *args, **kwargs: found)
    url = reverse("admin:django_pgqueue_message_changelist")

    response = admin_client.get(url, {"export": "jsonl"})

    with pytest.raises(OperationalError, match="statement timeout"):
        list(response.streaming_content)  # type: ignore[attr-defined]
