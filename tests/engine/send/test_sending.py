"""Tests of send and send_batch, and of other inserts that send."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import uuid
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from django_pgqueue.engine.send import sending as sending_module
from django_pgqueue.errors import InvalidMessage, QueueNotFound
from django_pgqueue.models import ArchivedMessage, BoundQueue, LiveMessage, Message
from tests.conftest import rolled_back, run_sql
from tests.factories import QueueFactory

LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc)


def bodies(queue: BoundQueue) -> list[Any]:
    return [message.body for message in queue.pop(qty=None)]


def send(queue: BoundQueue, count: int, body: Any, **options: Any) -> list[int]:
    """Send a message, or several of the same body in a batch; returns the ids."""
    if count == 1:
        return [queue.send(body, **options)]
    return queue.send_batch([body] * count, **options)


def states(queue: BoundQueue) -> dict[int, str]:
    return dict(LiveMessage.objects.filter(queue__name=queue.name).values_list("pk", "state"))


# Bodies and headers


@pytest.mark.parametrize(
    "body",
    [
        {"order": 7, "lines": [{"sku": "a", "n": 2}]},
        [1, 2, [3]],
        "text",
        "",
        7,
        0,
        -1.5,
        True,
        False,
        {},
        [],
        {"": ""},
        {"é": "日本語 🚀", "quote": "'\"\\", "tab": "a\tb\nc\r\x0b\x7f"},
        {"looks like NUL": "\\u0000", "two": "\\\\u0000"},
        {"percent": "100%s %(x)s %%", "brace": "{message} {0}"},
        "\\N",
        "\\.",
        "null",
        10**40,
    ],
)
def test_a_body_comes_back_as_it_was_sent(orders, body):
    orders.send(body, headers={"the same": body})
    orders.send_batch([body, body], headers=[{"the same": body}, None])

    one, two, three = orders.read(qty=3)

    assert [one.body, two.body, three.body] == [body] * 3
    assert [one.headers, two.headers, three.headers] == [{"the same": body}] * 2 + [None]
    assert type(one.body) is type(body)


def test_a_few_very_large_bodies_are_sent_as_well(orders, monkeypatch):
    monkeypatch.setattr(sending_module, "_LONGEST_ARRAY", 1000)
    bodies = [{"n": n, "text": "x" * 900} for n in range(3)]

    orders.send_batch(bodies, headers=[{"n": 0}, None, {"n": 2}])

    messages = orders.read(qty=None)
    assert [message.body for message in messages] == bodies
    assert [message.headers for message in messages] == [{"n": 0}, None, {"n": 2}]


@pytest.mark.parametrize("count", [1, 499, 500, 1200])
def test_a_batch_keeps_its_order_whichever_way_it_goes(orders, count):
    sent = [{"n": n, "text": "a\tb\n\\x\\N \u20ac\r"} for n in range(count)]

    ids = orders.send_batch(sent, headers=[{"n": n} for n in range(count)], group="g", priority=3)

    messages = orders.read_grouped(qty=count)
    assert ids == sorted(ids)
    assert [message.id for message in messages] == ids
    assert [message.body for message in messages] == sent
    assert [message.headers for message in messages] == [{"n": n} for n in range(count)]
    assert {(message.group, message.priority) for message in messages} == {("g", 3)}


def test_what_django_writes_as_json_is_sent_as_text(orders):
    moment = dt.datetime(2026, 11, 21, 12, 30, tzinfo=dt.timezone.utc)
    key = uuid.UUID(int=7)

    orders.send(
        {
            "at": moment,
            "day": moment.date(),
            "price": decimal.Decimal("1.10"),
            "key": key,
            "pair": (1, 2),
        }
    )

    [message] = orders.read()
    assert message.body == {
        "at": "2026-11-21T12:30:00Z",
        "day": "2026-11-21",
        "price": "1.10",
        "key": str(key),
        "pair": [1, 2],
    }


@pytest.mark.parametrize("count", [1, 3, 600])
def test_none_is_stored_as_sql_null_and_read_as_none(orders, count):
    send(orders, count, None)

    rows = run_sql("SELECT body IS NULL, headers IS NULL FROM pgqueue_message")
    assert rows == [(True, True)] * count
    assert [m.body for m in orders.read(qty=None)] == [None] * count


def test_json_null_inside_a_body_stays_where_it_is(orders):
    orders.send({"a": None})
    orders.send([None])

    assert bodies(orders) == [{"a": None}, [None]]


def test_a_json_null_body_sent_by_sql_is_read_as_none(orders):
    queue_id = Message.objects.resolve("orders").pk
    run_sql("INSERT INTO pgqueue_message (queue_id, body) VALUES (%s, 'null')", [queue_id])

    [message] = orders.read()

    assert message.body is None


def test_jsonb_normalises_key_order_duplicate_keys_and_spellings_of_numbers(orders):
    queue_id = Message.objects.resolve("orders").pk
    run_sql(
        "INSERT INTO pgqueue_message (queue_id, body) VALUES (%s, %s)",
        [queue_id, '{"bb": 1, "a": 1e2, "a": 1.0}'],
    )

    [message] = orders.read()

    assert list(message.body.items()) == [("a", 1.0), ("bb", 1)]


# Options


@pytest.mark.parametrize("delay", [60, 60.5, dt.timedelta(minutes=1)])
@pytest.mark.parametrize("count", [1, 2, 500])
def test_a_delayed_message_waits_for_its_time(orders, delay, count):
    ids = send(orders, count, "later", delay=delay)

    [vt] = set(LiveMessage.objects.values_list("vt", flat=True))
    assert orders.read(qty=None) == []
    assert states(orders) == dict.fromkeys(ids, "SCHEDULED")
    assert 55 < (vt - timezone.now()).total_seconds() <= 61


@pytest.mark.parametrize("count", [1, 2, 500])
def test_a_delay_until_an_aware_moment_is_that_moment(orders, count):
    moment = dt.datetime(2099, 1, 2, 3, 4, 5, 678, tzinfo=dt.timezone(dt.timedelta(hours=5)))

    send(orders, count, "then", delay=moment)

    assert set(LiveMessage.objects.values_list("vt", flat=True)) == {moment}
    assert set(Message.objects.values_list("scheduled_at", flat=True)) == {moment}


@pytest.mark.parametrize("delay", [0, None, -5, dt.timedelta(days=-1), 0.0, LONG_AGO])
@pytest.mark.parametrize("count", [1, 2, 500])
def test_a_delay_of_zero_or_into_the_past_is_no_delay(orders, delay, count):
    ids = send(orders, count, "now", delay=delay)

    assert states(orders) == dict.fromkeys(ids, "PENDING")
    assert [message.id for message in orders.read(qty=None)] == ids


def test_a_delay_counts_from_the_statement_and_not_from_the_transactions_start(orders):
    run_sql("SELECT pg_sleep(0.3)")
    [(started,)] = run_sql("SELECT now()")

    orders.send("later", delay=60)

    vt = LiveMessage.objects.get().vt
    assert vt - started > dt.timedelta(seconds=60.25)


def test_headers_and_group_may_be_one_for_all_or_one_for_each(orders):
    orders.send_batch([1, 2], headers={"h": 1}, group="g")
    orders.send_batch([3, 4], headers=[{"h": 3}, None], group=["x", None])

    assert {m.body: (m.headers, m.group) for m in orders.read_grouped(qty=4)} == {
        1: ({"h": 1}, "g"),
        2: ({"h": 1}, "g"),
        3: ({"h": 3}, "x"),
        4: (None, None),
    }


@pytest.mark.parametrize("count", [1, 2, 500])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"headers": {"h": 1}},
        {"priority": -7},
        {"group": "g"},
        {"delay": 60},
        {"headers": {"h": 1}, "priority": 7, "group": "g", "delay": 60},
    ],
    ids=lambda given: " ".join(given) or "nothing",
)
def test_what_is_said_of_a_message_is_stored_and_nothing_else(orders, count, given):
    send(orders, count, "body", **given)

    rows = run_sql(
        "SELECT body, headers, priority, group_key, unique_key,"
        " round(extract(epoch FROM scheduled_at - enqueued_at)) FROM pgqueue_message"
    )
    stored = {(json.loads(body), headers, *rest) for body, headers, *rest in rows}
    headers = json.dumps(given["headers"]) if "headers" in given else None
    assert stored == {
        ("body", headers, given.get("priority", 0), given.get("group"), None, given.get("delay"))
    }
    assert len(rows) == count


def test_bodies_may_come_from_any_iterable(orders):
    ids = orders.send_batch(number for number in range(3))

    assert len(ids) == 3
    assert bodies(orders) == [0, 1, 2]


def test_ids_are_one_sequence_for_all_queues(orders):
    other = QueueFactory()

    first = orders.send(1)
    second = Message.objects.send(other, 2)

    assert second > first
    assert Message.objects.get(pk=second).queue == other


# The transaction


def test_a_rolled_back_send_leaves_a_gap_in_the_ids(orders):
    first = orders.send(1)
    with rolled_back():
        lost = orders.send(2)

    third = orders.send(3)

    assert first < lost < third
    assert [message.id for message in orders.read(qty=9)] == [first, third]


def test_a_body_that_ends_the_copying_takes_back_what_was_copied(committed_orders):
    bodies = [*range(1_000), object(), *range(1_000)]

    with pytest.raises(InvalidMessage, match="object is not JSON serializable"):
        committed_orders.send_batch(bodies)

    assert run_sql("SELECT FROM pgqueue_message") == []
    assert len(committed_orders.send_batch(range(1_000))) == 1_000
    assert committed_orders.metrics().length == 1_000


OPTIONS: dict[str, Any] = {
    "headers": [{"h": 1}, None, {"tab\t": "back\\slash"}],
    "group": ["tab\tand\nline", None, "\\N"],
    "unique": ["a\\b", None, "c\td"],
    "priority": 3,
    "delay": dt.datetime(2100, 1, 1, tzinfo=dt.timezone.utc),
    "expires": dt.datetime(2101, 1, 1, tzinfo=dt.timezone.utc),
}


@pytest.mark.parametrize(
    "names", [(), *((name,) for name in OPTIONS), tuple(OPTIONS)], ids=lambda names: "+".join(names)
)
def test_copied_messages_have_the_columns_that_were_given(orders, pgqueue, names):
    bodies = [{"n": 1}, None, ["tab\t", "\\N"]]
    options = {name: OPTIONS[name] for name in names}
    fields = ("body", "headers", "group_key", "unique_key", "priority")
    fields += ("scheduled_at", "expires_at")

    def sent(threshold: int) -> list[dict[str, Any]]:
        pgqueue(COPY_THRESHOLD=threshold)
        ids = orders.send_batch(bodies, **options)
        return list(Message.objects.filter(pk__in=ids).order_by("pk").values(*fields))

    copied = sent(1)

    assert [row["body"] for row in copied] == bodies
    # Delayed and grouped ones are always copied; a repeated key counts once.
    if "unique" not in names:
        assert copied == sent(1000)
    for name, value in options.items():
        columns = {"delay": "scheduled_at", "expires": "expires_at"}
        columns |= {"group": "group_key", "unique": "unique_key"}
        column = columns.get(name, name)
        expected = value if isinstance(value, list) else [value] * 3
        assert [row[column] for row in copied] == expected


@pytest.mark.parametrize("count", [1, 2, 500])
def test_sending_to_an_unknown_queue_says_so_and_leaves_the_transaction_usable(orders, count):
    with transaction.atomic():
        with pytest.raises(QueueNotFound, match=r"no queue 'nowhere' in database 'default'"):
            send(BoundQueue("nowhere"), count, 1)
        orders.send("still works")

    assert orders.metrics().length == 1


# Other ways to send


def test_saving_a_message_by_the_orm_is_a_send(orders):
    queue = Message.objects.resolve("orders")

    message = Message.objects.create(queue=queue, body={"by": "create"}, headers={"h": 1})
    later = Message(queue=queue, scheduled_at=timezone.now() + dt.timedelta(hours=1))
    later.save()

    assert states(orders) == {message.pk: "PENDING", later.pk: "SCHEDULED"}
    [read] = orders.read(qty=5)
    assert (read.id, read.body, read.headers) == (message.pk, {"by": "create"}, {"h": 1})


def test_bulk_create_is_a_send_also_to_several_queues_at_once(orders):
    queue = Message.objects.resolve("orders")
    others = [QueueFactory(), QueueFactory(unlogged=True)]
    soon = timezone.now() + dt.timedelta(hours=1)

    messages = Message.objects.bulk_create(
        [
            Message(queue=target, body={"n": n}, scheduled_at=soon if n == 2 else None, priority=n)
            for target in (queue, *others)
            for n in range(3)
        ]
    )

    assert len({message.pk for message in messages}) == 9
    for target in (queue, *others):
        assert [m.body for m in Message.objects.read(target, qty=5)] == [{"n": 1}, {"n": 0}]
        assert Message.objects.metrics(target).delayed == 1


TABLES = ["pgqueue_message", "pgqueue_message_q{id}"]
KINDS = [{}, {"unlogged": True}, {"partition_interval": dt.timedelta(days=1)}]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("table", TABLES)
def test_an_insert_of_queue_id_and_body_alone_is_a_send(db, table, kind):
    queue = QueueFactory(**kind)
    table = table.format(id=queue.pk)

    [(pk,)] = run_sql(
        f"INSERT INTO {table} (queue_id, body) VALUES (%s, %s) RETURNING id",
        [queue.pk, json.dumps({"by": "sql"})],
    )

    [message] = Message.objects.read(queue, qty=5)
    assert (message.id, message.body, message.priority) == (pk, {"by": "sql"}, 0)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("table", TABLES)
def test_a_copy_of_queue_id_and_body_alone_is_a_send(db, table, kind):
    queue = QueueFactory(**kind)
    table = table.format(id=queue.pk)

    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY {table} (queue_id, body) FROM STDIN") as copy,
    ):
        for n in range(3):
            copy.write_row((queue.pk, json.dumps(n)))

    assert [m.body for m in Message.objects.read(queue, qty=5)] == [0, 1, 2]


def test_one_statement_may_send_to_several_queues_some_of_it_delayed(db):
    queues = [QueueFactory(), QueueFactory(unlogged=True), QueueFactory()]

    run_sql(
        "INSERT INTO pgqueue_message (queue_id, body, scheduled_at) "
        "SELECT q, to_jsonb(n), CASE n WHEN 2 THEN now() + interval '1 hour' END "
        "FROM unnest(%s) q, generate_series(1, 3) n",
        [[queue.pk for queue in queues]],
    )

    for queue in queues:
        assert [m.body for m in Message.objects.read(queue, qty=5)] == [1, 3]
        assert Message.objects.metrics(queue).delayed == 1


def test_an_insert_into_the_parent_puts_each_message_in_one_place_only(orders):
    queue_id = Message.objects.resolve("orders").pk

    for table in TABLES:
        run_sql(
            f"INSERT INTO {table.format(id=queue_id)} (queue_id, scheduled_at) "
            "VALUES (%s, NULL), (%s, now() + interval '1 hour')",
            [queue_id, queue_id],
        )

    assert sorted(states(orders).values()) == ["PENDING", "PENDING", "SCHEDULED", "SCHEDULED"]
    assert LiveMessage.objects.count() == Message.objects.count() == 4
    assert ArchivedMessage.objects.count() == 0


def test_an_insert_into_the_leaf_of_a_time_span_is_a_send_too(db):
    queue = QueueFactory(partition_interval=dt.timedelta(days=1))
    [(leaf,)] = run_sql(
        "INSERT INTO pgqueue_message (queue_id, body) VALUES (%s, '1') "
        "RETURNING tableoid::regclass::text",
        [queue.pk],
    )

    run_sql(f"INSERT INTO {leaf} (queue_id, body) VALUES (%s, '2')", [queue.pk])

    assert [m.body for m in Message.objects.read(queue, qty=5)] == [1, 2]


# A session's cached plans


def test_a_session_keeps_two_plans_for_each_queue_that_it_sends_to(db):
    """Every DDL statement, in any session, makes a session check all its plans."""

    def plans_after_a_send(name: str) -> int:
        Message.objects.create_queue(name)
        Message.objects.send(name, 1)
        return run_sql(
            "SELECT count(*) FROM pg_backend_memory_contexts WHERE name = 'CachedPlanSource' "
            "AND ident NOT LIKE '%%pg_backend_memory_contexts%%'"
        )[0][0]

    first, *more = (plans_after_a_send(f"queue-{number}") for number in range(4))

    assert [plans - first for plans in more] == [2, 4, 6]
