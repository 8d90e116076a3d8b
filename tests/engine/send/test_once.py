"""Unique keys: the second send of a key returns the first id and adds nothing."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import transaction

from django_pgqueue import signals
from django_pgqueue.errors import InvalidArgument, MessageCancelled
from django_pgqueue.models import BoundQueue, Message, Queue
from tests.conftest import rolled_back
from tests.hearing import heard


def test_the_second_send_returns_the_first_id_and_adds_nothing(orders):
    first = orders.send("one", unique="k")

    assert orders.send("two", unique="k", group="g", delay=5) == first
    [message] = orders.read(qty=10)
    assert (message.id, message.body) == (first, "one")


def test_a_key_counts_even_when_its_message_is_done(orders):
    first = orders.send("one", unique="k")
    orders.archive(orders.read())

    assert orders.send("two", unique="k") == first
    assert orders.read() == []


def test_other_keys_other_queues_and_no_key_are_free(orders):
    Message.objects.create_queue("mails")

    ids = {
        orders.send(1, unique="k"),
        orders.send(1, unique="K"),
        orders.send(1),
        orders.send(1),
        BoundQueue("mails").send(1, unique="k"),
    }

    assert len(ids) == 5


def test_a_key_is_free_again_after_the_window(db, sql):
    Message.objects.create_queue("orders", unique_window=dt.timedelta(hours=1))
    orders = BoundQueue("orders")
    first = orders.send("one", unique="k")
    sql("UPDATE pgqueue_claim SET until = until - interval '59 minutes'")
    assert orders.send("two", unique="k") == first

    sql("UPDATE pgqueue_claim SET until = until - interval '1 minute'")

    second = orders.send("three", unique="k")
    assert second != first
    assert orders.send("four", unique="k") == second
    assert [message.body for message in orders.read(qty=10)] == ["one", "three"]


@pytest.mark.parametrize("until", ["started", "done"])
@pytest.mark.parametrize("group", [None, "g"])
def test_a_message_that_has_expired_holds_no_key_before_a_read_archives_it(
    orders, sql, until, group
):
    first = orders.send("late", unique="k", until=until, expires=60, group=group)
    assert orders.send("again", unique="k", until=until) == first
    sql("UPDATE pgqueue_message SET expires_at = statement_timestamp()")

    second = orders.send("in time", unique="k", until=until, group=group)

    assert second != first
    assert [message.body for message in orders.read(qty=5)] == ["in time"]


def test_a_message_in_flight_holds_its_key_though_it_has_expired(orders, sql):
    first = orders.send("handled", unique="k", until="done", expires=60)
    [message] = orders.read()
    sql("UPDATE pgqueue_message SET expires_at = statement_timestamp()")

    assert orders.send("again", unique="k", until="done") == first
    orders.set_vt(message, 0)
    assert orders.send("now", unique="k", until="done") != first


def test_keys_that_ran_out_are_swept_by_later_sends(orders, sql):
    for number in range(4):
        orders.send(number, unique=f"old {number}")
    sql("UPDATE pgqueue_claim SET until = statement_timestamp()")

    orders.send(5, unique="new")
    orders.send(6, unique="newer")

    assert sql("SELECT count(*) FROM pgqueue_claim") == [(2,)]


def test_a_key_that_is_held_is_not_written_again(orders, sql):
    row = "SELECT ctid::text, xmin::text, xmax::text FROM pgqueue_claim"
    ids = orders.send_batch([1, 2], unique=["a", "b"])
    rows = sql(row)

    with transaction.atomic():
        assert orders.send(3, unique="a") == ids[0]
        assert orders.send_batch([4, 5, 6], unique=["b", "a", "a"]) == [ids[1], ids[0], ids[0]]

    assert sql(row) == rows


def test_duplicates_leave_no_dead_rows(committed_orders, sql):
    keys = [str(number) for number in range(1000)]
    committed_orders.send_batch(keys, unique=keys)
    pages = "SELECT pg_relation_size('pgqueue_claim')"
    size = sql(pages)

    for _ in range(100):
        committed_orders.send_batch(keys, unique=keys)

    assert sql(pages) == size
    assert sql("SELECT count(*) FROM pgqueue_claim") == [(1000,)]


@pytest.mark.parametrize("count", [4, 700])
def test_a_batch_adds_what_is_new_and_tells_the_ids_of_the_rest(orders, count):
    known = orders.send("known", unique="k1")
    keys = [None, "k1", "k2", "k2", *(f"x{n}" for n in range(count - 4))]

    ids = orders.send_batch(list(range(count)), unique=keys, headers={"h": 1})

    assert ids[1] == known
    assert ids[2] == ids[3]
    assert len(set(ids)) == count - 1
    added = orders.read(qty=None)
    assert [message.body for message in added] == ["known", 0, 2, *range(4, count)]
    assert orders.send_batch(list(range(count)), unique=keys)[1:] == ids[1:]


def test_a_batch_in_which_no_message_has_a_key_says_too_that_nothing_was_skipped(orders):
    sent = orders.send_batch([1, 2], unique=[None, None])

    assert [each.conflict for each in sent] == [None, None]


def test_a_batch_claims_new_keys_and_those_that_are_free_again(orders, sql):
    ended, held = orders.send_batch([1, 2], unique=["ended", "held"])
    sql("UPDATE pgqueue_claim SET until = statement_timestamp() WHERE unique_key = 'ended'")

    sent = orders.send_batch([3, 4, 5, 6, 7], unique=["held", "new", "ended", None, "new"])

    assert [each.conflict for each in sent] == ["skipped", None, None, None, "skipped"]
    assert (sent[0], sent[4]) == (held, sent[1])
    assert len({ended, held, *sent}) == 5
    assert orders.send_batch([8, 9], unique=["new", "ended"]) == [sent[1], sent[2]]


def test_a_rolled_back_send_frees_its_key(orders):
    with rolled_back():
        first = orders.send("one", unique="k")

    assert orders.send("two", unique="k") != first
    assert [message.body for message in orders.read(qty=10)] == ["two"]


# Until its message started, or is done

ENDS: dict[str, Callable[[Any, Any], Any]] = {
    "ack": lambda orders, m: orders.archive(m),
    "reject": lambda orders, m: m.reject("no"),
    "cancel": lambda orders, m: orders.cancel(m.id),
    "delete": lambda orders, m: orders.delete(m),
    "purge": lambda orders, m: orders.purge(),
    "erase": lambda orders, m: Message.objects.filter(pk=m.id).delete(),
    "complete a batch": lambda orders, m: orders.complete([m.receipt]),
}


def delivered(orders: Any) -> Any:
    [message] = orders.read()
    return message


def claimed_again(orders: Any, **options: Any) -> bool:
    return orders.send("again", unique="k", **options).conflict is None


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("dead_letters", [False, True])
def test_a_key_is_held_until_its_message_is_done(db, end, dead_letters):
    Message.objects.create_queue("dead")
    Message.objects.create_queue("orders", dead_letter_queue="dead" if dead_letters else None)
    orders = BoundQueue("orders")
    first = orders.send("first", unique="k", until="done")
    assert orders.send("again", unique="k", until="done") == first
    message = delivered(orders)
    assert not claimed_again(orders, until="done")
    message.nack(delay=0)
    assert not claimed_again(orders, until="done")
    message = delivered(orders)

    end(orders, message)

    assert claimed_again(orders, until="done")
    assert not claimed_again(orders, until="done")


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("delay", [0, 60])
@pytest.mark.parametrize("until", ["started", "done"])
def test_a_message_holds_its_key_wherever_it_waits(orders, until, delay, group):
    orders.send("before", group=group)
    orders.send("first", unique="k", until=until, delay=delay, group=group)

    assert not claimed_again(orders)


@pytest.mark.parametrize("qty", [1, 200])
def test_a_key_is_held_until_the_first_delivery(orders, qty):
    others = orders.send_batch(list(range(qty - 1))) if qty > 1 else []
    first = orders.send("first", unique="k", until="started")
    assert not claimed_again(orders, until="started")

    read = orders.read(qty=qty)

    assert [m.id for m in read] == [*others, first]
    for message in read:
        message.nack(delay=0)
    assert claimed_again(orders, until="started")
    assert not claimed_again(orders, until="started")


def test_a_key_is_held_while_its_message_has_a_batch_lease(committed_orders, sql):
    orders = committed_orders
    orders.send_batch(range(100), unique=[*[None] * 20, "k", *[None] * 79], until="done")
    orders.archive(orders.read(qty=20))
    messages = orders.read(qty=20)
    assert sql("SELECT count(*) FROM pgqueue_lease") == [(1,)]
    assert not claimed_again(orders, until="done")

    orders.archive(messages[1:])
    assert not claimed_again(orders, until="done")
    orders.archive(messages[0])

    assert claimed_again(orders, until="done")


def test_a_length_of_time_takes_the_place_of_the_queues_window(orders, sql):
    orders.send("first", unique="k", until=dt.timedelta(hours=1))

    assert sql("SELECT until - first_at FROM pgqueue_claim") == [(dt.timedelta(hours=1),)]


def test_the_message_that_holds_a_key_says_until_when(orders):
    orders.send("first", unique="k", until="done")
    message = delivered(orders)

    assert not claimed_again(orders, until="started")
    orders.archive(message)
    assert claimed_again(orders, until="started")


# Replace, delay


def bodies(orders: Any) -> list[Any]:
    return [message.body for message in orders.read(qty=99)]


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("delay", [0, 60])
@pytest.mark.parametrize("until", ["started", "done", 60])
def test_a_waiting_message_is_replaced(orders, until, delay, group, sql):
    options = {"unique": "k", "until": until, "group": group, "on_conflict": "replace"}
    before = orders.send("before", group=group)
    first = orders.send("first", delay=delay, **options)

    second = orders.send("second", **options)

    assert (first.conflict, second.conflict) == (None, "replaced")
    assert not claimed_again(orders)
    orders.archive(orders.read(qty=1))
    assert bodies(orders) == ["second"]
    assert sql("SELECT id, state, error FROM pgqueue_archive ORDER BY id") == [
        (before, "COMPLETED", None),
        (first, "REPLACED", f"replaced by message {second}"),
    ]


@pytest.mark.parametrize("until", ["started", "done"])
def test_a_head_that_is_ready_holds_its_key_and_is_replaced(orders, until, sql):
    options = {"unique": "k", "until": until, "group": "g", "on_conflict": "replace"}
    orders.send("before", group="g")
    first = orders.send("first", **options)
    orders.send("behind", group="g")
    orders.archive(orders.read())
    assert sql("SELECT id FROM pgqueue_ready WHERE turn > id << 20") == [(first,)]
    assert not claimed_again(orders)

    second = orders.send("second", **options)

    assert second.conflict == "replaced"
    assert [message.body for message in orders.read_grouped(qty=9)] == ["behind", "second"]


def test_only_messages_that_were_written_are_announced(orders):
    with heard(signals.messages_sent) as sent_signals:
        first = orders.send(1, unique="a", until="done")
        orders.send(2, unique="a")
        sent = orders.send_batch([3, 4, 5], unique=["a", "b", "b"])

    assert [each["ids"] for each in sent_signals] == [[first], [sent[1]]]


def test_a_published_message_claims_a_key_in_each_queue(orders):
    Message.objects.create_queue("mails").bindings.create(pattern="#")
    Queue.objects.get(name="orders").bindings.create(pattern="#")
    publish = partial(Message.objects.publish, "new", unique="k", until="done")
    first = publish(1)
    orders.archive(orders.read())

    again = publish(2)

    assert {name: sent.conflict for name, sent in again.items()} == {
        "mails": "skipped",
        "orders": None,
    }
    replaced = Message.objects.publish_batch("new", [3], unique=["k"], on_conflict="replace")
    assert [sent.conflict for [sent] in replaced.values()] == ["replaced", "replaced"]
    assert len(first) == 2


def test_the_result_of_a_send_with_a_key_is_an_id(orders):
    sent = [orders.send(number, unique=str(number)) for number in range(4)]

    assert orders.cancel(sent[0]) == [sent[0]]
    assert orders.archive(sent[1:3]) == sent[1:3]
    assert orders.set_vt(sent[3], 60) == [sent[3]]
    assert pickle.loads(pickle.dumps(sent[3])).conflict is None
    assert json.dumps({"id": sent[3]}) == f'{{"id": {sent[3]}}}'
    assert orders.send({"after": sent[3]}) > sent[3]


def test_the_result_of_a_replaced_message_is_that_it_was_cancelled(orders):
    first = orders.send(1, unique="k", until="done")
    second = orders.send(2, unique="k", on_conflict="replace")

    with pytest.raises(MessageCancelled, match=f"replaced by message {second}"):
        orders.result(first)


def test_a_message_that_waits_for_its_next_try_is_replaced(orders):
    orders.send("first", unique="k", until="done")
    delivered(orders).nack(delay=60)

    second = orders.send("second", unique="k", until="done", on_conflict="replace")

    assert second.conflict == "replaced"
    assert bodies(orders) == ["second"]


@pytest.mark.parametrize(
    ("until", "conflict", "left"),
    [("started", None, ["second"]), ("done", "skipped", []), (60, "skipped", [])],
)
def test_a_message_in_flight_is_not_touched(orders, until, conflict, left):
    options = {"unique": "k", "until": until, "on_conflict": "replace"}
    orders.send("first", **options)
    message = delivered(orders)

    second = orders.send("second", **options)

    assert second.conflict == conflict
    assert (second == message.id) is (conflict == "skipped")
    assert bodies(orders) == left
    assert orders.archive(message) == [message.id]


def test_the_newest_body_runs_once_the_delay_passed_without_another_send(orders, travel):
    send = partial(orders.send, unique="k", on_conflict="delay", delay=10)
    assert send("first").conflict is None
    travel(8)
    assert send("second").conflict == "delayed"
    travel(8)
    assert bodies(orders) == []

    travel(2)

    assert bodies(orders) == ["second"]


def test_the_newest_body_runs_at_the_latest_after_max_wait(orders, travel):
    send = partial(orders.send, unique="k", on_conflict="delay", delay=10, max_wait=25)
    for number in range(4):
        send(number)
        travel(8)

    # At 25 seconds 3 was to be read.
    assert send(4).conflict == "delayed"
    assert bodies(orders) == [4]


@pytest.mark.parametrize("in_batch", [False, True])
def test_one_message_of_a_key_waits_however_long_nobody_reads(orders, travel, in_batch):
    options = {"on_conflict": "delay", "delay": 10, "max_wait": 25}
    for number in range(12):
        if in_batch:
            orders.send_batch([number], unique=["k"], **options)
        else:
            orders.send(number, unique="k", **options)
        travel(8)

    assert bodies(orders) == [11]


def test_a_message_that_is_replaced_after_max_wait_keeps_its_position(orders, travel):
    send = partial(orders.send, unique="k", on_conflict="delay", delay=10, max_wait=25)
    orders.send("before")
    send("first")
    travel(26)
    orders.send("due later", delay=5)
    travel(10)

    for number in range(3):
        send(number)
        travel(1)

    assert [orders.read()[0].body for _ in range(3)] == [2, "due later", "before"]


def test_a_message_of_a_group_is_not_replaced_after_max_wait(orders, travel):
    options = {"on_conflict": "delay", "delay": 10, "max_wait": 25, "group": "g"}
    send = partial(orders.send, unique="k", **options)
    for number in range(4):
        send(number)
        travel(8)

    assert send(4).conflict is None
    [message] = orders.read(qty=9)
    assert message.body == 3
    orders.archive(message)
    travel(10)
    assert bodies(orders) == [4]


@pytest.mark.parametrize(("conflict", "outcome"), [("replace", "replaced"), ("delay", "delayed")])
def test_in_a_batch_the_last_body_of_a_key_counts(orders, conflict, outcome):
    options = {"on_conflict": conflict, "delay": dt.timedelta(hours=-1)}
    held = orders.send("held", unique="a", until="started", **options)

    ids = orders.send_batch([1, 2, 3, 4], unique=["a", "b", None, "a"], **options)

    assert [each.conflict for each in ids] == ["skipped", None, None, outcome]
    assert ids[0] == ids[3] > held
    assert bodies(orders) == [2, 3, 4]


WRONG = [
    ({"until": "done"}, "need unique="),
    ({"on_conflict": "replace"}, "need unique="),
    ({"max_wait": 5}, "need unique="),
    ({"unique": "k", "until": "finished"}, "until must be"),
    ({"unique": "k", "until": 0}, "until must be more than zero"),
    ({"unique": "k", "on_conflict": "raise"}, "on_conflict must be one of"),
    ({"unique": "k", "on_conflict": "delay"}, "needs delay="),
    ({"unique": "k", "max_wait": 5}, "max_wait needs on_conflict"),
    ({"unique": "k", "on_conflict": "delay", "delay": 1, "max_wait": 0}, "max_wait must be more"),
    ({"unique": ""}, "unique must be text"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[str(options) for options, _ in WRONG])
def test_wrong_arguments_send_nothing(orders, options, message):
    with pytest.raises(InvalidArgument, match=message):
        orders.send(1, **options)
    if "unique" in options:
        options = {**options, "unique": [options["unique"]]}
    with pytest.raises(InvalidArgument, match=message):
        orders.send_batch([1], **options)

    assert orders.metrics().total == 0
