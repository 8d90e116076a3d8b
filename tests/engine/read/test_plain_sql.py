"""The SQL statements alone, as run by a client in another language."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from django_pgqueue.engine.read import positions
from django_pgqueue.engine.rows import Delivery
from django_pgqueue.engine.statements import render
from django_pgqueue.management.jobs import url_of
from django_pgqueue.models import ArchivedMessage, BoundQueue, LiveMessage, Message
from tests.conftest import run_sql

pytestmark = pytest.mark.django_db(transaction=True)

QTY = 20
COLUMNS = Delivery._fields


class Client:
    """A reader that has only the texts of the statements and its queue's id."""

    def __init__(self, queue_id: int, plain: psycopg.Connection[Any]) -> None:
        self.queue_id, self.plain = queue_id, plain

    def run(self, statement: str, params: dict[str, Any], **names: str) -> list[tuple[Any, ...]]:
        text = render(statement, self.queue_id, tuple(names.items()))
        return self.plain.execute(text, params).fetchall()

    def read(self, qty: int, *, heed: bool = True) -> list[dict[str, Any]]:
        params = {
            "vt": dt.timedelta(seconds=60),
            "qty": qty,
            "conditional": None,
            "process_id": None,
            "max_deliveries": 20,
            "heed": heed,
        }
        rows = self.run("read/read", params, any_body="true")
        return [dict(zip(COLUMNS, row, strict=False)) for row in rows]

    def promote(self) -> None:
        everything = {"batch": 1000, "groups": 1000, "rechecked": 0, "passed": []}
        self.run("groups/promote", {**everything, "alone": True})

    def archive(self, messages: list[dict[str, Any]]) -> list[int]:
        params = {
            "ids": [m["id"] for m in messages],
            "read_cts": [m["read_ct"] for m in messages],
            "read_ats": [m["read_at"] for m in messages],
            "ran": 1,
            "results": None,
        }
        return [pk for (pk,) in self.run("settle/archive", params)]


@pytest.fixture
def client(committed_orders: BoundQueue) -> Iterator[Client]:
    with psycopg.connect(url_of("default"), autocommit=True) as plain:
        yield Client(Message.objects.resolve("orders").pk, plain)


@pytest.mark.parametrize("qty", [1, 7, 100])
def test_read_and_archive_alone_drain_a_queue_with_a_batch_lease_that_ran_out(
    committed_orders, client, monkeypatch, qty
):
    monkeypatch.setattr(positions, "SWEEP_INTERVAL", 3600)
    sent = committed_orders.send_batch(range(3 * QTY))
    positions.position_in(Message.objects.resolve("orders").opened)._bounds = positions._START
    held = committed_orders.read(qty=QTY)
    assert run_sql("SELECT ids FROM pgqueue_lease") == [([m.id for m in held],)]
    run_sql("UPDATE pgqueue_lease SET vt = statement_timestamp() - interval '1 second'")

    seen: Counter[int] = Counter()
    while messages := client.read(qty):
        assert {m["note"] for m in messages} == {None}
        assert all(m["body"] is not None for m in messages)
        assert sorted(client.archive(messages)) == sorted(m["id"] for m in messages)
        seen.update({m["id"]: m["read_ct"] for m in messages})

    again = {m.id for m in held}
    assert seen == {pk: 2 if pk in again else 1 for pk in sent}
    assert not LiveMessage.objects.exists()
    assert run_sql("SELECT ids FROM pgqueue_lease") == []
    assert ArchivedMessage.objects.count() == len(sent)
    assert committed_orders.archive(held).lost == [m.receipt for m in held]


def test_with_promote_besides_they_drain_groups_in_their_order(committed_orders, client):
    for number in range(5):
        committed_orders.send_batch(range(number, 100, 5), group=f"group {number}")
    committed_orders.send_batch(range(100, 110))

    seen: list[Any] = []
    heed = True
    while True:
        rows = client.read(4, heed=heed)
        messages = [row for row in rows if row["note"] is None]
        rechecks = any(row["note"] == "recheck" for row in rows)
        if rechecks:
            client.promote()
        elif not messages:
            break
        assert len(client.archive(messages)) == len(messages)
        seen += [row["body"] for row in messages]

    assert sorted(seen) == list(range(110))
    for number in range(5):
        assert [n for n in seen if n < 100 and n % 5 == number] == list(range(number, 100, 5))
    assert run_sql("SELECT count(*) FROM pgqueue_group") == [(0,)]
