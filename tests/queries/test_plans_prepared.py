"""Plans that a server keeps for a prepared statement, which know nothing of the values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from django_pgqueue import queries
from django_pgqueue.models import BoundQueue, Message
from django_pgqueue.models.operations import prepared
from tests.conftest import run_sql
from tests.queries.plans import Plan, TooMuch, _walk

pytestmark = pytest.mark.slow

ANALYZE = (
    "ANALYZE pgqueue_ready, pgqueue_deferred, pgqueue_lease, pgqueue_message, pgqueue_archive, "
    "pgqueue_dedup"
)
# What stands for a part of a statement.
PARTS = {
    "read_ready": ("leased", ["lease_each", "lease_batch"]),
    "unfold": ("heads", ["unfold_given", "unfold_ids", "unfold_due"]),
}

MANY = 30_000
QTY = 10
TYPES = {
    "after": "interval",
    "at": "timestamptz",
    "batched": "boolean",
    "batches": "bigint",
    "bodies": "jsonb",
    "body": "jsonb",
    "conditional": "jsonb",
    "dedup_key": "text",
    "dedup_keys": "text[]",
    "delays": "float8[]",
    "due_after": "timestamptz",
    "errors": "text[]",
    "group": "text",
    "groups": "text[]",
    "headers": "jsonb",
    "heads": "bigint[]",
    "heed": "boolean",
    "ids": "bigint[]",
    "max_deliveries": "integer",
    "members": "text[]",
    "priority": "smallint",
    "qty": "bigint",
    "queue_id": "integer",
    "ran": "integer",
    "rank": "smallint",
    "read_ct": "integer",
    "receipts": "text[]",
    "vt": "interval",
    "window": "interval",
    "worker": "integer",
}


def texts(name: str, queue: BoundQueue) -> Iterator[str]:
    """A statement as it runs on a queue, in each of its forms; and as it runs on any queue."""
    forms = [Message.objects.resolve(queue.name).tables]
    if name in prepared.FOR_ANY:
        forms.append(prepared._names_for_any(unlogged=False))
    place, parts = PARTS.get(name, ("", [""]))
    for names in forms:
        for part in parts:
            tables = {**names, **queries.fence({"receipts": None}), "any_body": "true"}
            yield queries.render(name, {**tables, place: queries.Part(part)})


def kept(text: str) -> Callable[..., Plan]:
    """Have the server keep the plan of a statement; to be called to have it run and measured."""
    names = sorted(set(re.findall(r"%\((\w+)\)s", text)))
    for place, each in enumerate(names, 1):
        text = text.replace(f"%({each})s", f"${place}")
    types = TYPES | ({"after": "bigint"} if "rank" in names else {})
    types |= {"group": "text[]"} if "bodies" in names else {}
    declared = f"({', '.join(types[each] for each in names)})" if names else ""
    given = f"({', '.join(['%s'] * len(names))})" if names else ""

    def plan(**values: Any) -> Plan:
        with connection.cursor() as cursor:
            cursor.execute("SAVEPOINT measured")
            cursor.execute(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE kept {given}",
                [values[each] for each in names],
            )
            (explained,) = cursor.fetchone()
            cursor.execute("ROLLBACK TO measured")
        parsed = json.loads(explained) if isinstance(explained, str) else explained
        return Plan(text, list(_walk(parsed[0]["Plan"], 0)))

    run_sql("DEALLOCATE ALL; SET LOCAL plan_cache_mode = force_generic_plan")
    run_sql(f"PREPARE kept {declared} AS {text}")
    return plan


def values(name: str, ids: list[int]) -> dict[str, Any]:
    after = {"send_full": None, "send_batch_full": None, "send_once": None, "read_ready": 1}
    return {
        **dict.fromkeys(TYPES),
        "after": after.get(name, "60 s"),
        "batched": False,
        "batches": 1,
        "bodies": json.dumps(list(range(QTY))),
        "body": "1",
        "dedup_key": "key",
        "delays": [1.0] * len(ids),
        "due_after": "-infinity",
        "errors": ["wrong"] * len(ids),
        "heads": ids[:1],
        "heed": True,
        "ids": ids,
        "members": [f"{{{','.join(map(str, ids))}}}"],
        "priority": 0,
        "qty": QTY,
        "ran": 1,
        "rank": 0,
        "read_ct": 1,
        "vt": "30 s",
        "window": "5 min",
    }


@pytest.fixture(params=["ready", "in flight", "in batches", "delayed"])
def deep(request: pytest.FixtureRequest, orders: BoundQueue) -> BoundQueue:
    """A queue full of messages, ten of which are ready and ten just read."""
    run_sql(ANALYZE)  # as it is done while there are none
    orders.send_batch(range(MANY), delay=3600 if request.param == "delayed" else 0)
    if request.param == "in flight":
        orders.read(qty=MANY, vt=3600, in_transaction=True)
    if request.param == "in batches":
        run_sql("DELETE FROM pgqueue_ready")
        run_sql(
            "INSERT INTO pgqueue_lease (head, tail, vt, read_at, queue_id, priority, ids, "
            "enqueued_ats) SELECT id, id, now() + interval '1 hour', now(), queue_id, 0, "
            "ARRAY[id], ARRAY[enqueued_at] FROM pgqueue_message"
        )
    orders.send_batch(range(2 * QTY))
    return orders


@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "not analyzed"])
def test_what_is_prepared_goes_by_the_indexes(deep: BoundQueue, analyzed: bool) -> None:
    held = [message.id for message in deep.read(qty=QTY, in_transaction=True)]
    if analyzed:
        run_sql(ANALYZE)

    for name in sorted(prepared.HOT):
        for text in texts(name, deep):
            given = values(name, held) | {"queue_id": Message.objects.resolve(deep.name).pk}
            kept(text)(**given).check(rows=QTY * 10, buffers=QTY * 100)


def test_bodies_are_looked_up_by_the_key(deep: BoundQueue) -> None:
    held = [message.id for message in deep.read(qty=QTY, in_transaction=True)]
    number = Message.objects.resolve(deep.name).pk
    looking = "SELECT * FROM pgqueue_bodies(%(queue_id)s, %(ids)s, '-infinity', 'infinity')"

    kept(looking)(queue_id=number, ids=held).check(rows=QTY, buffers=QTY * 10)


def test_a_statement_for_any_queue_meets_the_leaves_of_one(committed_orders: BoundQueue) -> None:
    for number in range(5):
        Message.objects.create_queue(f"other-{number}")
    committed_orders.send_batch(range(QTY))
    number = Message.objects.resolve("orders").pk
    reading = queries.render(
        "read", {**prepared._names_for_any(unlogged=False), "any_body": "true"}
    )
    statement = prepared.Statement("read", reading)

    with transaction.atomic():
        run_sql("SET LOCAL plan_cache_mode = force_generic_plan")
        for _ in range(3):
            rows = statement.fetch(connection, {**values("read", []), "queue_id": number, "qty": 3})
        locked = run_sql(
            "SELECT DISTINCT relation::regclass::text FROM pg_locks WHERE pid = pg_backend_pid() "
            "AND relation::regclass::text ~ '_q[0-9]+$'"
        )

    assert len(rows) == 3
    assert locked == [(f"pgqueue_message_q{number}",)]


def test_a_plan_made_for_few_goes_through_all(db: None) -> None:
    """Why no plan is kept for long: the same statement, planned while the tables were empty."""
    run_sql("CREATE TEMP TABLE few (id bigint PRIMARY KEY)")
    run_sql("ANALYZE few")
    looking = "SELECT id FROM few WHERE id = ANY(%(ids)s::bigint[])"

    plan = kept(looking)
    plan(ids=[1])

    run_sql(f"INSERT INTO few SELECT generate_series(1, {MANY})")
    with pytest.raises(TooMuch, match=f"touches {MANY} rows"):
        plan(ids=[1]).check(rows=QTY, buffers=QTY)
    run_sql("DISCARD PLANS")
    plan(ids=[1]).check(rows=QTY, buffers=QTY)


def test_a_look_that_hopes_for_the_best_is_seen(orders: BoundQueue) -> None:
    orders.send_batch(range(MANY))
    run_sql("ANALYZE pgqueue_ready")
    number = Message.objects.resolve("orders").pk
    hoping = (
        "SELECT EXISTS (SELECT FROM pgqueue_ready "
        f"WHERE queue_id = {number} AND -priority < %(rank)s)"
    )

    with pytest.raises(TooMuch, match="reads all of pgqueue_ready"):
        kept(hoping)(rank=0).check(rows=QTY, buffers=QTY)
