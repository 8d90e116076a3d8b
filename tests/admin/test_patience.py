"""No page occupies the database for long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, connections
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
    limits: list[str] = []
    compiled: list[str] = []

    def look(*args: Any, **kwargs: Any) -> Any:
        limits.append(sql("SHOW statement_timeout")[0][0])
        compiled.append(sql("SHOW jit")[0][0])
        return Looked([], None, 0)

    monkeypatch.setattr(Search, "find", look)
    monkeypatch.setattr(Search, "extents", lambda *args, **kwargs: look() and {})
    url = reverse("admin:django_pgqueue_message_changelist", query={"state": "ready"})

    admin_client.get(url)
    admin_client.post(url, {"action": "cancel", "_selected_action": ["1"]})

    assert limits[0] == "10s"
    assert compiled[0] == "off"
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

    with pytest.raises(OperationalError, match="lock timeout"):
        list(response.streaming_content)  # type: ignore[attr-defined]


def test_a_page_that_waits_for_a_lock_names_the_session_that_has_it(
    admin_client, locked, monkeypatch, sql
):
    monkeypatch.setattr(patience, "SECONDS", 0.1)
    [(pid,)] = sql(
        "SELECT pid FROM pg_locks WHERE relation = 'pgqueue_queue'::regclass "
        "AND mode = 'AccessExclusiveLock' AND granted"
    )
    time.sleep(1.1)  # a lock of less than a second is nothing unusual

    response = admin_client.get(reverse("admin:django_pgqueue_queue_changelist"))

    text = response.content.decode()
    assert response.status_code == 503
    assert "waited for a lock for 0.1 s" in text
    assert f'<th scope="row">{pid}</th>' in text
    assert "<code>LOCK TABLE pgqueue_queue IN ACCESS EXCLUSIVE MODE</code>" in text

    monkeypatch.setattr(patience, "SECONDS", 10.0)
    database = admin_client.get(reverse("admin:django_pgqueue_health"))

    text = database.content.decode()
    assert database.status_code == 200
    assert f'<th scope="row">{pid}</th>' in text
    assert text.count("Unknown: another session has locked a table.") == 1  # retention


#: Every page that is opened by its URL alone.
EVERY = [
    *("queue_changelist", "queue_add", "overview_json", "health", "process_changelist"),
    *("message_changelist", "message_failures", "schedule_changelist", "schedule_add"),
    *("binding_changelist", "binding_add", "bulkaction_changelist", "rollup_charts"),
    *("rollup_changelist", "rolluprun_changelist", "exportrun_changelist", "lake_changelist"),
]
OF_A_QUEUE = ["overview", "change", "delete", "history", "purge", "send"]


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_every_page_says_that_the_database_of_the_queues_is_down(
    admin_client, settings, monkeypatch
):
    """Users and sessions are in another database, which is up."""
    settings.PGQUEUE = {"DATABASE": "other"}
    connections["other"].close()

    def refuse(*args: Any) -> Any:
        raise psycopg.OperationalError("connection failed: Connection refused")

    with monkeypatch.context() as down:
        down.setattr(connections["other"], "get_new_connection", refuse)
        urls = [reverse(f"admin:django_pgqueue_{name}") for name in EVERY]
        urls += [reverse(f"admin:django_pgqueue_queue_{name}", args=[1]) for name in OF_A_QUEUE]
        answers = {url: admin_client.get(url) for url in urls}
        answers["post"] = admin_client.post(reverse("admin:django_pgqueue_queue_pause", args=[1]))

    told = "The database of the queues does not answer"
    assert {
        url: (answer.status_code, told in answer.content.decode())
        for url, answer in answers.items()
    } == dict.fromkeys(answers, (503, True))
