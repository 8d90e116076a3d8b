"""Tests of create_queue, list_queues, drop_queue and purge."""

from __future__ import annotations

import datetime as dt
import re
from functools import partial
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from django_pgqueue.errors import (
    InvalidArgument,
    InvalidQueueName,
    QueueInUse,
    QueueMismatch,
    QueueNotFound,
)
from django_pgqueue.models import (
    ArchivedMessage,
    BoundQueue,
    LiveMessage,
    Message,
    Queue,
)
from tests.conftest import rolled_back, run_sql
from tests.factories import QueueFactory

BAD_NAMES = [
    "",
    " ",
    "a b",
    "x" * 64,
    "naïve",
    "队列",
    'say "hi"',
    "it's",
    "a;b",
    "a/b",
    "a$b",
    "a\x00b",
    "line\n",
    "orders; DROP TABLE pgqueue_queue; --",
    "'); DELETE FROM pgqueue_queue; --",
    "%s",
    "{message}",
    None,
    7,
    b"orders",
    ["orders"],
]


def relations() -> list[str]:
    """The database's relations with the package's name."""
    return [
        name
        for (name,) in run_sql("SELECT relname FROM pg_class WHERE relname ~ 'pgqueue' ORDER BY 1")
    ]


#: Limits that go together.
LIMITS = {"limit": 20, "rate": "100/s", "burst": 10, "group_limit": 5, "group_rate": "30/m"}

CONTRADICTIONS = [
    {"burst": 10},
    {"group_burst": 10},
    {"group_burst": 10, "group_rate": "1/s", "group_limit": 5},
]


# create_queue


def test_a_new_queue_has_the_defaults(db):
    queue = Message.objects.create_queue("orders")

    queue.refresh_from_db()
    assert (queue.name, queue.visibility_timeout, queue.notify) == ("orders", 30, True)
    assert (queue.max_deliveries, queue.dead_letter_queue, queue.retention) == (20, None, None)
    assert (queue.unlogged, queue.partition_interval, queue.paused) == (False, None, False)
    assert queue.unique_window is None
    assert [getattr(queue, name) for name in LIMITS] == [None] * 5
    assert queue.created_at is not None


def test_a_new_queue_takes_every_option(db):
    dead = Message.objects.create_queue("dead")

    Message.objects.create_queue(
        "orders",
        unlogged=True,
        partition_interval=3600,
        retention=dt.timedelta(days=7),
        visibility_timeout=5,
        max_deliveries=3,
        dead_letter_queue="dead",
        unique_window=60.5,
        **LIMITS,
        notify=False,
    )

    queue = Queue.objects.get(name="orders")
    assert (queue.unlogged, queue.partition_interval) == (True, dt.timedelta(hours=1))
    assert queue.retention == dt.timedelta(days=7)
    assert (queue.visibility_timeout, queue.max_deliveries) == (5, 3)
    assert (queue.dead_letter_queue, queue.notify) == (dead, False)
    assert queue.unique_window == dt.timedelta(seconds=60.5)
    assert {name: getattr(queue, name) for name in LIMITS} == LIMITS


def test_creating_a_queue_again_finds_it_whatever_the_case_and_changes_nothing(db):
    queue = Message.objects.create_queue("Orders", visibility_timeout=5)
    pk = Message.objects.send("orders", 1)
    before = relations()

    with pytest.warns(UserWarning, match="exists with visibility_timeout=5"):
        again = Message.objects.create_queue("ORDERS", visibility_timeout=99)

    assert again == queue
    assert (again.name, again.visibility_timeout) == ("Orders", 5)
    assert relations() == before
    assert Message.objects.read("orders")[0].id == pk


DIFFERENT: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"limit": 5}, "limit=None; create does not change it: queue('orders').alter(limit=5)"),
    ({"limit": 5}, {"limit": None}, "limit=5; create does not change it: queue('orders').alter("),
    ({}, {"burst": 5}, "burst=None; create does not change it: queue('orders').alter(burst=5)"),
    (
        {"retention": 0.5 + 86400},
        {"retention": dt.timedelta(days=2), "paused": True, "max_deliveries": 20},
        "retention=86400.5, paused=False; create does not change it: queue('orders').alter("
        "retention=172800, paused=True)",
    ),
    ({"dead_letter_queue": "dead"}, {"dead_letter_queue": "other"}, "dead_letter_queue='dead';"),
]


@pytest.mark.parametrize(("found", "asked", "words"), DIFFERENT)
def test_creating_a_queue_with_other_settings_warns_where_it_is_called(db, found, asked, words):
    for name in ("dead", "other"):
        Message.objects.create_queue(name)
    Message.objects.create_queue("orders", **found)

    for create in (partial(Message.objects.create_queue, "orders"), BoundQueue("orders").create):
        with pytest.warns(UserWarning, match=re.escape(f"'orders' exists with {words}")) as warned:
            create(**asked)

        assert [warning.filename for warning in warned] == [__file__]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"limit": 5, "retention": 60, "dead_letter_queue": "DEAD"},
        {
            "retention": dt.timedelta(minutes=1),
            "partition_interval": None,
            "visibility_timeout": 30,
        },
    ],
    ids=str,
)
def test_creating_a_queue_again_with_its_settings_says_nothing(db, asked):
    Message.objects.create_queue("dead")
    Message.objects.create_queue("orders", limit=5, retention=60, dead_letter_queue="dead")

    Message.objects.create_queue("orders", **asked)  # a warning would be an error


def test_a_queue_with_another_storage_than_asked_for_is_a_mismatch(db):
    Message.objects.create_queue("plain")
    Message.objects.create_queue("daily", partition_interval=86400, unlogged=True)

    with pytest.raises(QueueMismatch, match="unlogged=False, not True"):
        Message.objects.create_queue("plain", unlogged=True)
    with pytest.raises(QueueMismatch, match="partition_interval"):
        Message.objects.create_queue("plain", partition_interval=60)
    with pytest.raises(QueueMismatch):
        Message.objects.create_queue("daily", unlogged=False)
    assert Message.objects.create_queue("daily").unlogged


@pytest.mark.parametrize(
    ("kind", "persistence"), [({}, {"p"}), ({"unlogged": True}, {"u"})], ids=str
)
def test_only_an_unlogged_queue_has_unlogged_tables(db, kind, persistence):
    queue = Message.objects.create_queue("orders", **kind)

    found = run_sql(
        "SELECT relpersistence::text FROM pg_class WHERE relname IN (%s, %s)",
        [queue.tables["message"], queue.tables["archive"]],
    )

    assert {row[0] for row in found} == persistence


@pytest.mark.parametrize("unlogged", [False, True])
def test_a_partitioned_queue_puts_a_message_into_the_leaf_of_its_time(db, unlogged):
    queue = Message.objects.create_queue(
        "daily", partition_interval=dt.timedelta(days=1), unlogged=unlogged
    )

    pk = Message.objects.send("daily", 1)
    old = Message.objects.create(
        queue=queue, enqueued_at=dt.datetime(2001, 1, 1, tzinfo=dt.timezone.utc)
    )

    [(leaf,)] = run_sql("SELECT tableoid::regclass::text FROM pgqueue_message WHERE id = %s", [pk])
    [(old_leaf,)] = run_sql(
        "SELECT tableoid::regclass::text FROM pgqueue_message WHERE id = %s", [old.pk]
    )
    today = dt.datetime.now(dt.timezone.utc)
    assert leaf in {
        f"{queue.tables['message']}_p{day:%Y%m%d}000000"
        for day in (today, today - dt.timedelta(hours=1))
    }
    assert old_leaf == f"{queue.tables['message']}_default"
    assert [m.id for m in Message.objects.read("daily", qty=5)] == [pk, old.pk]


def test_a_rolled_back_create_leaves_nothing(db):
    before = relations()

    with rolled_back():
        Message.objects.create_queue("orders", partition_interval=60)
        Message.objects.send("orders", 1)

    assert relations() == before
    with pytest.raises(QueueNotFound):
        Message.objects.send("orders", 1)


@pytest.mark.parametrize("name", ["a", "x" * 63, "a.b-c_D.9", "0", "-", ".", "--", "select", "_"])
def test_a_name_has_1_to_63_letters_digits_dots_hyphens_and_underscores(db, name):
    Message.objects.create_queue(name)

    pk = Message.objects.send(name, 1)

    assert Message.objects.read(name)[0].id == pk
    assert Message.objects.drop_queue(name)


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_a_bad_name_is_refused_before_anything_is_asked_of_the_database(
    db, name, django_assert_num_queries
):
    objects = Message.objects
    operations = [
        lambda: objects.create_queue(name),
        lambda: objects.send(name, 1),
        lambda: objects.send_batch(name, [1]),
        lambda: objects.send_batch(name, [1] * 500),
        lambda: objects.read(name),
        lambda: objects.read_with_poll(name),
        lambda: objects.pop(name),
        lambda: objects.archive(name, 1),
        lambda: objects.delete(name, 1),
        lambda: objects.set_vt(name, 1, 1),
        lambda: objects.purge(name),
        lambda: objects.metrics(name),
        lambda: objects.drop_queue(name),
        lambda: BoundQueue(name),
    ]

    with django_assert_num_queries(0):
        for operation in operations:
            with pytest.raises(InvalidQueueName, match="1 to 63"):
                operation()

    assert not Queue.objects.exists()


@pytest.mark.parametrize(
    "options",
    [
        {"visibility_timeout": 0},
        {"visibility_timeout": -1},
        {"visibility_timeout": 1.5},
        {"visibility_timeout": True},
        {"visibility_timeout": 2**31},
        {"visibility_timeout": None},
        {"max_deliveries": 0},
        {"max_deliveries": "3"},
        {"retention": 0.5},
        {"retention": -1},
        {"retention": float("nan")},
        {"partition_interval": 0},
        {"partition_interval": "1 day"},
        {"partition_interval": True},
        {"unique_window": dt.timedelta(0)},
        {"dead_letter_queue": "bad name"},
        {"limit": 0},
        {"limit": 10_001},
        {"group_limit": "5"},
        {"rate": 100},
        {"rate": "0/s"},
        {"rate": "100/w"},
        {"group_rate": "1.5/s"},
        *CONTRADICTIONS,
    ],
    ids=str,
)
def test_a_bad_option_is_refused_and_no_queue_made(db, options):
    before = relations()

    with pytest.raises(InvalidArgument):
        Message.objects.create_queue("orders", **options)

    assert relations() == before
    assert not Queue.objects.exists()


@pytest.mark.parametrize("limits", CONTRADICTIONS, ids=str)
def test_limits_that_contradict_each_other_are_not_saved(db, limits):
    queue = Message.objects.create_queue("orders")
    for name, value in limits.items():
        setattr(queue, name, value)

    for refused in (queue.full_clean, queue.save):
        with pytest.raises((InvalidArgument, ValidationError), match="burst"):
            refused()

    queue.refresh_from_db()
    assert (queue.burst, queue.group_burst) == (None, None)


def test_an_unknown_dead_letter_queue_is_not_found(db):
    with pytest.raises(QueueNotFound, match="'dead'"):
        Message.objects.create_queue("orders", dead_letter_queue="dead")

    assert not Queue.objects.exists()


# list_queues


def test_queues_are_listed_by_name(db):
    for name in ("b", "a", "c"):
        Message.objects.create_queue(name)

    assert [queue.name for queue in Message.objects.list_queues()] == ["a", "b", "c"]


# drop_queue


@pytest.mark.parametrize(
    "kind", [{}, {"unlogged": True}, {"partition_interval": dt.timedelta(days=1)}], ids=str
)
def test_dropping_a_queue_leaves_nothing_of_it_and_all_of_the_others(db, kind):
    keep = QueueFactory()
    kept = Message.objects.send(keep, "kept")
    before = relations()
    Message.objects.create_queue("orders", **kind)
    _, archived, _ = Message.objects.send_batch("orders", [1, 2, 3])
    Message.objects.send("orders", 4, delay=60)
    Message.objects.archive("orders", archived)
    Message.objects.read("orders")

    assert Message.objects.drop_queue("ORDERS") is True

    assert relations() == before
    assert [m.pk for m in Message.objects.all()] == [kept]
    assert [m.pk for m in LiveMessage.objects.all()] == [kept]
    assert not ArchivedMessage.objects.exists()
    assert [queue.name for queue in Message.objects.list_queues()] == [keep.name]
    with pytest.raises(QueueNotFound):
        Message.objects.read("orders")


def test_dropping_a_queue_that_is_not_there_is_false(db):
    assert Message.objects.drop_queue("orders") is False


def test_a_dropped_queue_can_be_made_again_and_is_empty(orders):
    first = orders.send(1)
    orders.drop()

    orders.create()

    assert orders.metrics().length == 0
    assert orders.send(2) > first


def test_a_cycle_of_other_dead_letter_queues_does_not_hang(db):
    """Two saves at once can make one."""
    first, second, third = map(Message.objects.create_queue, ["first", "second", "third"])
    Queue.objects.filter(name="first").update(dead_letter_queue=second.pk)
    Queue.objects.filter(name="second").update(dead_letter_queue=first.pk)
    third.dead_letter_queue = Queue.objects.get(name="first")

    third.save()

    with pytest.raises(InvalidArgument, match="first -> second -> first"):
        Queue.objects.get(name="first").save()


def test_the_dead_letter_queue_of_another_cannot_be_dropped(db):
    Message.objects.create_queue("dead")
    Message.objects.create_queue("orders", dead_letter_queue="dead")

    with pytest.raises(QueueInUse, match="is the dead-letter queue of"):
        Message.objects.drop_queue("dead")

    Message.objects.send("dead", "still works")
    assert Message.objects.drop_queue("orders")
    assert Message.objects.drop_queue("dead")


# purge


@pytest.mark.parametrize("kind", [{}, {"unlogged": True}], ids=str)
def test_purge_deletes_every_live_message_and_says_how_many(db, kind):
    other = QueueFactory()
    kept = Message.objects.send(other, "kept")
    Message.objects.create_queue("orders", **kind)
    archived = Message.objects.send("orders", 0)
    Message.objects.archive("orders", archived)
    Message.objects.send_batch("orders", [1, 2, 3])
    Message.objects.send("orders", 4, delay=60)
    Message.objects.read("orders")

    assert Message.objects.purge("orders") == 4

    assert Message.objects.purge("orders") == 0
    assert set(Message.objects.values_list("pk", flat=True)) == {archived, kept}
    assert [m.pk for m in LiveMessage.objects.all()] == [kept]
    assert ArchivedMessage.objects.get().pk == archived


def test_purge_goes_in_batches(orders, monkeypatch):
    monkeypatch.setattr("django_pgqueue.engine.settle.settling.PURGE_BATCH", 7)
    orders.send_batch(range(20))
    orders.read(qty=5)

    assert orders.purge() == 20
    assert Message.objects.count() == 0


def test_a_purge_starts_no_ids_anew(orders):
    before = orders.send(1)
    orders.purge()

    assert orders.send(2) > before
