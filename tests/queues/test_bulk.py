"""Bulk actions: in steps, by any process, and only on the confirmed messages."""

from __future__ import annotations

import datetime as dt
import secrets
import threading
import time
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.utils.timezone import now

from django_pgqueue import signals
from django_pgqueue.models import ArchivedMessage, BoundQueue, BulkAction, Message, Queue, queue
from django_pgqueue.queues import bulk
from django_pgqueue.queues.bulk import Kind
from tests.actors import begin as begin_block
from tests.actors import execute, rollback
from tests.conftest import rolled_back
from tests.hearing import listening
from tests.hindrances import hinder, statement_timeout
from tests.waiting import until


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "PART", 10)


def begin(name: str, kind: Kind, ids: list[int], **values: Any) -> BulkAction:
    found = Queue.objects.get(name=name)
    return BulkAction.objects.begin(found, kind, ids, values)


def drive() -> None:
    while (wait := BulkAction.objects.drive(using="default")) is not None:
        time.sleep(wait)


def driven(*bulk_actions: BulkAction) -> list[tuple[str, int, int]]:
    """Drive everything; returns the state, and how many messages were done and passed over."""
    drive()
    for each in bulk_actions:
        each.refresh_from_db()
    return [(each.state, each.done, each.passed) for each in bulk_actions]


@pytest.fixture
def dead(orders: BoundQueue, dead_letters: BoundQueue) -> list[int]:
    """The ids of 25 dead letters of orders."""
    ids = orders.send_batch(list(range(25)))
    for message in orders.read(qty=25):
        message.reject("no")
    return ids


@pytest.mark.parametrize("text", ["a NUL \x00", "a surrogate \ud800"], ids=["NUL", "surrogate"])
def test_an_error_that_postgres_cannot_store_stops_its_own_bulk_action_only(
    orders, dead, monkeypatch, text
):
    bad, good = begin("dead", Kind.REDRIVE, dead[:5]), begin("dead", Kind.DELETE, dead[5:])

    def refuse(*given: Any, **options: Any) -> None:
        raise ValueError(text)

    monkeypatch.setattr(bulk.redriving, "redrive", refuse)

    assert driven(bad, good) == [("failed", 0, 0), ("done", 20, 0)]
    assert bad.error.startswith(text[:5])


def test_a_bulk_action_goes_in_steps_and_counts(orders, dead, small_parts):
    bulk_action = begin("dead", Kind.REDRIVE, dead)
    seen = []
    while BulkAction.objects.drive(0.0001, using="default") is not None:
        bulk_action.refresh_from_db()
        seen.append(bulk_action.done)

    bulk_action.refresh_from_db()
    assert seen == [10, 20]
    assert (bulk_action.state, bulk_action.done, bulk_action.passed) == ("done", 25, 0)
    assert bulk_action.finished_at is not None
    assert orders.metrics().length == 25
    assert not bulk_action.parts.exists()


def test_each_kind_of_bulk_action_changes_its_messages(orders):
    ids = orders.send_batch(list(range(4)), delay=60)
    other = orders.send_batch([8, 9])
    [failed] = orders.read()
    failed.reject("no")

    begin("orders", Kind.READABLE, ids[:1])
    begin("orders", Kind.CANCEL, ids[1:2], username="ann")
    begin("orders", Kind.DELETE, ids[2:3])
    begin("orders", Kind.REPLAY, [failed.id])
    drive()

    by_hand = ArchivedMessage.objects.get(pk=ids[1])
    assert (by_hand.state, by_hand.error) == ("CANCELLED", "cancelled by ann")
    assert not Message.objects.filter(pk=ids[2]).exists()
    assert [m.body for m in orders.read(qty=9)] == [0, 9, 8]
    begin("orders", Kind.DISCARD, [failed.id])
    drive()
    assert failed.id == other[0]
    assert not Message.objects.filter(pk=failed.id).exists()
    assert not ArchivedMessage.objects.filter(pk=failed.id).exists()


def test_discarding_leaves_messages_in_the_queue_alone(orders):
    live, done = orders.send_batch([1, 2])
    orders.archive(done)

    assert driven(begin("orders", Kind.DISCARD, [live, done])) == [("done", 1, 1)]

    assert list(Message.objects.values_list("pk", flat=True)) == [live]


@pytest.mark.parametrize("size", [3, 30])
@pytest.mark.parametrize("kind", [Kind.READABLE, Kind.CANCEL, Kind.DELETE, Kind.PURGE])
def test_messages_in_flight_are_left_alone_unless_asked_for(orders, kind, size):
    ids = orders.send_batch(list(range(size + 2)))
    held = orders.read(qty=size, vt=60)

    assert driven(begin("orders", kind, ids)) == [("done", 2, size)]
    assert not orders.archive(held[:1]).lost
    asked = begin("orders", kind, [m.id for m in held], in_flight=True)
    assert driven(asked) == [("done", size - 1, 1)]


def test_a_rate_is_kept(orders, dead, monkeypatch):
    bulk_action = begin("dead", Kind.REDRIVE, dead, rate=50)
    start = now()
    done = []

    for milliseconds in (0, 0, 60, 100, 150):
        at = start + dt.timedelta(milliseconds=milliseconds)
        monkeypatch.setattr(bulk, "now", lambda at=at: at)
        wait = BulkAction.objects._step(bulk_action.pk, "default")
        bulk_action.refresh_from_db()
        done.append((bulk_action.done, wait))

    assert done == [(5, 0.0), (5, 0.1), (5, 0.04), (10, 0.0), (10, 0.05)]


def test_a_bulk_action_is_stopped_and_resumed(orders, dead, small_parts):
    bulk_action = begin("dead", Kind.REDRIVE, dead)
    BulkAction.objects.drive(0.0001, using="default")

    assert bulk_action.stop()
    assert not bulk_action.stop()
    assert BulkAction.objects.drive(using="default") is None
    bulk_action.refresh_from_db()
    assert (bulk_action.done, bulk_action.left) == (10, 15)
    assert bulk_action.resume()

    assert driven(bulk_action) == [("done", 25, 0)]


def test_a_bulk_action_whose_target_was_dropped_fails_and_names_it(orders, dead):
    bulk_action = begin("dead", Kind.REDRIVE, dead, target="nowhere")

    assert driven(bulk_action) == [("failed", 0, 0)]
    assert "nowhere" in bulk_action.error
    assert queue("dead").metrics().length == 25


def test_dead_letters_without_a_source_are_passed_over(orders, dead):
    stray = queue("dead").send("came by itself")

    assert driven(begin("dead", Kind.REDRIVE, [*dead, stray])) == [("done", 25, 1)]


def test_the_end_of_a_bulk_action_is_signalled_once(orders, dead):
    begin("dead", Kind.REDRIVE, dead)

    told: list[tuple[str, int]] = []

    def ended(bulk_action: Any, **kwargs: Any) -> None:
        told.append((bulk_action.state, bulk_action.done))

    with listening(signals.bulk_action_ended, ended):
        drive()
        drive()

    assert told == [("done", 25)]


@pytest.mark.django_db(transaction=True)
def test_a_step_that_is_cut_off_changes_nothing(committed_orders):
    ids = committed_orders.send_batch([1, 2, 3])
    bulk_action = begin("orders", Kind.REPLAY, ids)
    committed_orders.archive(ids)

    with rolled_back():
        BulkAction.objects._step(bulk_action.pk, "default")

    assert committed_orders.metrics().length == 0
    assert driven(bulk_action) == [("done", 3, 0)]
    assert committed_orders.metrics().length == 3


@pytest.mark.django_db(transaction=True)
def test_many_processes_touch_no_message_twice(committed_orders, small_parts):
    ids = committed_orders.send_batch(list(range(200)))
    committed_orders.archive(ids)
    bulk_action = begin("orders", Kind.REPLAY, ids)

    def work() -> None:
        try:
            drive()
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert driven(bulk_action) == [("done", 200, 0)]
    assert committed_orders.metrics().length == 200


@pytest.mark.django_db(transaction=True)
def test_a_step_waits_a_moment_only_for_messages_that_others_hold(committed_orders, actor):
    [pk] = committed_orders.send_batch([1], delay=60)
    bulk_action = begin("orders", Kind.DELETE, [pk])
    actor.do(begin_block)
    actor.do(execute, "SELECT 1 FROM pgqueue_deferred WHERE id = %s FOR UPDATE", [pk])

    wait = BulkAction.objects._step(bulk_action.pk, "default")

    bulk_action.refresh_from_db()
    assert (wait, bulk_action.done, bulk_action.state) == (1.0, 0, "running")
    actor.do(rollback)
    assert driven(bulk_action) == [("done", 1, 0)]


@pytest.mark.parametrize("at_commit", [False, True])
@pytest.mark.django_db(transaction=True)
def test_a_bulk_action_that_fails_keeps_its_error_and_others_go_on(
    committed_orders, at_commit, caplog
):
    ids = committed_orders.send_batch([1, 2, 3])
    committed_orders.archive(ids)
    Message.objects.create_queue("audited")
    caplog.set_level("INFO", "django_pgqueue")
    hinder("audited", "RAISE EXCEPTION 'no % allowed', NEW.body;", at_commit=at_commit)
    broken = begin("orders", Kind.REPLAY, ids, target="audited")
    good = begin("orders", Kind.REPLAY, ids)

    assert driven(broken, good) == [("failed", 0, 0), ("done", 3, 0)]

    assert broken.left == 3
    assert "no 1 allowed" in broken.error
    assert broken.finished_at is not None
    told = "orders: bulk action %s (replay) failed after 0 of 3 messages: no 1 allowed"
    assert told % broken.pk in caplog.messages


def test_a_failed_bulk_action_is_resumed_where_it_failed(orders, small_parts):
    ids = orders.send_batch(list(range(25)))
    orders.archive(ids)
    Message.objects.create_queue("audited")
    allow = hinder("audited", "IF NEW.body = '15' THEN RAISE EXCEPTION 'not 15'; END IF;")
    bulk_action = begin("orders", Kind.REPLAY, ids, target="audited")
    assert driven(bulk_action) == [("failed", 10, 0)]
    allow()

    assert bulk_action.resume()

    assert driven(bulk_action) == [("done", 25, 0)]
    assert bulk_action.error == ""
    assert [m.body for m in queue("audited").read(qty=99)] == list(range(25))


@pytest.mark.django_db(transaction=True)
def test_steps_become_smaller_until_the_statement_timeout_allows_them(committed_orders):
    ids = committed_orders.send_batch([secrets.token_hex(150_000)] * 100)
    committed_orders.archive(ids)
    bulk_action = begin("orders", Kind.REPLAY, ids)
    started = time.monotonic()
    with rolled_back():
        committed_orders.replay(ids=ids)

    with statement_timeout((time.monotonic() - started) / 3):
        assert driven(bulk_action) == [("done", 100, 0)]

    assert bulk_action.step_size < 100
    assert committed_orders.metrics().length == 100


@pytest.mark.django_db(transaction=True)
def test_a_message_that_alone_takes_too_long_fails_the_bulk_action(committed_orders):
    ids = committed_orders.send_batch(list(range(20)))
    committed_orders.archive(ids)
    Message.objects.create_queue("audited")
    hinder("audited", "IF NEW.body = '13' THEN PERFORM pg_sleep(60); END IF;")
    bulk_action = begin("orders", Kind.REPLAY, ids, target="audited")
    other = begin("orders", Kind.REPLAY, ids)

    with statement_timeout(0.5):
        assert driven(bulk_action, other) == [("failed", 13, 0), ("done", 20, 0)]

    assert f"message {ids[13]}" in bulk_action.error
    assert "statement timeout" in bulk_action.error


def test_steps_grow_again(orders, dead):
    bulk_action = begin("dead", Kind.REDRIVE, dead, step_size=3)
    seen = []

    while BulkAction.objects.drive(0.0001, using="default") is not None:
        bulk_action.refresh_from_db()
        seen.append(bulk_action.done)

    assert seen == [3, 7, 12, 18]


@pytest.mark.django_db(transaction=True)
def test_a_message_that_others_hold_delays_only_itself(committed_orders, actor):
    ids = committed_orders.send_batch(list(range(12)), delay=60)
    bulk_action = begin("orders", Kind.DELETE, ids)
    other = begin("orders", Kind.READABLE, [ids[0]])
    actor.do(begin_block)
    actor.do(execute, "SELECT 1 FROM pgqueue_deferred WHERE id = %s FOR UPDATE", [ids[-1]])

    def is_waiting() -> bool:
        BulkAction.objects.drive(using="default")
        bulk_action.refresh_from_db()
        return bool(bulk_action.error)

    until(is_waiting)

    other.refresh_from_db()
    assert (bulk_action.state, bulk_action.done) == ("running", 11)
    assert f"message {ids[-1]}" in bulk_action.error
    assert other.state == "done"
    actor.do(rollback)
    assert driven(bulk_action) == [("done", 12, 0)]
    assert bulk_action.error == ""


@pytest.mark.django_db(transaction=True)
def test_a_bulk_action_goes_on_after_a_lost_connection(committed_orders, small_parts):
    ids = committed_orders.send_batch(list(range(25)))
    committed_orders.archive(ids)
    Message.objects.create_queue("audited")
    hinder("audited", cut_at=15)
    bulk_action = begin("orders", Kind.REPLAY, ids, target="audited")

    with pytest.raises(OperationalError):
        drive()

    bulk_action.refresh_from_db()
    assert (bulk_action.state, bulk_action.done) == ("running", 10)
    assert "interrupted" in bulk_action.error
    assert driven(bulk_action) == [("done", 25, 0)]
    assert bulk_action.error == ""
    assert queue("audited").metrics().length == 25


@pytest.mark.django_db(transaction=True)
def test_a_bulk_action_that_loses_each_connection_holds_up_no_other(committed_orders):
    ids = committed_orders.send_batch([1, 2, 3, 4])
    committed_orders.archive(ids)
    Message.objects.create_queue("audited")
    hinder(
        "audited", "IF NEW.body = '2' THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;"
    )
    broken = begin("orders", Kind.REPLAY, ids, target="audited", step_size=4)
    good = begin("orders", Kind.REPLAY, ids)

    for _ in range(3):
        with pytest.raises(OperationalError):
            BulkAction.objects.drive(using="default")

    broken.refresh_from_db()
    good.refresh_from_db()
    assert (good.state, good.done) == ("done", 4)
    assert (broken.state, broken.done) == ("running", 1)
