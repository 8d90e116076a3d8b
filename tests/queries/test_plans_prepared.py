"""Plans that a server keeps for a prepared statement, which know nothing of the values."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.db import connection

from django_pgqueue import queries
from django_pgqueue.models import BoundQueue, Message
from tests.conftest import run_sql
from tests.queries.plans import Plan, TooMuch, _walk

pytestmark = pytest.mark.slow

MANY = 30_000
QTY = 10
TYPES = {
    "after": "bigint",
    "conditional": "jsonb",
    "due_after": "timestamptz",
    "heed": "boolean",
    "ids": "bigint[]",
    "max_deliveries": "integer",
    "qty": "bigint",
    "ran": "integer",
    "rank": "smallint",
    "read_ct": "integer",
    "receipts": "text[]",
    "vt": "interval",
    "worker": "integer",
}


def plan(name: str, queue: BoundQueue, statement: str = "", **values: Any) -> Plan:
    """The plan of a statement that the server keeps, run and measured."""
    found = Message.objects.resolve(queue.name)
    fence = queries.fence({"receipts": None})
    text = statement or queries.render(name, {**found.tables, **fence})
    names = sorted(set(re.findall(r"%\((\w+)\)s", text)))
    for place, each in enumerate(names, 1):
        text = text.replace(f"%({each})s", f"${place}")
    types = ", ".join(TYPES[each] for each in names)
    run_sql("SET LOCAL plan_cache_mode = force_generic_plan")
    with connection.cursor() as cursor:
        cursor.execute(f"PREPARE kept ({types}) AS {text}")
        given = ", ".join(["%s"] * len(names))
        cursor.execute(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE kept ({given})",
            [values[each] for each in names],
        )
        (explained,) = cursor.fetchone()
        cursor.execute("DEALLOCATE kept")
    parsed = json.loads(explained) if isinstance(explained, str) else explained
    return Plan(text, list(_walk(parsed[0]["Plan"], 0)))


READ = {"vt": "30 s", "qty": QTY, "worker": None}
BEHIND = {**READ, "rank": 0, "after": 1, "due_after": "-infinity"}


@pytest.fixture(params=["ready", "in flight", "delayed"])
def deep(request: pytest.FixtureRequest, orders: BoundQueue) -> BoundQueue:
    orders.send_batch(range(MANY), delay=3600 if request.param == "delayed" else 0)
    if request.param == "in flight":
        orders.read(qty=MANY, vt=3600, in_transaction=True)
    orders.send_batch(range(QTY))
    run_sql("ANALYZE pgqueue_ready, pgqueue_deferred, pgqueue_message")
    return orders


def test_a_read_behind_a_claim_goes_by_the_indexes(deep: BoundQueue) -> None:
    plan("read_ready", deep, **BEHIND).check(rows=QTY * 10, buffers=QTY * 100)


def test_a_read_goes_by_the_indexes(deep: BoundQueue) -> None:
    given = {**READ, "heed": True, "conditional": None, "max_deliveries": None}

    plan("read", deep, **given).check(rows=QTY * 10, buffers=QTY * 100)


def test_an_ack_goes_by_the_indexes(deep: BoundQueue) -> None:
    ids = [message.id for message in deep.read(qty=QTY, in_transaction=True)]

    plan("archive", deep, ids=ids, read_ct=1, ran=1).check(rows=QTY * 10, buffers=QTY * 100)


def test_a_look_that_hopes_for_the_best_is_seen(orders: BoundQueue) -> None:
    orders.send_batch(range(MANY))
    run_sql("ANALYZE pgqueue_ready")
    number = Message.objects.resolve("orders").pk
    hoping = (
        "SELECT EXISTS (SELECT FROM pgqueue_ready "
        f"WHERE queue_id = {number} AND -priority < %(rank)s)"
    )

    with pytest.raises(TooMuch, match="reads all of pgqueue_ready"):
        plan("", orders, hoping, rank=0).check(rows=QTY, buffers=QTY)
