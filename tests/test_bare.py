"""Programs without Django: the engine imports no Django, and works on a psycopg connection."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from django_pgqueue import bare
from django_pgqueue.errors import (
    InvalidArgument,
    InvalidQueueName,
    QueueNotFound,
    TablesMissing,
    TransactionRefused,
)
from django_pgqueue.management.jobs import url_of
from django_pgqueue.models import ArchivedMessage, BoundQueue, Queue
from django_pgqueue.types import State

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "without_django.md"

BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"django", "asgiref"}:
            raise AssertionError(f"{name} is imported")

sys.meta_path.insert(0, Blocker())
"""


def run_without_django(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def dsn(committed_orders: BoundQueue) -> str:
    return url_of("default")


@pytest.fixture
def plain(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as plain:
        yield plain


def test_no_module_of_the_engine_imports_django():
    engine = ROOT / "django_pgqueue" / "engine"
    modules = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for file in engine.rglob("*.py")
        if file.stem != "__init__"
    ]

    assert len(modules) > 15
    run_without_django("\n".join(f"import {module}" for module in modules))


def test_the_page_runs_where_django_cannot_be_imported(committed_orders, dsn):
    committed_orders.send({"customer": 1})
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)

    told = run_without_django("\n".join(blocks), DATABASE_URL=dsn)

    assert told == "order 7\n"
    assert [message.body for message in committed_orders.read(qty=None)] == [{"order": 8}]
    ends = ArchivedMessage.objects.order_by("id").values_list("state", flat=True)
    assert list(ends) == [State.FAILED, State.COMPLETED]


def test_every_way_to_send_read_and_settle(committed_orders, plain):
    orders = bare.open_queue(plain, "Orders")
    bodies = [{"number": number} for number in range(600)]

    sent = [
        bare.send(orders, {"é": [1, None]}, headers={"h": 1}, priority=5, delay=-1),
        *bare.send_batch(orders, bodies[:2]),
        *bare.send_batch(orders, bodies, group="a"),
    ]
    first = bare.read(orders, vt=60, qty=3)
    followers = bare.read_grouped(orders, qty=20)
    waited = bare.read_with_poll(orders, max_poll_seconds=0.2, poll_interval_ms=10)

    assert [delivery.id for delivery in first] == [sent[0], *sent[1:3]]
    assert (first[0].body, first[0].headers) == ('{"é": [1, null]}', '{"h": 1}')
    assert [delivery.id for delivery in followers] == sent[3:23]
    assert waited == []
    assert bare.set_vt(orders, followers[0], 120) == [sent[3]]
    assert bare.archive(orders, first[:2]) == sent[:2]
    assert bare.retry(orders, {first[2].receipt: 0}) == [sent[2]]
    assert bare.fail(orders, {followers[0].receipt: "no"}) == [sent[3]]
    assert bare.archive(orders, first[0]).lost == [first[0].receipt]


def test_a_batch_is_leased_and_archived_as_one(plain):
    orders = bare.open_queue(plain, "orders")
    bare.send_batch(orders, list(range(200)))
    bare.read(orders, qty=50)

    found = bare.read(orders, qty=50)

    assert {delivery.receipt.batch for delivery in found} == {found[0].batch}
    assert found[0].batch is not None
    assert bare.archive(orders, found) == [delivery.id for delivery in found]


def test_a_read_returns_the_messages_that_it_failed(committed_orders, plain):
    Queue.objects.filter(name="orders").update(max_deliveries=1)
    orders = bare.open_queue(plain, "orders")
    bare.send(orders, 1)
    [delivery] = bare.read(orders, vt=0)

    found = bare.read(orders)

    assert found == []
    assert found.exhausted == [delivery.receipt]


def test_a_send_is_part_of_the_connections_transaction(committed_orders, dsn):
    with psycopg.connect(dsn) as plain:
        orders = bare.open_queue(plain, "orders")
        bare.send_batch(orders, list(range(1000)))
        plain.rollback()
        bare.send(orders, "kept")

    assert [message.body for message in committed_orders.read(qty=None)] == ["kept"]


def test_a_read_in_a_transaction_is_refused(plain):
    orders = bare.open_queue(plain, "orders")
    bare.send(orders, 1)

    with plain.transaction():
        with pytest.raises(TransactionRefused, match="autocommit=True"):
            bare.read(orders)
        assert len(bare.read(orders, in_transaction=True)) == 1
        assert len(bare.pop(orders)) == 0


def test_statements_that_run_often_are_prepared(plain):
    orders = bare.open_queue(plain, "orders")
    for number in range(7):
        bare.send(orders, number)

    kept = plain.execute("SELECT statement FROM pg_prepared_statements").fetchall()

    assert [text for (text,) in kept if text.startswith("-- Insert one message")]


def test_the_callers_own_cursors_stay_as_they_are(plain):
    plain.row_factory = psycopg.rows.dict_row

    orders = bare.open_queue(plain, "orders")

    assert bare.send(orders, {"a": 1}) > 0
    assert plain.execute("SELECT '[1]'::jsonb AS found").fetchone() == {"found": [1]}


def test_settings_are_those_of_pgqueue(committed_orders, plain):
    orders = bare.open_queue(plain, "orders", settings={"MASK": [r"card \d+"]})
    pk = bare.send(orders, 1)
    [delivery] = bare.read(orders)
    bare.fail(orders, {delivery.receipt: "card 4111 refused"})

    [(error,)] = plain.execute("SELECT error FROM pgqueue_archive WHERE id = %s", [pk])

    assert error == "******** refused"


@pytest.mark.parametrize("wrong", [{"MASK": "card"}, {"MASKS": []}, {"COPY_THRESHOLD": -1}])
def test_a_mistake_in_the_settings_is_refused(plain, wrong):
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        bare.open_queue(plain, "orders", settings=wrong)


def test_a_queue_that_is_not_there(plain):
    with pytest.raises(QueueNotFound, match="'mails' in database 'test_"):
        bare.open_queue(plain, "mails")
    with pytest.raises(InvalidQueueName):
        bare.open_queue(plain, "no name")
    plain.execute("SET search_path = pg_temp")
    with pytest.raises(TablesMissing, match=r"pgqueue_queue.* manage.py migrate$"):
        bare.open_queue(plain, "orders")
