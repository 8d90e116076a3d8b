"""Harmful rows inserted with plain SQL: refused with a clear error, or harmless."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction

from django_pgqueue import queue
from django_pgqueue.models import BoundQueue, Message
from tests.conftest import run_sql


def insert(target: BoundQueue, **columns: Any) -> int:
    """Insert a message with plain SQL; returns its id."""
    columns["queue_id"] = Message.objects.resolve(target.name).pk
    names, values = ", ".join(columns), ", ".join(["%s"] * len(columns))
    [(number,)] = run_sql(
        f"INSERT INTO pgqueue_message ({names}) VALUES ({values}) RETURNING id",
        list(columns.values()),
    )
    return int(number)


@pytest.mark.parametrize(
    ("constraint", "column", "value"),
    [
        ("pgqueue_time_range", "enqueued_at", "infinity"),
        ("pgqueue_time_range", "enqueued_at", "-infinity"),
        ("pgqueue_time_range", "enqueued_at", "10000-01-01Z"),
        ("pgqueue_time_range", "enqueued_at", "0001-01-01Z"),
        ("pgqueue_time_range", "scheduled_at", "infinity"),
        ("pgqueue_time_range", "scheduled_at", "9999-12-31Z"),
        ("pgqueue_time_range", "expires_at", "-infinity"),
        ("pgqueue_priority_range", "priority", 101),
        ("pgqueue_priority_range", "priority", -101),
        ("pgqueue_key_length", "group_key", "x" * 256),
        ("pgqueue_key_length", "group_key", ""),
        ("pgqueue_key_length", "unique_key", "x" * 3000),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(orders, constraint, column, value):
    with pytest.raises(IntegrityError) as raised, transaction.atomic():
        insert(orders, **{column: value})

    assert raised.value.__cause__.diag.constraint_name == constraint  # type: ignore[union-attr]
    assert orders.metrics().length == 0


@pytest.mark.parametrize(
    ("column", "stored"), [("body", "as it is"), ("headers", "compressed by another table")]
)
def test_json_that_no_statement_could_return_is_refused(orders, column, stored):
    """A value that is small as jsonb, but more than 512 MB as text."""
    number = Message.objects.resolve(orders.name).pk
    made = "SELECT jsonb_build_object('n', jsonb_agg(n)) AS j FROM (SELECT '1e100000'::jsonb AS n"
    many = f"{made} FROM generate_series(1, 5400)) x"
    if stored == "compressed by another table":
        run_sql(f"CREATE TEMPORARY TABLE elsewhere ON COMMIT DROP AS {many}")
        [(size,)] = run_sql("SELECT pg_column_size(j) FROM elsewhere")
        assert size < 60000
        many = "SELECT j FROM elsewhere"
    orders.send(1)

    with pytest.raises(DatabaseError), transaction.atomic():
        run_sql(
            f"INSERT INTO pgqueue_message (queue_id, {column}) SELECT {number}, j FROM ({many}) x"
        )

    assert [message.body for message in orders.read(qty=9, in_transaction=True)] == [1]


def test_json_that_is_longer_as_text_is_read(orders):
    number = Message.objects.resolve(orders.name).pk
    made = "SELECT jsonb_agg('1e100000'::jsonb) FROM generate_series(1, 20)"

    run_sql(f"INSERT INTO pgqueue_message (queue_id, body) SELECT {number}, ({made})")

    [message] = orders.read(in_transaction=True)
    assert len(message.body) > 2_000_000


def test_the_first_and_the_last_moment_can_be_shown_in_every_time_zone(orders):
    insert(orders, enqueued_at="0001-01-02Z", body="1")
    insert(orders, enqueued_at="9999-12-30 23:59:59Z", body="2")
    connection.ensure_connection()

    for hours in (-15, 0, 14):
        run_sql(f"SET LOCAL TIME ZONE {hours}")
        years = [row[0].year for row in run_sql("SELECT enqueued_at FROM pgqueue_message")]
        assert sorted(years) == [1, 9999]
    run_sql("SET LOCAL TIME ZONE 'UTC'")
    assert {message.body for message in orders.read(qty=9, in_transaction=True)} == {1, 2}


def test_the_longest_keys_fit_their_indexes(orders):
    # Characters of four bytes each, all different.
    key = "".join(chr(0x10000 + n) for n in range(255))

    insert(orders, group_key=key, body="1")
    orders.send(2, unique=key)

    assert len(orders.read(qty=9, in_transaction=True)) == 2


@pytest.mark.parametrize("held", ["none", "reader", "batch", "group"])
@pytest.mark.parametrize("where", ["the same queue", "another queue"])
def test_the_same_id_again_blocks_no_queue(orders, held, where):
    """Simulates a switch-over that left the sequence behind."""
    Message.objects.create_queue("others")
    target = orders if where == "the same queue" else queue("others")
    count = 40 if held == "batch" else 3
    options = {"group": "g"} if held == "group" else {}
    first = orders.send_batch([f"old {n}" for n in range(count)], **options)
    if held != "none":
        early = orders.read(qty=20 if held == "batch" else 1, in_transaction=True)
    else:
        early = []

    run_sql("SELECT setval('pgqueue_message_id_seq', %s, false)", [first[0]])
    target.send_batch([f"new {n}" for n in range(count)], **options)

    seen = [message.body for message in early]
    orders.archive([message.receipt for message in early])
    for each in {orders.name, target.name}:
        while messages := queue(each).read(qty=20, in_transaction=True):
            seen += [message.body for message in messages]
            queue(each).archive([message.receipt for message in messages])
    assert sorted(seen) == sorted(f"{age} {n}" for age in ("old", "new") for n in range(count))
    assert orders.metrics().length == target.metrics().length == 0


def test_the_same_id_again_is_unfolded_from_a_batch_that_ran_out(orders):
    first = orders.send_batch(range(20))
    orders.read(qty=20, vt=0, in_transaction=True)
    run_sql("SELECT setval('pgqueue_message_id_seq', %s, false)", [first[0]])
    orders.send_batch(range(20, 40))
    orders.read(qty=5, vt=3600, in_transaction=True)

    bodies = [m.body for m in orders.read(qty=40, vt=3600, in_transaction=True)]
    bodies += [m.body for m in orders.read(qty=40, vt=3600, in_transaction=True)]

    assert len(bodies) == 35


def test_the_same_row_again_is_refused(orders):
    at = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    number = insert(orders, enqueued_at=at)

    with pytest.raises(DatabaseError), transaction.atomic():
        insert(orders, id=number, enqueued_at=at)
