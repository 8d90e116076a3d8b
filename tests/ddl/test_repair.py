"""Repairs for operators: lost sequences, sequences left behind, and messages in no table."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import DatabaseError, transaction

from django_pgqueue import queue
from django_pgqueue.models import ArchivedMessage, BoundQueue, Message
from tests.conftest import run_sql
from tests.waiting import until


def names(orders: BoundQueue) -> dict[str, Any]:
    return Message.objects.resolve(orders.name).tables


# The wake-up


@pytest.fixture
def without_wake(orders: BoundQueue) -> BoundQueue:
    """A queue whose sequence is lost, as after a partial restore."""
    run_sql(f"DROP SEQUENCE {names(orders)['wake']}")
    return orders


def test_sends_and_acks_work_without_the_sequence(without_wake):
    without_wake.send(1)
    without_wake.send_batch([2, 3], group="g")

    [*messages] = without_wake.read(qty=9, in_transaction=True)
    without_wake.archive([message.receipt for message in messages])
    [*behind] = without_wake.read(qty=9, in_transaction=True)

    assert [message.body for message in [*messages, *behind]] == [1, 2, 3]


def test_a_lost_sequence_is_made_anew(without_wake):
    tables = names(without_wake)

    assert run_sql("SELECT pgqueue_repair_wake(%s)", [tables["queue_id"]]) == [(True,)]
    assert run_sql("SELECT pgqueue_repair_wake(%s)", [tables["queue_id"]]) == [(False,)]

    without_wake.send(1)
    [(woken,)] = run_sql(f"SELECT pg_sequence_last_value('{tables['wake']}')")
    assert woken > 0


def test_a_sequence_that_cannot_be_read_is_made_anew_with_its_rights(orders):
    tables = names(orders)
    run_sql(
        f"CREATE ROLE pgqueue_test_sender; DROP SEQUENCE {tables['wake']};"
        # An unlogged sequence is the only other relation of this name that can be read as one.
        f"CREATE UNLOGGED SEQUENCE {tables['wake']};"
        f"GRANT USAGE, UPDATE ON {tables['wake']} TO pgqueue_test_sender WITH GRANT OPTION;"
        f"GRANT SELECT ON {tables['wake']} TO PUBLIC"
    )
    rights = f"SELECT relacl::text FROM pg_class WHERE oid = '{tables['wake']}'::regclass"
    before = run_sql(rights)
    run_sql(
        "UPDATE pg_class SET relam = relam, relfilenode = (SELECT relfilenode FROM pg_class "
        f"WHERE oid = 'pgqueue_recheck_idx'::regclass) WHERE oid = '{tables['wake']}'::regclass"
    )

    assert run_sql("SELECT pgqueue_repair_wake(%s)", [tables["queue_id"]]) == [(True,)]

    assert run_sql(rights) == before
    kind = f"SELECT relpersistence::text FROM pg_class WHERE relname = '{tables['wake']}'"
    assert run_sql(kind) == [("p",)]


def test_a_queue_that_is_gone_gets_no_sequence(db):
    assert run_sql("SELECT pgqueue_repair_wake(4711)") == [(False,)]


@pytest.mark.django_db(transaction=True)
def test_maintenance_makes_a_lost_sequence_anew(committed_orders):
    wake = names(committed_orders)["wake"]
    run_sql(f"DROP SEQUENCE {wake}")

    queue("orders").maintain()

    assert run_sql("SELECT to_regclass(%s) IS NOT NULL", [wake]) == [(True,)]


# Ids


def test_ids_are_put_ahead_of_all_that_are_there(orders):
    head = orders.send("head", group="g")
    run_sql("SELECT setval('pgqueue_message_id_seq', 1), setval('pgqueue_queue_id_seq', 1)")

    reached = dict(run_sql("SELECT * FROM pgqueue_advance_ids(100)"))

    assert reached["public.pgqueue_message_id_seq"] == head + 100
    assert orders.send(4) == head + 101
    assert Message.objects.create_queue("next").pk > Message.objects.resolve("orders").pk


def test_no_sequence_is_moved_back(orders):
    ahead = orders.send(1) + 1_000_000
    run_sql("SELECT setval('pgqueue_message_id_seq', %s)", [ahead])

    run_sql("SELECT pgqueue_advance_ids()")

    assert orders.send(2) == ahead + 1


def test_ids_of_nothing_stay(db):
    assert run_sql("SELECT count(*) > 0 FROM pgqueue_advance_ids(5)") == [(True,)]


@pytest.mark.parametrize("spare", [-1, None, 10**12 + 1, 2**63 - 1])
def test_no_more_ids_are_skipped_than_a_sequence_can_spare(orders, spare):
    """With 2^63-1 the sequences would have no ids left."""
    sent = orders.send(1)

    with pytest.raises(DatabaseError, match="spare must be"), transaction.atomic():
        run_sql("SELECT pgqueue_advance_ids(%s::bigint)", [spare])

    assert orders.send(2) == sent + 1


# Messages in no table


def place(orders: BoundQueue, batch: int = 10_000) -> tuple[int, int]:
    """Call the function to the end; returns how many messages it examined and placed."""
    looked = placed = last = 0
    while True:
        [(seen, done, reached)] = run_sql(
            "SELECT looked, placed, last FROM pgqueue_place_missing(%s, %s, %s)",
            [names(orders)["queue_id"], last, batch],
        )
        if not seen:
            return looked, placed
        looked, placed, last = looked + seen, placed + done, reached


def test_messages_inserted_without_triggers_get_their_place(orders):
    run_sql("SET LOCAL session_replication_role = replica")
    orders.send_batch(range(5))
    orders.send("urgent", priority=7)
    orders.send("later", delay=3600)
    orders.send_batch(["g1", "g2"], group="g")
    run_sql("SET LOCAL session_replication_role = origin")
    assert orders.read(qty=99, in_transaction=True) == []

    assert place(orders, batch=2) == (9, 9)
    assert place(orders) == (9, 0)

    metrics = orders.metrics()
    assert (metrics.length, metrics.delayed) == (9, 1)
    bodies = [message.body for message in orders.read(qty=99, in_transaction=True)]
    assert bodies[0] == "urgent"
    assert bodies[1:] == [0, 1, 2, 3, 4, "g1"]


def test_what_has_a_place_is_left_alone(orders):
    orders.send_batch(range(60))
    orders.send("later", delay=3600)
    orders.send_batch(["g1", "g2", "g3"], group="g")
    orders.read(qty=1, in_transaction=True)
    batch = orders.read(qty=20, in_transaction=True)
    orders.archive(orders.read(qty=3, in_transaction=True)[0].receipt)
    newest = "SELECT max(id) FROM pgqueue_ready WHERE group_key IS NULL"
    run_sql(f"DELETE FROM pgqueue_ready WHERE id = ({newest})")
    before = run_sql("SELECT id, state FROM pgqueue_live ORDER BY id")

    assert place(orders, batch=7) == (64, 1)

    after = run_sql("SELECT id, state FROM pgqueue_live ORDER BY id")
    assert len(batch) == 20
    assert len(set(after)) == len(after) == len(before) + 1


def test_a_message_that_expired_is_placed_to_expire_and_has_its_place_in_the_archive(orders):
    run_sql("SET LOCAL session_replication_role = replica")
    pk = orders.send(1, expires=0.001)
    run_sql("SET LOCAL session_replication_role = origin")
    until(lambda: run_sql("SELECT expires_at < clock_timestamp() FROM pgqueue_message")[0][0])

    assert place(orders) == (1, 1)
    assert orders.read(in_transaction=True) == []
    assert place(orders) == (1, 0)
    assert ArchivedMessage.objects.get(pk=pk).state == "EXPIRED"


@pytest.mark.parametrize(("after", "batch"), [(None, 1), (0, None), (0, 0), (0, -1)])
def test_a_place_to_look_from_that_would_find_nothing_is_refused(orders, after, batch):
    """after NULL used to end at once, as if no message were missing."""
    with pytest.raises(DatabaseError, match="after must be an id"), transaction.atomic():
        run_sql(
            "SELECT pgqueue_place_missing(%s, %s::bigint, %s::integer)",
            [names(orders)["queue_id"], after, batch],
        )


def test_a_queue_that_is_gone_is_said_to_be(db):
    with pytest.raises(DatabaseError, match="queue 4711 does not exist"), transaction.atomic():
        run_sql("SELECT * FROM pgqueue_place_missing(4711)")
