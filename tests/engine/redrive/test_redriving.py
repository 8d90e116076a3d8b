"""Redrive moves dead letters back; replay sends archived messages again."""

from __future__ import annotations

import time

import pytest

from django_pgqueue.errors import InvalidArgument, QueueNotFound
from django_pgqueue.models import BoundQueue, Message, Queue
from django_pgqueue.types import State
from tests.messages import bodies

objects = Message.objects


@pytest.fixture
def dead(db: None) -> BoundQueue:
    objects.create_queue("dead")
    return BoundQueue("dead")


@pytest.fixture
def failing(dead: BoundQueue) -> BoundQueue:
    objects.create_queue("orders", dead_letter_queue="dead", max_deliveries=2)
    return BoundQueue("orders")


def fail_all(queue: BoundQueue, error: str = "no") -> list[int]:
    """Fail every message; returns the ids in the order of their failures."""
    failed: list[int] = []
    while messages := queue.read(qty=100):
        queue.fail({message.receipt: error for message in messages})
        failed += [message.id for message in messages]
    return failed


def test_a_message_whose_deliveries_ran_out_moves_and_tells_why(failing, dead):
    pk = failing.send({"order": 7}, headers={"h": 1})
    failing.read(vt=0)
    failing.read(vt=0)

    assert failing.read() == []

    [letter] = dead.read()
    assert (letter.id, letter.body, letter.read_ct) == (pk, {"order": 7}, 1)
    assert letter.headers is not None
    story = letter.headers["x-dead-letter"]
    assert (story["source"], story["reason"], story["read_ct"]) == ("orders", "max_deliveries", 2)
    assert story["count"] == 1
    assert letter.headers["h"] == 1
    assert failing.metrics().length == failing.metrics().archived == 0


def test_settings_changed_later_count_at_once(orders, dead):
    pk = orders.send(1)
    orders.read(vt=0)

    queue = Queue.objects.get(name="orders")
    queue.dead_letter_queue = Queue.objects.get(name="dead")
    queue.max_deliveries = 1
    queue.save()

    assert orders.read() == []
    assert [message.id for message in dead.read()] == [pk]


def test_redrive_sends_each_back_to_where_it_came_from(failing, dead):
    objects.create_queue("mails", dead_letter_queue="dead")
    mails = BoundQueue("mails")
    order, mail = failing.send("order"), mails.send("mail")
    fail_all(failing), fail_all(mails)

    assert dead.redrive() == 2

    assert [(m.id, m.body, m.read_ct) for m in failing.read(qty=5)] == [(order, "order", 1)]
    assert [(m.id, m.body) for m in mails.read(qty=5)] == [(mail, "mail")]
    assert dead.metrics().length == 0


def test_a_letter_that_fails_again_counts_so(failing, dead):
    failing.send(1)
    fail_all(failing, "first")
    dead.redrive()

    fail_all(failing, "second")

    [letter] = dead.read()
    assert letter.headers is not None
    story = letter.headers["x-dead-letter"]
    assert (story["count"], story["error"]) == (2, "second")


def test_redrive_takes_some_by_id_or_by_what_they_hold(failing, dead):
    ids = failing.send_batch([{"n": n % 3} for n in range(9)])
    fail_all(failing)

    assert dead.redrive(ids=ids[:2]) == 2
    assert dead.redrive(conditional={"n": 2}) == 3

    assert dead.metrics().length == 4


def test_redrive_to_one_queue_takes_also_what_was_sent_there(failing, dead, orders):
    objects.create_queue("repairs")
    failing.send("failed")
    fail_all(failing)
    dead.send("sent here")

    assert dead.redrive() == 1
    fail_all(failing)
    assert dead.redrive(to="repairs") == 2

    assert bodies(BoundQueue("repairs").read(qty=5)) == ["failed", "sent here"]


def test_redrive_leaves_messages_in_flight(failing, dead):
    failing.send_batch([1, 2])
    fail_all(failing)
    dead.read()

    assert dead.redrive() == 1

    assert dead.metrics().in_flight == 1


def test_redrive_keeps_the_order_of_groups(failing, dead):
    failing.send_batch([1, 2, 3], group="g")
    fail_all(failing)
    assert dead.metrics().length == 3

    assert dead.redrive() == 3

    assert bodies(failing.read_grouped(qty=5)) == [1, 2, 3]


def test_redrive_goes_in_batches_and_tells_how_far_it_is(failing, dead, monkeypatch):
    monkeypatch.setattr("django_pgqueue.engine.redrive.redriving.BATCH", 4)
    failing.send_batch(list(range(10)))
    fail_all(failing)
    told: list[int] = []

    assert dead.redrive(progress=told.append) == 10

    assert told == [4, 8, 10]


def test_redrive_passes_what_is_done_or_held_on_its_way(failing, dead, monkeypatch):
    monkeypatch.setattr("django_pgqueue.engine.redrive.redriving.BATCH", 3)
    ids = failing.send_batch(list(range(20)))
    fail_all(failing)
    dead.archive(ids[2:9])
    held = [message.id for message in dead.read(qty=2, vt=600)]
    dead.set_vt(ids[12], 600)

    assert dead.redrive() == 20 - 7 - 2

    assert held == ids[:2]
    assert {message.id for message in failing.read(qty=99)} == set(ids[9:])
    assert dead.metrics().length == 2


def test_redrive_keeps_to_its_rate(failing, dead):
    failing.send_batch(list(range(12)))
    fail_all(failing)

    start = time.monotonic()
    assert dead.redrive(rate=40) == 12

    assert time.monotonic() - start >= 0.25


def test_redrive_names_a_source_that_is_gone_after_the_rest(failing, dead):
    objects.create_queue("mails", dead_letter_queue="dead")
    BoundQueue("mails").send("mail")
    failing.send("order")
    fail_all(BoundQueue("mails")), fail_all(failing)
    objects.drop_queue("mails")

    with pytest.raises(QueueNotFound, match="mails"):
        dead.redrive()

    assert bodies(failing.read()) == ["order"]
    assert dead.metrics().length == 1


def test_what_a_redrive_cannot_do_is_refused(failing, dead):
    with pytest.raises(InvalidArgument, match="cannot be the target of its own redrive"):
        dead.redrive(to="dead")
    with pytest.raises(InvalidArgument, match="rate"):
        dead.redrive(rate=0)


def test_dead_letter_queues_cannot_form_a_loop(failing, dead):
    queue = Queue.objects.get(name="dead")
    queue.dead_letter_queue = Queue.objects.get(name="orders")

    with pytest.raises(InvalidArgument, match="dead -> orders -> dead"):
        queue.save()

    queue.dead_letter_queue = queue
    with pytest.raises(InvalidArgument, match="dead -> dead"):
        queue.save()


def test_replay_sends_archived_messages_as_new_ones(orders):
    ids = orders.send_batch([1, 2], headers={"h": 1}, group="g", priority=3)
    while messages := orders.read():
        orders.archive(messages)

    assert orders.replay() == 2

    again = orders.read_grouped(qty=5)
    assert bodies(again) == [1, 2]
    assert [m.headers for m in again] == [{"h": 1, "x-replay-of": pk} for pk in ids]
    assert min(m.id for m in again) > max(ids)
    assert {m.priority for m in again} == {3}
    assert orders.metrics().archived == 2


@pytest.mark.parametrize("rate", [None, 1000])
def test_replay_finds_the_few_that_are_asked_for_among_many(orders, monkeypatch, rate):
    monkeypatch.setattr("django_pgqueue.engine.redrive.redriving.BATCH", 3)
    objects.create_queue("audit")
    ids = orders.send_batch([{"n": n, "odd": n % 2} for n in range(20)])
    orders.archive(ids)

    assert orders.replay(conditional={"n": 13}, to="audit", rate=rate) == 1
    assert orders.replay(conditional={"odd": 1}, to="audit", rate=rate) == 10
    assert orders.replay(ids=[*ids[::5], 10**9], to="audit", rate=rate) == 4
    assert orders.replay(conditional={"n": 99}, to="audit", rate=rate) == 0

    sent = [message.body["n"] for message in BoundQueue("audit").read(qty=99)]
    assert sent == [13, *range(1, 20, 2), *range(0, 20, 5)]
    assert orders.replay(rate=rate) == 20


def test_replay_takes_the_messages_of_one_state(orders):
    orders.send_batch([1, 2])
    done, failed = orders.read(qty=2)
    orders.archive(done)
    orders.fail({failed.receipt: "no"})

    assert orders.replay(state=State.FAILED) == 1

    assert bodies(orders.read()) == [2]
    with pytest.raises(InvalidArgument, match="state"):
        orders.replay(state="PENDING")
