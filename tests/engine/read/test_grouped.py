"""FIFO groups: no message is delivered while an earlier message of its group is not done."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from asgiref.sync import async_to_sync

from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.errors import InvalidArgument, TransactionRefused
from django_pgqueue.models import BoundQueue, Message, Queue
from django_pgqueue.types import Metrics
from tests.actors import begin, call, commit, execute, rollback
from tests.conftest import run_sql
from tests.leasing import run_out
from tests.messages import bodies


def send_line(queue: BoundQueue, group: str, count: int = 3) -> list[int]:
    return queue.send_batch([f"{group}{n}" for n in range(1, count + 1)], group=group)


def hot_rows() -> int:
    """The number of rows in the groups' tables: empty groups leave none."""
    [(rows,)] = run_sql(
        "SELECT (SELECT count(*) FROM pgqueue_group) + (SELECT count(*) FROM pgqueue_waiting)"
    )
    return int(rows)


def test_a_read_gives_out_the_head_of_each_group_and_all_without_a_group(orders):
    send_line(orders, "a")
    orders.send_batch(["x", "y"])
    send_line(orders, "b")

    messages = orders.read(qty=None)

    assert bodies(messages) == ["a1", "x", "y", "b1"]
    assert orders.read(qty=None) == []


def test_a_group_comes_in_its_order_and_leaves_nothing_behind(orders):
    send_line(orders, "a", 5)
    seen = []

    while messages := orders.read(qty=10):
        seen += bodies(messages)
        orders.archive(messages)

    assert seen == ["a1", "a2", "a3", "a4", "a5"]
    assert hot_rows() == 0


def test_nothing_is_given_out_while_an_earlier_message_is_delayed(orders):
    orders.send("a1", group="a", delay=60)
    orders.send("a2", group="a")
    orders.send("b1", group="b")

    assert bodies(orders.read(qty=10)) == ["b1"]

    run_out()
    assert sorted(bodies(orders.read(qty=10))) == ["a1", "b1"]


def test_a_delayed_message_in_the_line_holds_up_what_follows(orders):
    orders.send("a1", group="a")
    orders.send("a2", group="a", delay=60)
    orders.send("a3", group="a")

    orders.archive(orders.read())

    assert orders.read(qty=10) == []
    assert orders.metrics().delayed == 1


def test_nothing_is_given_out_while_an_earlier_message_waits_to_retry(orders):
    send_line(orders, "a")
    [message] = orders.read()

    orders.retry({message.receipt: 60})

    assert orders.read(qty=10) == []
    run_out()
    [again] = orders.read(qty=10)
    assert (again.body, again.read_ct) == ("a1", 2)


def test_a_message_given_back_stays_the_head(orders):
    send_line(orders, "a")
    messages = orders.read()

    orders.release([messages[0].receipt])

    assert bodies(orders.read(qty=10)) == ["a1"]


def test_a_head_whose_lease_ran_out_comes_again_before_the_next(orders):
    send_line(orders, "a")
    orders.read(qty=10)

    run_out()

    assert bodies(orders.read(qty=10)) == ["a1"]


def deliver_until(queue: BoundQueue, body: str) -> list[str]:
    """Read and archive one message at a time, up to this one. Returns the groups of the others."""
    seen: list[str] = []
    while True:
        [message] = queue.read()
        queue.archive(message)
        if message.body == body:
            return seen
        seen.append(message.group)


def test_groups_take_turns(committed_orders):
    for group in "abc":
        send_line(committed_orders, group, 5)

    assert "".join(deliver_until(committed_orders, "c5")) == "abc" * 4 + "ab"


def test_a_new_group_waits_for_one_message_of_each_group_however_many_they_have(committed_orders):
    for group, length in (("a", 500), ("b", 20), ("c", 20)):
        send_line(committed_orders, group, length)
    deliver_until(committed_orders, "a5")
    committed_orders.send("new", group="new")

    assert sorted(deliver_until(committed_orders, "new")) == ["a", "b", "c"]


def test_groups_take_no_ids(committed_orders, actor):
    ids = [committed_orders.send(n, group="a") for n in range(3)]
    heads = committed_orders.read(qty=10)
    actor.do(begin)
    actor.do(execute, "SELECT FROM pgqueue_group FOR UPDATE")
    committed_orders.archive(heads)  # leaves a recheck
    actor.do(rollback)
    committed_orders.archive(committed_orders.read(qty=10))

    assert committed_orders.send(4) == ids[0] + 3


def test_a_search_for_heads_passes_over_locked_groups_alone(committed_orders, actor, monkeypatch):
    groups = [f"g{n}" for n in range(1500)]
    committed_orders.send_batch(groups, group=groups)
    assert len(committed_orders.read(qty=None)) == 1500
    committed_orders.send_batch(groups, group=groups)  # rechecks of groups that have a head
    actor.do(begin)
    actor.do(execute, "SELECT FROM pgqueue_group WHERE group_key = 'g7' FOR UPDATE")
    passed, run = [], OpenQueue.run

    def spied(queue, statement, params=None, /, **names):
        if statement == "groups/promote":
            passed.append(params["passed"].copy())
        return run(queue, statement, params, **names)

    monkeypatch.setattr(OpenQueue, "run", spied)
    assert committed_orders.read() == []

    assert passed == [[], ["g7"]]


def test_groups_take_turns_after_a_million_heads(committed_orders, sql):
    sql("SELECT setval('pgqueue_turn_seq', 1048575)")
    for group in "abc":
        send_line(committed_orders, group, 3)

    assert "".join(deliver_until(committed_orders, "c3")) == "abc" * 2 + "ab"


ENDS: dict[str, Callable[[BoundQueue, Message], object]] = {
    "ack": lambda queue, message: queue.archive(message),
    "delete": lambda queue, message: queue.delete(message),
    "archive by id": lambda queue, message: queue.archive(message.id),
    "delete by id": lambda queue, message: queue.delete(message.id),
    "failure": lambda queue, message: queue.fail({message.receipt: "no"}),
    "the ORM": lambda queue, message: Message.objects.filter(pk=message.pk).delete(),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_next_follows_however_the_head_ends(orders, end):
    send_line(orders, "a")
    [message] = orders.read()

    end(orders, message)

    assert bodies(orders.read(qty=10)) == ["a2"]


@pytest.mark.parametrize("how", ["archive by id", "delete by id", "failure", "the ORM"])
def test_the_next_follows_when_an_unread_head_goes(orders, how):
    ids = send_line(orders, "a")
    send_line(orders, "b")
    orders.archive(orders.read())  # archives a1, so that a2 is in ready
    head = Message.objects.get(pk=ids[1])
    head.read_ct = 0  # the lease belongs to no process
    if how == "failure":
        [head] = orders.read()

    ENDS[how](orders, head)

    assert bodies(orders.read(qty=10)) == ["a3", "b1"]


def test_pop_takes_heads_only_and_brings_up_the_next(orders):
    send_line(orders, "a")

    assert [bodies(orders.pop(5)) for _ in range(4)] == [["a1"], ["a2"], ["a3"], []]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("operation", ["read", "pop"])
def test_the_head_of_the_highest_priority_comes_first_of_groups_that_begin(
    committed_orders, operation
):
    committed_orders.send("usual", group="a")
    committed_orders.send("urgent", group="b", priority=7)

    seen = [bodies(getattr(committed_orders, operation)(qty=1)) for _ in range(3)]

    assert seen == [["urgent"], ["usual"], []]


@pytest.mark.parametrize("operation", ["archive", "delete"])
def test_a_message_in_the_line_can_be_taken_out_by_id(orders, operation):
    ids = send_line(orders, "a")

    assert getattr(orders, operation)(ids[1]) == [ids[1]]

    orders.archive(orders.read())
    assert bodies(orders.read()) == ["a3"]


def test_set_vt_by_id_delays_a_message_in_the_line_and_what_follows(orders):
    ids = send_line(orders, "a")

    assert orders.set_vt(ids[1], 60) == [ids[1]]

    orders.archive(orders.read())
    assert orders.read(qty=10) == []


def test_set_vt_by_id_on_an_unread_head_keeps_it_the_head(orders):
    ids = send_line(orders, "a")
    send_line(orders, "b")
    orders.archive(orders.read())

    orders.set_vt(ids[1], 60)

    assert bodies(orders.read(qty=10)) == ["b1"]
    run_out()
    assert bodies(orders.read(qty=10)) == ["a2", "b1"]


def test_purge_empties_the_groups(orders):
    send_line(orders, "a", 50)
    send_line(orders, "b", 50)
    orders.read()

    assert orders.purge() == 100

    assert orders.metrics().length == 0
    assert hot_rows() == 0
    orders.send("a1", group="a")
    assert bodies(orders.read(qty=10)) == ["a1"]


def test_dropping_a_queue_leaves_nothing_of_its_groups(db, sql):
    Message.objects.create_queue("orders")
    send_line(BoundQueue("orders"), "a")
    BoundQueue("orders").read()

    Message.objects.drop_queue("orders")

    assert hot_rows() == 0
    assert sql("SELECT count(*) FROM pgqueue_recheck") == [(0,)]


def test_groups_of_different_queues_never_touch(orders):
    Message.objects.create_queue("mails")
    mails = BoundQueue("mails")
    send_line(orders, "a")
    send_line(mails, "a")

    assert bodies(orders.read(qty=10)) == ["a1"]
    assert bodies(mails.read(qty=10)) == ["a1"]


def test_a_head_of_higher_priority_goes_first_and_order_in_the_group_stays(orders):
    orders.send("a1", group="a")
    orders.send("a2", group="a", priority=100)
    orders.send("b1", group="b", priority=5)

    assert bodies(orders.read(qty=10)) == ["b1", "a1"]
    assert bodies(orders.read_grouped(qty=10)) == []


def test_a_dead_lettered_group_keeps_its_order_in_the_dead_letter_queue(orders, dead_letters):
    Queue.objects.filter(name="orders").update(max_deliveries=1)
    send_line(orders, "a", 2)

    while messages := orders.read(vt=0):
        assert messages[0].read_ct == 1

    assert bodies(dead_letters.read(qty=10)) == ["a1"]
    assert bodies(dead_letters.read(qty=10)) == []


def test_read_grouped_fills_the_batch_from_the_first_group(orders):
    for group in "abc":
        send_line(orders, group)

    assert bodies(orders.read_grouped(qty=5)) == ["a1", "a2", "a3", "b1", "b2"]
    assert bodies(orders.read_grouped(qty=5)) == ["c1", "c2", "c3"]
    assert orders.read_grouped(qty=5) == []


def test_read_grouped_rr_goes_in_rounds(orders):
    for group in "abc":
        send_line(orders, group)
    orders.send("x")

    messages = orders.read_grouped_rr(qty=8)

    assert bodies(messages) == ["a1", "b1", "c1", "x", "a2", "b2", "c2", "a3"]


def test_read_grouped_head_gives_one_of_each_group(orders):
    for group in "abc":
        send_line(orders, group)

    assert bodies(orders.pgmq.read_grouped_head(qty=2)) == ["a1", "b1"]
    assert bodies(orders.pgmq.read_grouped_head(qty=2)) == ["c1"]


@pytest.mark.parametrize("read", ["read_grouped", "read_grouped_rr"])
def test_a_batch_stops_at_a_message_that_has_to_wait(orders, read):
    orders.send("a1", group="a")
    orders.send("a2", group="a")
    orders.send("a3", group="a", delay=60)
    orders.send("a4", group="a")

    assert bodies(getattr(orders, read)(qty=10)) == ["a1", "a2"]


def test_the_group_goes_on_when_the_whole_batch_is_done_in_any_order(orders):
    send_line(orders, "a", 5)
    first, second, third = orders.read_grouped(qty=3)

    orders.archive(second)
    assert orders.read(qty=10) == []
    orders.archive(first)
    assert orders.read(qty=10) == []
    orders.archive(third)

    assert bodies(orders.read_grouped(qty=10)) == ["a4", "a5"]


def test_the_group_goes_on_behind_a_whole_batch_acked_at_once(orders):
    send_line(orders, "a", 4)
    send_line(orders, "b", 4)

    orders.archive(orders.read_grouped_rr(qty=6))

    assert bodies(orders.read_grouped(qty=10)) == ["a4", "b4"]


def test_the_rest_of_a_batch_stays_out_when_its_head_and_others_are_acked(orders):
    send_line(orders, "a", 5)
    first, second, third, fourth = orders.read_grouped(qty=4)

    orders.archive([first, third])
    assert orders.read(qty=10) == []
    orders.archive([second, fourth])

    assert bodies(orders.read(qty=10)) == ["a5"]


def test_followers_whose_lease_ran_out_wait_behind_their_head(orders):
    send_line(orders, "a", 4)
    first, _, _ = orders.read_grouped(qty=3)
    run_out()
    orders.set_vt(first, 60)

    assert orders.read(qty=10) == []
    assert orders.pop(10) == []
    assert orders.peek(qty=10) == []

    orders.archive(first)
    [second] = orders.read(qty=10)
    assert (second.body, second.read_ct) == ("a2", 2)


def test_a_grouped_batch_that_ran_out_is_given_out_again_in_order(orders):
    send_line(orders, "a", 3)
    orders.read_grouped(qty=3)
    run_out()

    again = orders.read_grouped(qty=3)

    assert [(m.body, m.read_ct) for m in again] == [("a1", 2), ("a2", 2), ("a3", 2)]


def test_a_batch_does_not_go_on_behind_what_an_earlier_one_still_holds(orders):
    send_line(orders, "a", 4)
    head, *_held = orders.read_grouped(qty=3)
    orders.retry({head.receipt: 0})

    assert bodies(orders.read_grouped(qty=10)) == ["a1"]


def test_a_batch_does_not_skip_followers_whose_lease_ran_out(orders):
    send_line(orders, "a", 4)
    orders.read_grouped(qty=3)
    run_out()

    assert bodies(orders.read_grouped(qty=2)) in (["a1"], ["a1", "a2"])


@pytest.mark.parametrize("by_follow", [False, True])
def test_a_follower_keeps_its_last_error_on_its_way_through_waiting(orders, sql, by_follow):
    send_line(orders, "a", 2)
    head, follower = orders.read_grouped(qty=2)
    orders.retry({follower.receipt: 0}, errors={follower.receipt: "too busy"})
    assert orders.read(qty=10) == []
    if by_follow:
        orders.set_vt(head, 0)
        assert bodies(orders.read_grouped(qty=2)) == ["a1", "a2"]
    else:
        orders.archive(head)
        assert bodies(orders.read(qty=10)) == ["a2"]

    assert sql("SELECT error FROM pgqueue_deferred WHERE id = %s", [follower.id]) == [("too busy",)]


def test_a_follower_that_was_set_back_comes_before_those_still_leased(orders):
    send_line(orders, "a", 4)
    first, second, third = orders.read_grouped(qty=3)
    orders.retry({second.receipt: 0})
    assert orders.read(qty=10) == []  # puts the message back into the group
    orders.archive(first)
    orders.set_vt(third, 0)

    assert bodies(orders.read(qty=10)) == ["a2"]


def test_a_dead_lettered_follower_is_not_the_next_head_of_its_old_group(orders, dead_letters):
    send_line(orders, "a")
    head, follower = orders.read_grouped(qty=2)
    orders.fail({follower.receipt: "no"})
    assert bodies(dead_letters.read()) == ["a2"]
    orders.archive(head)

    assert bodies(orders.read(qty=10)) == ["a3"]


def test_plain_and_grouped_reads_never_give_out_the_same_message(orders):
    for group in "abcd":
        send_line(orders, group)

    seen = bodies(orders.read(qty=1)) + bodies(orders.read_grouped(qty=4))
    seen += bodies(orders.read(qty=1)) + bodies(orders.read_grouped_rr(qty=4))

    assert seen == ["a1", "b1", "b2", "b3", "c1", "d1"]


def test_a_message_behind_the_head_that_has_no_deliveries_left_ends_the_batch(db, sql):
    Message.objects.create_queue("orders", max_deliveries=1)
    orders = BoundQueue("orders")
    send_line(orders, "a", 3)
    first, _ = orders.read_grouped(qty=2)
    run_out()
    orders.set_vt(first, 60)
    assert orders.read(qty=5) == []  # a2 is waiting in the group again

    orders.archive(first)

    assert bodies(orders.read(qty=5)) == ["a3"]
    [(state,)] = sql("SELECT state FROM pgqueue_archive WHERE id = %s", [first.id + 1])
    assert state == "FAILED"


def test_metrics_and_peek_count_a_group_that_was_never_read(orders):
    send_line(orders, "a")
    send_line(orders, "b")

    metrics = orders.metrics()

    assert (metrics.length, metrics.visible, metrics.waiting) == (6, 2, 4)
    assert bodies(orders.peek(qty=10)) == ["a1", "b1"]
    orders.read()
    metrics = orders.metrics()
    assert (metrics.length, metrics.visible, metrics.waiting, metrics.in_flight) == (6, 1, 4, 1)


def test_metrics_count_the_delayed_first_of_a_group_that_was_never_read_as_delayed(orders):
    orders.send("a1", group="a", delay=60)
    orders.send("a2", group="a")

    for measured in (orders.metrics, lambda: many_metrics()["orders"]):
        before = measured()
        assert (before.length, before.visible, before.delayed, before.waiting) == (2, 0, 1, 1)
    assert orders.read() == []
    after = orders.metrics()
    assert (after.length, after.visible, after.delayed, after.waiting) == (2, 0, 1, 1)


def many_metrics() -> dict[str, Metrics]:
    """Metrics of all queues in one statement, by queue."""
    return {metrics.queue_name: metrics for metrics in Message.objects.metrics_all()}


def test_a_batch_of_groups_needs_a_number(orders):
    with pytest.raises(InvalidArgument, match="must be a number"):
        orders.read_grouped(qty=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("read", ["read_grouped", "read_grouped_rr", "read_grouped_head"])
def test_a_grouped_read_inside_a_transaction_is_refused_unless_meant(committed_orders, read, actor):
    send_line(committed_orders, "a")
    actor.do(begin)

    with pytest.raises(TransactionRefused):
        actor.do(call, read, "orders")

    assert bodies(actor.do(call, read, "orders", in_transaction=True)) == ["a1"]


@pytest.mark.parametrize(
    "read",
    ["read_grouped_with_poll", "read_grouped_rr_with_poll", "read_grouped_head_with_poll"],
)
def test_a_grouped_read_waits_for_the_ack_that_brings_up_the_next(committed_orders, read, actor):
    send_line(committed_orders, "a", 2)
    messages = committed_orders.read()

    future = actor.start(call, read, "orders", max_poll_seconds=30, poll_interval_ms=30_000)
    committed_orders.archive(messages)

    assert bodies(future.result(timeout=20)) == ["a2"]


@pytest.mark.parametrize(
    "read",
    [
        "aread_grouped",
        "aread_grouped_rr",
        "aread_grouped_head",
        "aread_grouped_with_poll",
        "aread_grouped_rr_with_poll",
        "aread_grouped_head_with_poll",
    ],
)
def test_the_async_twins_read_the_same(orders, read):
    send_line(orders, "a")

    async def reading() -> list[Message]:
        return await getattr(orders.pgmq, read)()

    assert bodies(async_to_sync(reading)()) == ["a1"]


# Two sessions. Neither sees the other's uncommitted rows; no message may be lost because of that.
# test_limits_races.py has more of these, for groups with one slot and with two.


def test_a_sender_in_a_long_transaction_holds_up_neither_senders_nor_readers(
    committed_orders, actor
):
    actor.do(begin)
    actor.do(call, "send", "orders", "late", group="a")
    send_line(committed_orders, "a", 3)
    [first] = committed_orders.read(qty=10)

    actor.do(commit)
    committed_orders.archive(first)

    # Among the present messages, the lowest id is next.
    seen = []
    while messages := committed_orders.read(qty=10):
        seen += bodies(messages)
        committed_orders.archive(messages)
    assert (first.body, seen) == ("a1", ["late", "a2", "a3"])


def test_a_message_sent_while_the_last_is_acked_is_not_lost(committed_orders, actor):
    send_line(committed_orders, "a", 1)
    [last] = committed_orders.read()
    actor.do(begin)
    actor.do(call, "archive", "orders", last.receipt)

    committed_orders.send("next", group="a")
    assert committed_orders.read(qty=10) == []
    actor.do(commit)

    assert bodies(committed_orders.read(qty=10)) == ["next"]


def test_an_ack_that_is_rolled_back_leaves_the_head_where_it_was(committed_orders, actor):
    send_line(committed_orders, "a", 2)
    [first] = committed_orders.read()
    actor.do(begin)
    actor.do(call, "archive", "orders", first.receipt)
    committed_orders.send("a3", group="a")
    assert committed_orders.read(qty=10) == []

    actor.do(rollback)

    assert committed_orders.read(qty=10) == []
    run_out()
    assert bodies(committed_orders.read(qty=10)) == ["a1"]


@pytest.mark.parametrize("first_ack", [0, 1])
@pytest.mark.parametrize("first_commit", [0, 1])
@pytest.mark.parametrize("behind", [0, 1])
def test_two_ackers_of_one_batch_bring_up_the_next_once_both_are_done(
    committed_orders, actors, first_ack, first_commit, behind
):
    send_line(committed_orders, "a", 2 + behind)
    messages = committed_orders.read_grouped(qty=2)
    ackers = actors(2)
    for place in (first_ack, 1 - first_ack):
        ackers[place].do(begin)
        ackers[place].do(call, "archive", "orders", messages[place].receipt)

    ackers[first_commit].do(commit)
    assert committed_orders.read(qty=10) == []
    ackers[1 - first_commit].do(commit)

    committed_orders.send("last", group="a")
    seen = []
    while batch := committed_orders.read(qty=10):
        seen += bodies(batch)
        committed_orders.archive(batch)
    assert seen == (["a3", "last"] if behind else ["last"])


def test_a_read_in_a_transaction_passes_groups_whose_heads_are_delayed(orders):
    orders.send_batch([0] * 150, group=[f"late {n}" for n in range(150)], delay=60)
    orders.send("now", group="now")

    assert bodies(orders.read(in_transaction=True)) == ["now"]


def test_a_read_of_all_in_a_transaction_takes_a_head_of_each_group(orders):
    orders.send_batch([0] * 250, group=[f"group {n}" for n in range(250)])

    assert len(orders.read(qty=None, in_transaction=True)) == 250


def test_a_read_ends_before_it_takes_a_message_twice(orders):
    """One promotion processes a hundred rechecks here, and these leases end at once."""
    orders.send_batch([0] * 250, group=[f"group {n}" for n in range(250)])

    messages = orders.read(qty=None, vt=0, in_transaction=True)

    assert {message.read_ct for message in messages} == {1}
    assert len({message.id for message in messages}) == len(messages) > 0


def test_a_reader_that_keeps_its_transaction_open_holds_up_its_own_groups_only(
    committed_orders, actor
):
    send_line(committed_orders, "a", 2)
    actor.do(begin)
    assert bodies(actor.do(call, "read", "orders", qty=1, in_transaction=True)) == ["a1"]
    send_line(committed_orders, "a", 1)
    send_line(committed_orders, "b", 2)

    [other] = committed_orders.read(qty=10)
    committed_orders.archive(other)
    [following] = committed_orders.read(qty=10)

    assert (other.body, following.body) == ("b1", "b2")
    actor.do(rollback)
    assert bodies(committed_orders.read(qty=10)) == ["a1"]


def test_an_operator_who_takes_out_the_next_does_not_strand_the_group(committed_orders, actor):
    ids = send_line(committed_orders, "a", 3)
    [first] = committed_orders.read()
    actor.do(begin)
    actor.do(call, "delete", "orders", ids[1])

    future = actor.start(commit)
    committed_orders.archive(first)
    future.result()

    assert bodies(committed_orders.read(qty=10)) == ["a3"]


def test_plain_sql_that_deletes_a_head_brings_up_the_next(orders, sql):
    send_line(orders, "a")
    [message] = orders.read()

    sql("DELETE FROM pgqueue_deferred WHERE id = %s", [message.id])

    assert bodies(orders.read(qty=10)) == ["a2"]


def test_plain_sql_that_deletes_unread_heads_brings_up_the_next(orders, sql):
    send_line(orders, "a")
    send_line(orders, "b")
    orders.send("x")
    orders.archive(orders.read(qty=10))  # a2 and b2 are in ready

    sql("DELETE FROM pgqueue_ready")

    assert bodies(orders.read(qty=10)) == ["a3", "b3"]


def test_one_statement_may_delete_heads_of_many_queues(orders, sql):
    Message.objects.create_queue("mails")
    mails = BoundQueue("mails")
    for queue in (orders, mails):
        send_line(queue, "a")
        send_line(queue, "b")
        queue.send("x")
        assert len(queue.read(qty=10)) == 3

    sql("DELETE FROM pgqueue_deferred")

    assert bodies(orders.read(qty=10)) == ["a2", "b2"]
    assert bodies(mails.read(qty=10)) == ["a2", "b2"]


def test_an_ack_of_many_groups_leaves_alone_the_one_that_another_holds(committed_orders, actor):
    send_line(committed_orders, "a", 3)
    send_line(committed_orders, "b", 3)
    heads_and_follower = committed_orders.read_grouped_rr(qty=3)
    assert bodies(heads_and_follower) == ["a1", "b1", "a2"]
    actor.do(begin)
    actor.do(call, "archive", "orders", heads_and_follower[2].receipt)

    committed_orders.archive(heads_and_follower[:2])

    assert bodies(committed_orders.read(qty=10)) == ["b2"]
    actor.do(commit)
    assert bodies(committed_orders.read(qty=10)) == ["a3"]


def test_an_ack_of_many_groups_waits_for_no_operator_who_takes_out_one_that_is_next(
    committed_orders, actor
):
    ids = send_line(committed_orders, "a", 3)
    send_line(committed_orders, "b", 3)
    heads = committed_orders.read(qty=10)
    actor.do(begin)
    actor.do(call, "delete", "orders", ids[1])

    assert sorted(committed_orders.archive(heads)) == sorted(head.id for head in heads)
    assert bodies(committed_orders.read(qty=10)) == ["b2"]

    actor.do(commit)
    assert bodies(committed_orders.read(qty=10)) == ["a3"]
