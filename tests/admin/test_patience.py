"""No page occupies the database for long."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse

from django_pgqueue.admin import patience
from django_pgqueue.admin.search import Search
from django_pgqueue.models import BoundQueue

PAGES = ["message_changelist", "queue_changelist", "message_failures", "rollup_charts"]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_that_takes_too_long_says_so(
    admin_client: Client, orders: BoundQueue, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(patience, "SECONDS", 0.05)
    model = name.partition("_")[0]
    admin = "django_pgqueue.admin.base.PageAdmin.has_view_or_change_permission"
    view = "has_view_permission" if model == "rollup" else "has_view_or_change_permission"

    asked = []

    def slow(*args: Any, **kwargs: Any) -> bool:
        asked.append(args)
        if len(asked) == 1:  # not for the page that reports the timeout
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(60)")
        return True

    monkeypatch.setattr(admin.replace("has_view_or_change_permission", view), slow)

    response = admin_client.get(reverse(f"admin:django_pgqueue_{name}"))

    assert response.status_code == 503
    assert "took longer than 0.05 s" in response.content.decode()


def test_an_action_has_its_time(
    admin_client: Client, orders: BoundQueue, monkeypatch: pytest.MonkeyPatch, sql: Any
) -> None:
    orders.send(1)
    limits = []

    def asked(*args: Any, **kwargs: Any) -> Any:
        limits.append(sql("SHOW statement_timeout")[0][0])
        return {}

    monkeypatch.setattr(Search, "find", lambda *args, **kwargs: list(asked()))
    monkeypatch.setattr(Search, "extents", asked)
    url = reverse("admin:django_pgqueue_message_changelist", query={"state": "ready"})

    admin_client.get(url)
    admin_client.post(url, {"action": "archive_selected", "_selected_action": ["1"]})

    assert limits[0] == "10s"
    assert limits[-1] == "0"
    assert sql("SHOW statement_timeout") == [("0",)]
