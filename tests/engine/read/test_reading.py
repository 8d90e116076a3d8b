"""Tests of read, read_with_poll, peek and pop."""

from __future__ import annotations

import datetime as dt
import time
from concurrent.futures import Future
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from django_pgqueue.errors import InvalidArgument, InvalidMessage, TransactionRefused
from django_pgqueue.models import LiveMessage, Message
from django_pgqueue.types import Receipt
from tests.actors import Actor, call
from tests.conftest import rolled_back, run_sql, send_untold
from tests.factories import QueueFactory
from tests.messages import bodies, ids
from tests.waiting import until


def move_vt(*pks: int, seconds: float) -> None:
    """Let time pass for some deferred messages."""
    run_sql(
        "UPDATE pgqueue_deferred SET vt = vt + make_interval(secs => %s) WHERE id = ANY(%s)",
        [seconds, list(pks)],
    )


# read


def test_read_leases_a_message_and_tells_all_about_it(orders):
    pk = orders.send({"order": 7}, headers={"trace": "x"}, priority=2, group="g")

    before = timezone.now()
    [message] = orders.read(vt=60)

    assert (message.id, message.body, message.headers) == (pk, {"order": 7}, {"trace": "x"})
    assert (message.read_ct, message.receipt) == (1, Receipt(pk, 1, message.read_at))
    assert (message.priority, message.group, message.queue_name) == (2, "g", "orders")
    assert message.queue == Message.objects.resolve("orders")
    assert (message.vt - message.first_read_at).total_seconds() == 60
    assert abs((message.vt - before).total_seconds() - 60) < 5
    assert message.enqueued_at <= message.first_read_at
    live = LiveMessage.objects.get()
    assert (live.state, live.read_ct, live.vt) == ("PROCESSING", 1, message.vt)


def test_columns_that_a_read_leaves_out_are_fetched_when_asked_for(orders):
    orders.send(1, unique="once")

    [message] = orders.read()

    assert (message.unique_key, message.scheduled_at) == ("once", None)


def test_a_leased_message_is_hidden_and_the_next_one_is_read(orders):
    one, two = orders.send_batch([1, 2])

    assert ids(orders.read()) == [one]
    assert ids(orders.read()) == [two]
    assert orders.read() == []


def test_read_takes_up_to_qty(orders):
    sent = orders.send_batch(range(5))

    assert ids(orders.read(qty=3)) == sent[:3]
    assert ids(orders.read(qty=3)) == sent[3:]


def test_a_quantity_of_zero_reads_nothing_and_none_reads_all(orders):
    sent = orders.send_batch(range(120))

    assert orders.read(qty=0) == orders.pop(0) == orders.peek(qty=0) == []
    assert ids(orders.read(qty=None)) == sent


@pytest.mark.parametrize("vt", [2.5, dt.timedelta(seconds=2.5)])
def test_a_visibility_timeout_may_be_a_number_or_a_timedelta(orders, vt):
    orders.send(1)

    [message] = orders.read(vt=vt)

    assert (message.vt - message.first_read_at).total_seconds() == 2.5


def test_without_vt_the_queues_own_visibility_timeout_counts(db):
    queue = QueueFactory(visibility_timeout=77)
    Message.objects.send(queue, 1)

    [message] = Message.objects.read(queue)

    assert (message.vt - message.first_read_at).total_seconds() == 77


def test_a_visibility_timeout_of_zero_leaves_the_message_visible(orders):
    orders.send(1)

    counts = [orders.read(vt=0)[0].read_ct for _ in range(3)]

    assert counts == [1, 2, 3]


def test_each_delivery_is_counted_and_the_first_one_remembered(orders):
    orders.send(1)

    [first] = orders.read(vt=0)
    [second] = orders.read(vt=0)

    assert (first.read_ct, second.read_ct) == (1, 2)
    assert second.first_read_at == first.first_read_at
    assert LiveMessage.objects.get().last_read_at > first.first_read_at


def test_a_visibility_timeout_counts_from_the_statement_and_not_from_the_transaction(orders):
    orders.send(1)
    run_sql("SELECT pg_sleep(0.3)")
    [(started,)] = run_sql("SELECT now()")

    [message] = orders.read(vt=10)

    assert message.vt - started > dt.timedelta(seconds=10.25)


def test_a_lease_that_ran_out_inside_a_long_transaction_is_seen_to_have_run_out(orders):
    orders.send(1)
    orders.read(vt=0.05)
    run_sql("SELECT pg_sleep(0.1)")

    assert len(orders.read()) == 1


def test_what_is_due_again_is_taken_before_what_was_never_read(orders):
    fresh = orders.send("fresh", priority=100)
    [again] = [orders.send("again", priority=-100)]
    orders.set_vt(again, 0)

    assert ids(orders.read()) == [again]
    assert ids(orders.read()) == [fresh]


def test_the_result_is_in_order_of_priority_and_id_whatever_was_taken_first(orders):
    sent = [orders.send(n, priority=n % 3) for n in range(9)]
    again = orders.read(qty=4)
    for message in reversed(again):
        orders.set_vt(message, 0)

    messages = orders.read(qty=None)

    keys = [(-message.priority, message.id) for message in messages]
    assert keys == sorted(keys)
    assert sorted(ids(messages)) == sorted(sent)


def test_among_the_due_the_one_due_longest_is_taken_first(orders):
    one, two, three = orders.send_batch([1, 2, 3], delay=60)
    move_vt(one, seconds=-70)
    move_vt(two, seconds=-90)
    move_vt(three, seconds=-80)

    assert [ids(orders.read())[0] for _ in range(3)] == [two, three, one]


def test_a_delayed_message_is_first_delivered_with_a_count_of_one(orders):
    pk = orders.send(1, delay=60)
    assert LiveMessage.objects.get().read_ct == 0
    move_vt(pk, seconds=-61)

    [message] = orders.read()

    assert (message.read_ct, message.first_read_at is not None) == (1, True)


def test_read_looks_into_its_own_queue_only(orders):
    other = QueueFactory()
    orders.send("mine")
    Message.objects.send(other, "theirs", priority=100)
    Message.objects.send(other, "theirs", delay=-1)

    assert bodies(orders.read(qty=None)) == ["mine"]
    assert bodies(orders.peek(qty=None)) == bodies(orders.pop(None)) == []


@pytest.mark.parametrize("kind", [{"unlogged": True}, {"partition_interval": dt.timedelta(1)}])
def test_an_unlogged_and_a_partitioned_queue_are_read_alike(db, kind):
    queue = QueueFactory(**kind)
    one, two = Message.objects.send_batch(queue, [1, 2])
    later = Message.objects.send(queue, 3, delay=60)

    [first] = Message.objects.read(queue, vt=0)
    again = Message.objects.read(queue, qty=None)

    assert first.id == one
    assert [(m.id, m.read_ct) for m in again] == [(one, 2), (two, 1)]
    assert Message.objects.archive(queue, again) == [one, two]
    assert ids(Message.objects.pop(queue, None)) == []
    assert LiveMessage.objects.get().pk == later


def test_a_name_finds_its_queue_whatever_the_case(orders):
    pk = Message.objects.send("ORDERS", 1)

    assert ids(Message.objects.read("Orders")) == [pk]


# conditional


def test_a_condition_is_containment(orders):
    both = orders.send({"a": 1, "b": {"c": [1, 2]}})
    orders.send({"a": 2, "b": {"c": [1, 2]}})
    orders.send([1, 2])
    orders.send(None)

    assert ids(orders.peek(qty=9, conditional={"a": 1})) == [both]
    assert ids(orders.read(qty=9, conditional={"a": 1, "b": {"c": [2]}})) == [both]
    assert orders.read(qty=9, conditional={"a": 1, "x": 1}) == []


@pytest.mark.parametrize("no_condition", [None, {}])
def test_an_empty_condition_is_no_condition(orders, no_condition):
    sent = orders.send_batch([{"a": 1}, [1], None, "text"])

    assert ids(orders.peek(qty=9, conditional=no_condition)) == sent
    assert ids(orders.read(qty=9, conditional=no_condition)) == sent


def test_a_condition_on_an_array_matches_arrays(orders):
    one, two = orders.send_batch([[1, 2], [2]])
    orders.send({"a": 1})

    assert ids(orders.peek(qty=9, conditional=[])) == [one, two]
    assert ids(orders.read(qty=9, conditional=[1])) == [one]


def test_a_condition_finds_what_lies_behind_others_and_what_is_due_again(orders):
    orders.send_batch([{"kind": "a"}] * 20)
    wanted = orders.send_batch([{"kind": "b"}] * 2)
    orders.set_vt(wanted[1], 0)

    messages = orders.read(qty=9, conditional={"kind": "b"})

    assert ids(messages) == wanted
    assert orders.metrics().ready == 20


# Transactions


def test_read_inside_a_transaction_is_refused(orders):
    orders.send(1)

    with transaction.atomic():
        with pytest.raises(TransactionRefused, match="in_transaction=True"):
            orders.read()
        with pytest.raises(TransactionRefused, match="read_with_poll"):
            orders.read_with_poll(max_poll_seconds=0)
        assert orders.metrics().ready == 1


def test_read_works_inside_a_testcase(orders):
    assert connection.in_atomic_block
    orders.send(1)

    assert len(orders.read()) == 1


def test_read_without_autocommit_is_refused(committed_orders):
    committed_orders.send(1)
    transaction.set_autocommit(False)
    try:
        with pytest.raises(TransactionRefused):
            committed_orders.read()
        with pytest.raises(TransactionRefused):
            committed_orders.read_with_poll()
        assert len(committed_orders.read(in_transaction=True)) == 1
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)

    assert committed_orders.read()[0].read_ct == 1


def test_a_message_read_in_a_transaction_stays_locked_and_a_rollback_returns_it_uncounted(
    committed_orders, actor
):
    fresh = committed_orders.send("fresh")
    due = committed_orders.send("due")
    committed_orders.set_vt(due, 0)

    with rolled_back():
        mine = committed_orders.read(qty=9, vt=0, in_transaction=True)
        seen_by_another = actor.do(call, "read", "orders", qty=9)
        popped_by_another = actor.do(call, "pop", "orders", qty=9)

    assert (sorted(ids(mine)), seen_by_another, popped_by_another) == ([fresh, due], [], [])
    assert [(m.id, m.read_ct) for m in committed_orders.read(qty=9)] == [(fresh, 1), (due, 1)]


def test_work_and_settling_in_the_transaction_of_the_read_commit_together(committed_orders, actor):
    pk = committed_orders.send(1)

    with transaction.atomic():
        [message] = committed_orders.read(in_transaction=True)
        committed_orders.archive(message)

    assert actor.do(call, "read", "orders") == []
    assert committed_orders.metrics().archived == 1
    assert message.id == pk


def test_read_passes_by_what_another_consumer_holds_locked(committed_orders, actor):
    one, two = committed_orders.send_batch([1, 2])

    with transaction.atomic():
        [mine] = committed_orders.read(in_transaction=True)
        theirs = actor.do(call, "read", "orders")

    assert (mine.id, ids(theirs)) == (one, [two])


# read_with_poll


def test_a_poll_of_zero_seconds_tries_once(orders):
    assert orders.read_with_poll(max_poll_seconds=0) == []

    pk = orders.send(1)
    assert ids(orders.read_with_poll(max_poll_seconds=0)) == [pk]


def test_a_poll_returns_at_the_first_messages_and_does_not_wait_for_qty(orders):
    sent = orders.send_batch([1, 2])

    assert ids(orders.read_with_poll(qty=5, vt=9, max_poll_seconds=60)) == sent


def test_a_poll_for_no_message_does_not_wait(orders):
    assert orders.read_with_poll(qty=0, max_poll_seconds=60) == []


def test_a_poll_gives_up_after_its_time(orders):
    started = time.monotonic()

    assert orders.read_with_poll(max_poll_seconds=0.2, poll_interval_ms=20) == []
    assert 0.2 <= time.monotonic() - started < 5


def test_a_poll_is_woken_by_a_send_long_before_its_interval(committed_orders, actor):
    waiting, _ = polling(actor, poll_interval_ms=50_000)

    pk = committed_orders.send(1)

    assert ids(waiting.result(timeout=20)) == [pk]


def test_a_poll_finds_what_came_too_soon_after_a_notification_to_be_told(committed_orders, actor):
    waiting, _ = polling(actor, poll_interval_ms=50_000)

    pk = send_untold(committed_orders, 1)

    assert ids(waiting.result(timeout=20)) == [pk]


def test_a_poll_wakes_when_the_next_message_is_due(committed_orders):
    pk = committed_orders.send(1, delay=0.4)
    started = time.monotonic()

    messages = committed_orders.read_with_poll(max_poll_seconds=50, poll_interval_ms=50_000)

    assert ids(messages) == [pk]
    assert time.monotonic() - started < 20


def test_a_waiting_poll_holds_no_transaction_and_no_snapshot(committed_orders, actor):
    waiting, pid = polling(actor, poll_interval_ms=50_000)

    held = until(
        lambda: run_sql(
            "SELECT xact_start, backend_xmin FROM pg_stat_activity "
            "WHERE pid = %s AND wait_event = 'ClientRead'",
            [pid],
        )
    )

    assert held == [(None, None)]
    committed_orders.send(1)
    assert len(waiting.result(timeout=20)) == 1


def test_a_poll_finds_what_matches_its_condition(committed_orders, actor):
    waiting, _ = polling(actor, conditional={"kind": "b"})

    committed_orders.send({"kind": "a"})
    wanted = committed_orders.send({"kind": "b"})

    assert ids(waiting.result(timeout=20)) == [wanted]


def polling(actor: Actor, **options: Any) -> tuple[Future[Any], int]:
    """Another process's poll that has started to wait, and its backend's id."""
    waiting = actor.start(call, "read_with_poll", "orders", max_poll_seconds=50, **options)
    waiters = (
        "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND state = 'idle' "
        "AND datname = current_database() AND query LIKE '%pgqueue_fall_asleep%'"
    )
    return waiting, until(lambda: run_sql(waiters))[0][0]


# peek


def test_peek_shows_what_a_read_would_find_and_counts_nothing(orders):
    again, fresh = orders.send_batch(["again", "fresh"])
    orders.send("later", delay=60)
    orders.read(vt=0)

    for _ in range(2):
        assert [(m.id, m.body, m.read_ct) for m in orders.peek(qty=9)] == [
            (again, "again", 1),
            (fresh, "fresh", 0),
        ]
    assert ids(orders.peek()) == [again]
    assert ids(orders.read(qty=9)) == [again, fresh]


def test_peek_locks_nothing(committed_orders, actor):
    sent = committed_orders.send_batch([1, 2])
    committed_orders.set_vt(sent[0], 0)

    with transaction.atomic():
        assert len(committed_orders.peek(qty=9)) == 2
        read = actor.do(call, "read", "orders", qty=9)

    assert ids(read) == sent


def test_peek_is_allowed_in_a_transaction(orders):
    orders.send(1)

    with transaction.atomic():
        assert len(orders.peek()) == 1


# pop


def test_pop_takes_for_good_in_the_order_of_read(orders):
    one, two = orders.send_batch([{"n": 1}, {"n": 2}], headers={"h": 1})
    high = orders.send({"n": 3}, priority=1)
    orders.send("later", delay=60)

    assert [(m.id, m.body, m.headers) for m in orders.pop(qty=2)] == [
        (high, {"n": 3}, None),
        (one, {"n": 1}, {"h": 1}),
    ]
    assert ids(orders.pop(9)) == [two]
    assert orders.pop() == []


def test_pop_counts_no_delivery_and_archives_nothing(orders):
    orders.send("never read")
    orders.send("read before", priority=1)
    orders.read(vt=0)

    again, never = orders.pop(2)

    assert (again.read_ct, never.read_ct) == (1, 0)
    assert again.first_read_at is not None
    assert never.first_read_at is None
    assert (orders.metrics().archived, Message.objects.count()) == (0, 0)


def test_pop_leaves_what_is_in_flight(orders):
    orders.send(1)
    orders.read()

    assert orders.pop(qty=None) == []
    assert orders.metrics().in_flight == 1


def test_a_rolled_back_pop_gives_the_message_back(orders):
    pk = orders.send(1)
    with rolled_back():
        orders.pop()

    assert ids(orders.pop()) == [pk]


def test_pop_of_none_takes_all(orders):
    sent = orders.send_batch(range(7))

    assert ids(orders.pop(None)) == sent
    assert (LiveMessage.objects.count(), Message.objects.count()) == (0, 0)


# Bad input

OPERATIONS = ["read", "read_with_poll", "peek", "pop"]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("qty", [-1, True, 1.5, "1", 2**31, float("nan")])
def test_a_quantity_that_is_none_is_refused(orders, operation, qty):
    orders.send(1)

    with pytest.raises(InvalidArgument, match="qty must be"):
        getattr(orders, operation)(qty=qty)

    assert orders.metrics().ready == 1


@pytest.mark.parametrize(
    "vt", [float("nan"), float("inf"), True, "30", 10**12, dt.timedelta(days=400_000)]
)
def test_a_visibility_timeout_that_is_none_is_refused(orders, vt):
    orders.send(1)

    with pytest.raises(InvalidArgument, match="vt must be"):
        orders.read(vt=vt)

    assert orders.metrics().ready == 1


@pytest.mark.parametrize("name", ["max_poll_seconds", "poll_interval_ms"])
@pytest.mark.parametrize("value", [-1, None, "5", True, float("nan")])
def test_a_poll_time_that_is_none_is_refused(orders, name, value):
    with pytest.raises(InvalidArgument, match=name):
        orders.read_with_poll(**{name: value})


@pytest.mark.parametrize("condition", [{"a": float("nan")}, {"a": "\x00"}, {1, 2}, object()])
def test_a_condition_that_is_not_json_is_refused(orders, condition):
    orders.send({"a": 1})

    with pytest.raises(InvalidMessage, match="conditional"):
        orders.read(conditional=condition)

    assert orders.metrics().ready == 1
