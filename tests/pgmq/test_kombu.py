"""Kombu's PGMQ transport, by which Celery can use our queues, with the options of docs/pgmq.md."""

from __future__ import annotations

import re
from typing import Any

import pytest

from django_pgqueue.management.jobs import url_of
from django_pgqueue.models import LiveMessage
from tests.test_docs import ROOT

kombu = pytest.importorskip("kombu")
pytestmark = pytest.mark.django_db(transaction=True)


def shown() -> dict[str, Any]:
    """The settings of Celery that the page shows."""
    page = (ROOT / "docs" / "pgmq.md").read_text()
    [text] = re.findall(r"^```python\n(broker_url.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(text, names)
    return names


def test_celerys_transport_sends_and_receives_by_our_queues(committed_orders, committed_pgmq):
    told = shown()
    assert told["broker_url"].startswith("pgmq://")
    options = {**told["broker_transport_options"], "wait_time_seconds": 1}

    with (
        kombu.Connection(
            "pgmq://", transport_options={**options, "conn_string": url_of("default")}
        ) as connection,
        connection.SimpleQueue("orders") as orders,
    ):
        orders.put({"order": 7})
        assert LiveMessage.objects.get().queue.name == "orders"
        received = orders.get(timeout=10)
        assert received.payload == {"order": 7}
        received.ack()

    assert not LiveMessage.objects.exists()
