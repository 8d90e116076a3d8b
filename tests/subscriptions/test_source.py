"""What a source keeps for its subscriptions, and what is refused."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db.models import ProtectedError

from django_pgqueue import queue, signals
from django_pgqueue.ddl import run_sql as run_sql_files
from django_pgqueue.errors import InvalidArgument, PositionLost, QueueInUse, QueueMismatch
from django_pgqueue.models import BoundQueue, Message, Queue
from tests.actors import begin, call, commit
from tests.conftest import run_sql
from tests.hearing import heard
from tests.subscriptions.messages import bodies

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = dt.timedelta(hours=1)


def age(by: dt.timedelta) -> None:
    """Make messages and outcomes older."""
    run_sql("UPDATE pgqueue_message SET enqueued_at = enqueued_at - %s", [by])
    run_sql(
        "UPDATE pgqueue_archive SET enqueued_at = enqueued_at - %s, archived_at = archived_at - %s",
        [by, by],
    )


def complete(orders: BoundQueue, bodies: list[Any]) -> None:
    orders.send_batch(bodies)
    orders.archive(orders.read(qty=len(bodies)))


def test_retention_waits_for_the_slowest_subscription(committed_orders, audit):
    committed_orders.alter(retention=HOUR)
    queue("fast").subscribe(to="orders", start="earliest")
    complete(committed_orders, [1, 2, 3])
    age(2 * HOUR)
    fast = queue("fast").read(qty=9)
    queue("fast").archive(fast)

    assert committed_orders.maintain().removed == 0
    taken = audit.read(qty=2)
    assert committed_orders.maintain().removed == 0
    taken += audit.read(qty=2)
    assert committed_orders.maintain().removed == 3

    # What is in flight was copied.
    audit.release([taken[0].receipt])
    assert bodies(audit.read(qty=9)) == [1]


def test_after_keep_for_the_subscription_is_told_what_it_lost(committed_orders):
    committed_orders.alter(retention=HOUR)
    audit = queue("audit")
    audit.subscribe(to="orders", start="earliest", keep_for=3 * HOUR)
    complete(committed_orders, [1, 2, 3])
    age(2 * HOUR)
    assert committed_orders.maintain().removed == 0
    age(2 * HOUR)
    complete(committed_orders, [4])

    with heard(signals.messages_lost) as losses:
        assert committed_orders.maintain().removed == 3
        audit.maintain()
        audit.maintain()

    assert [each["count"] for each in losses] == [3]
    assert bodies(audit.read(qty=9)) == [4]
    assert run_sql("SELECT lost, told FROM pgqueue_cursor") == [(3, 3)]


def test_a_partition_is_not_dropped_while_a_subscription_needs_it(committed):
    Message.objects.create_queue(
        "daily", partition_interval=dt.timedelta(days=1), retention=dt.timedelta(days=1)
    )
    daily, audit = queue("daily"), queue("audit")
    audit.subscribe(to="daily", start="earliest")
    number = Queue.objects.get(name="daily").pk
    old = dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=9)
    run_sql(
        "INSERT INTO pgqueue_message (queue_id, body, enqueued_at) SELECT %s, to_jsonb(n), %s "
        "FROM generate_series(1, 3) n",
        [number, old],
    )
    daily.archive(daily.read(qty=3))
    run_sql("UPDATE pgqueue_archive SET archived_at = %s", [old])

    assert daily.maintain().removed == 0
    taken = audit.read(qty=9)
    assert bodies(taken) == [1, 2, 3]
    assert daily.maintain().removed == 3
    audit.release([taken[1].receipt])
    assert bodies(audit.read(qty=9)) == [2]


def test_a_source_can_be_partitioned_and_new_partitions_are_watched(committed_orders, audit):
    committed_orders.send_batch([1, 2])
    committed_orders.repartition(dt.timedelta(days=1))
    committed_orders.send_batch([3, 4])
    Queue.objects.forget_all()

    assert bodies(audit.read(qty=3)) == [1, 2, 3]
    committed_orders.purge()
    assert bodies(audit.read(qty=9)) == [4]
    number = Queue.objects.get(name="orders").pk
    unwatched = run_sql(
        "SELECT relid::regclass::text FROM pg_partition_tree(%s) t WHERE isleaf AND NOT EXISTS ("
        "SELECT FROM pg_trigger WHERE tgrelid = t.relid AND tgname = 'pgqueue_message_left')",
        [f"pgqueue_message_q{number}"],
    )
    assert unwatched == []


def test_sends_to_a_subscription_are_refused(committed_orders, audit):
    with pytest.raises(InvalidArgument, match=r"'audit' is a subscription: send to its source"):
        audit.send("x")
    with pytest.raises(InvalidArgument, match="send to its source"):
        audit.send_batch(["x"])
    queue("dead").create()
    queue("dead").send("x")
    with pytest.raises(InvalidArgument, match="only its own dead letters"):
        queue("dead").redrive(to="audit")
    with pytest.raises(InvalidArgument, match="no dead letters"):
        audit.redrive(to="dead")
    with pytest.raises(InvalidArgument, match="name its source"):
        queue("dead").replay(to="audit")


def test_a_topic_reaches_a_subscription_through_its_source(committed_orders, audit):
    Message.objects.bind("order.#", "audit")
    Message.objects.bind("order.paid", "orders")

    assert list(Message.objects.publish("order.paid", "x")) == ["orders"]

    assert bodies(audit.read(qty=9)) == ["x"]


def test_a_source_is_not_dropped_while_it_has_subscriptions(committed_orders, audit):
    with pytest.raises(QueueInUse, match="source of audit: drop these subscriptions first"):
        committed_orders.drop()
    with pytest.raises(ProtectedError):
        Queue.objects.get(name="orders").delete()

    assert audit.drop() is True
    assert committed_orders.drop() is True


@pytest.mark.parametrize(
    ("name", "to", "settings", "why"),
    [
        ("other", "audit", {}, "'audit' is a subscription, which has no messages of its own"),
        ("orders", "orders", {}, "cannot subscribe to itself"),
        ("other", "orders", {"dead_letter_queue": "orders"}, "form a cycle"),
        ("other", "orders", {"dead_letter_queue": "audit"}, "cannot be 'audit', which is a"),
        ("other", "orders", {"start": "tomorrow"}, 'start must be "now", "earliest"'),
        ("other", "orders", {"keep_for": -1}, "keep_for"),
    ],
)
def test_a_subscription_that_cannot_be_is_refused(committed_orders, audit, name, to, settings, why):
    with pytest.raises(InvalidArgument, match=why):
        queue(name).subscribe(to=to, **settings)

    assert Queue.objects.filter(source=None).count() == 1
    assert Queue.objects.count() == 2


def test_another_kind_of_queue_with_the_name_is_a_mismatch(committed_orders, audit):
    queue("plain").create()
    queue("second").create()

    with pytest.raises(QueueMismatch, match="'plain' exists with source=None, not 'orders'"):
        queue("plain").subscribe(to="orders")
    with pytest.raises(QueueMismatch, match="'audit' exists with source='orders', not 'second'"):
        queue("audit").subscribe(to="second")
    with pytest.warns(UserWarning, match="'audit' exists with max_deliveries=20"):
        queue("audit").subscribe(to="orders", max_deliveries=5)


def test_settings_of_subscriptions_and_of_queues_are_kept_apart(committed_orders, audit):
    with pytest.raises(InvalidArgument, match="keep_for is a setting of subscriptions"):
        committed_orders.alter(keep_for=HOUR)
    with pytest.raises(InvalidArgument, match="a subscription has no group_limit"):
        audit.alter(group_limit=2)
    with pytest.raises(IntegrityError), transaction.atomic():
        run_sql("UPDATE pgqueue_queue SET keep_for = '1 h' WHERE name = 'orders'")
    with pytest.raises(IntegrityError), transaction.atomic():
        run_sql("UPDATE pgqueue_queue SET unlogged = true WHERE name = 'audit'")
    assert audit.alter(keep_for=HOUR, archive_completed=True).keep_for == HOUR


def test_the_dead_letters_of_a_source_may_not_come_back_through_a_subscription(
    committed_orders, audit
):
    queue("dead").create()
    audit.alter(dead_letter_queue="dead")

    with pytest.raises(InvalidArgument, match="dead -> orders -> audit -> dead"):
        queue("dead").alter(dead_letter_queue="orders")


def test_concurrent_calls_make_one_subscription(committed_orders, actors):
    company = actors(4)

    futures = [
        each.start(call, "subscribe", "audit", to="orders", start="earliest") for each in company
    ]

    for future in futures:
        future.result(timeout=60)
    assert Queue.objects.filter(source__isnull=False).count() == 1
    assert run_sql("SELECT count(*) FROM pgqueue_cursor") == [(1,)]


def test_a_subscription_is_part_of_the_callers_transaction(committed_orders):
    with transaction.atomic():
        queue("audit").subscribe(to="orders", start="earliest")
        transaction.set_rollback(True)

    assert not Queue.objects.filter(name="audit").exists()
    committed_orders.send("x")
    queue("audit").subscribe(to="orders", start="earliest")
    assert bodies(queue("audit").read()) == ["x"]


def test_a_subscription_begins_where_it_is_told(committed_orders, audit, actor):
    first = committed_orders.send(1)
    actor.do(begin)
    actor.do(call, "send", "orders", "open")
    moment = run_sql("SELECT clock_timestamp()")[0][0]
    second = committed_orders.send(2)
    starts = {"now": "now", "earliest": "earliest", "moment": moment, "id": second}

    for name, start in starts.items():
        queue(name).subscribe(to="orders", start=start)
    actor.do(commit)
    committed_orders.send(3)

    got = {name: bodies(queue(name).read(qty=9)) for name in starts}
    assert first < second
    assert got == {
        "now": ["open", 3],
        "earliest": [1, "open", 2, 3],
        "moment": [2, "open", 3],
        "id": [2, "open", 3],
    }


def test_groups_and_partitions_of_a_subscription_are_refused(committed_orders, audit):
    with pytest.raises(InvalidArgument, match="it keeps no groups"):
        audit.group("x").pause()
    with pytest.raises(InvalidArgument, match="Partition that one"):
        audit.repartition(HOUR)
    with pytest.raises(InvalidArgument, match="limit"):
        audit.lag(limit=-1)
    committed_orders.group("x").limit(2)
    Queue.objects.filter(name="audit").update(has_slots=True)
    Queue.objects.forget_all()
    committed_orders.send("x", group="x")

    assert bodies(audit.read(qty=9)) == ["x"]


def test_a_limit_set_later_loses_no_message_of_an_expired_lease(committed_orders, audit):
    committed_orders.send_batch([1, 2])
    audit.read(qty=2, vt=0)
    audit.alter(limit=5)
    Queue.objects.forget_all()

    assert bodies(audit.read(qty=9)) == [1, 2]


def test_what_leaves_after_a_restore_is_kept_until_the_subscription_goes_on(
    committed_orders, audit
):
    committed_orders.send_batch([1, 2])
    audit.archive(audit.read(qty=2))
    # Another system, whose transactions have lower numbers.
    run_sql("UPDATE pgqueue_cursor SET system = 1, since = '900000000:900000000:', number = 9")
    ids = committed_orders.send_batch([3, 4])
    committed_orders.delete(ids[0])

    for _ in range(3):
        with pytest.raises(PositionLost):
            audit.read(qty=9)
    audit.seek(ids[0])

    found = audit.read(qty=9)
    assert sorted(bodies(found)) == [3, 4]
    assert {message.read_ct for message in found} == {1}


def test_without_the_migration_a_subscription_is_an_ordinary_queue(committed_orders, audit):
    committed_orders.send_batch([1, 2])
    audit.release([audit.read(qty=1)[0].receipt])
    audit.read(qty=1)
    reverse = run_sql_files._read("subscriptions")[1]
    with transaction.atomic():
        run_sql(reverse.split("DROP TRIGGER pgqueue_message_left")[0].replace("{schema}", "public"))
        Queue.objects.filter(name="audit").update(keep_for=None)
        run_sql("UPDATE pgqueue_queue SET source_id = NULL WHERE name = 'audit'")
        Queue.objects.forget_all()
        audit.send(3)

        found = audit.read(qty=9, in_transaction=True)
        assert sorted(bodies(found))[-1] == 3
        assert run_sql("SELECT count(*) FROM pgqueue_lease") == [(0,)]
        transaction.set_rollback(True)
    Queue.objects.forget_all()
