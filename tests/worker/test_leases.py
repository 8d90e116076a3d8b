"""Leases: extended while handlers run, released unstarted, lost, and of poison messages."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from django.db import transaction

from django_pgqueue.errors import LeaseLost
from django_pgqueue.models import Message, Process
from django_pgqueue.retries import NoRetry
from django_pgqueue.worker.quarantine import is_suspect
from tests.app.models import Order
from tests.conftest import run_sql
from tests.leasing import lease
from tests.waiting import until
from tests.worker.consuming import elsewhere, errors, leases, live, outcomes, steal

pytestmark = pytest.mark.django_db(transaction=True)

Events = list[tuple[str, dict[str, Any]]]


def named(events: Events, name: str) -> list[dict[str, Any]]:
    return [kwargs for event, kwargs in events if event == name]


@pytest.mark.parametrize("policy", ["NACK_ON_ERROR", "TRANSACTIONAL"])
def test_a_lease_is_extended_while_its_handler_runs(
    committed_orders, consume, held, events, policy
):
    pk = committed_orders.send(1)

    run = consume(held.work, ack_policy=policy, visibility_timeout=0.6, max_workers=1)
    until(lambda: len(named(events, "leases_extended")) >= 4)
    others = committed_orders.read()
    held.let_go()
    until(lambda: run.subscription.counts.completed == 1)

    assert others == []
    assert outcomes() == {pk: "COMPLETED"}


def test_messages_that_wait_for_half_their_lease_are_released_uncounted(
    committed_orders, consume, held, events
):
    ids = committed_orders.send_batch(list(range(5)))

    consume(held.work, visibility_timeout=1, max_workers=1)
    until(lambda: named(events, "messages_released"))
    leased = [row for row in live() if row[1] == "PROCESSING"]
    held.let_go()
    until(lambda: len(outcomes()) == 5)

    assert leased
    assert sorted(outcomes()) == ids
    assert {
        m.read_ct for kwargs in named(events, "messages_completed") for m in kwargs["messages"]
    } == {1}


@pytest.mark.parametrize("by", ["its outcome", "the lease loop"])
def test_a_lost_lease_is_announced_once_and_its_ack_changes_nothing(
    committed_orders, consume, events, by
):
    """When the lease loop has announced it, the later outcome finds the same lease lost."""
    stolen: list[int] = []

    def lose(message: Message) -> None:
        if message.read_ct == 1:
            stolen.extend(steal(message))
            until(lambda: by == "its outcome" or named(events, "leases_lost"), seconds=20)

    pk = committed_orders.send(1)

    run = consume(lose, max_workers=1, visibility_timeout=60 if by == "its outcome" else 1)
    until(lambda: run.subscription.counts.lost == 1 and named(events, "leases_lost"), seconds=20)
    run.stop()

    assert stolen == [pk]
    assert [[m.id for m in lost["messages"]] for lost in named(events, "leases_lost")] == [[pk]]
    assert live() == [(pk, "PROCESSING", 2, 0)]


@pytest.mark.parametrize("policy", ["ACK_FIRST", "NACK_ON_ERROR"])
def test_a_handler_that_goes_on_after_its_ack_loses_no_lease(
    committed_orders, consume, held, events, policy
):
    done, _other = committed_orders.send_batch([1, 2])

    def work(message: Message) -> None:
        if message.id == done:
            message.ack()
        held.work(message)

    run = consume(work, ack_policy=policy, visibility_timeout=1, max_workers=2)
    until(lambda: done in outcomes())
    until(lambda: len(run.subscription.running) == 2)
    [lease] = [m for r in run.subscription.running.values() for m in r.messages if m.id == done]
    end = lease.lease_until
    until(lambda: run.consumer.leases[0]._checked > end, seconds=20)
    held.let_go()
    until(lambda: run.subscription.counts.completed == 2)

    assert named(events, "leases_lost") == []


def test_a_message_whose_lease_ran_out_in_the_buffer_is_not_run(committed_orders, consume):
    """As after SIGSTOP of the whole process, which its loops cannot notice."""
    ran: list[int] = []
    pk = committed_orders.send(1)
    run = consume(lambda message: ran.append(message.read_ct), max_workers=1)
    until(lambda: run.subscription.counts.completed == 1)
    [late] = committed_orders.send_batch([2])
    until(lambda: len(ran) == 2)

    expired = Message(id=pk)
    expired.read_ct, expired.lease_until = 1, time.monotonic() - 1
    run.subscription.buffer.put([expired])
    until(lambda: run.subscription.counts.lost == 1)

    assert ran == [1, 1]
    until(lambda: sorted(outcomes()) == [pk, late])


# extend


def test_extend_prolongs_by_more_than_the_lease_loop_would(committed_orders, drain):
    left: list[float] = []

    def extend(message: Message) -> None:
        message.extend(600)
        time.sleep(0.7)
        [(seconds,)] = run_sql(
            "SELECT extract(epoch FROM vt - now()) FROM pgqueue_deferred WHERE id = %s",
            [message.id],
        )
        left.append(float(seconds))

    committed_orders.send(1)

    drain(extend, visibility_timeout=1)

    assert left[0] > 590


def test_extend_of_a_lost_lease_raises(committed_orders, consume):
    raised: list[BaseException] = []

    def extend(message: Message) -> None:
        if message.read_ct == 1:
            steal(message)
            try:
                message.extend()
            except LeaseLost as error:
                raised.append(error)

    committed_orders.send(1)

    consume(extend, max_workers=1)

    until(lambda: raised)


def test_extend_in_a_transaction_does_not_hold_up_the_lease_loop(committed_orders, consume, events):
    finish = threading.Event()

    def extend_and_wait(message: Message) -> None:
        with transaction.atomic():
            Order.objects.create(number=str(message.id))
            if message.body == "extend":
                message.extend(30)
            finish.wait(30)

    committed_orders.send_batch(["extend", "wait"])

    consume(extend_and_wait, ack_policy="TRANSACTIONAL", visibility_timeout=0.6, max_workers=2)
    until(lambda: len(named(events, "leases_extended")) >= 5)
    finish.set()

    until(lambda: len(outcomes()) == 2)
    assert not named(events, "database_failed")


def test_a_row_that_a_handler_locks_keeps_no_other_lease_from_being_extended(
    committed_orders, consume, held, events
):
    """Nobody can read a locked row, so its message is not delivered again either."""
    runs: list[Any] = []

    def work(message: Message) -> None:
        runs.append(message.body)
        with transaction.atomic():
            if message.body == "locks":
                committed_orders.set_vt(message, 60)
            held.work(message)

    committed_orders.send_batch(["locks", "waits", "waits, too"])
    consume(work, visibility_timeout=1.2, max_workers=3)
    until(lambda: len(runs) == 3)
    time.sleep(2.5)  # twice a lease
    others = committed_orders.read()
    held.let_go()
    until(lambda: len(outcomes()) == 3)

    assert (others, len(runs)) == ([], 3)
    assert not named(events, "leases_lost")
    assert not named(events, "database_failed")


# Poison


def test_max_deliveries_is_checked_before_the_handler_runs(committed_orders, drain):
    """The deliveries ended with dead processes, without an outcome."""
    ran: list[int] = []
    pk = committed_orders.send(1)
    for _ in range(3):
        [message] = committed_orders.read()
        committed_orders.set_vt(message, 0)

    drain(lambda message: ran.append(message.id), max_deliveries=3)

    assert (ran, outcomes()) == ([], {pk: "FAILED"})
    assert errors() == ["gave up after 3 deliveries; none of them reported an outcome"]


def test_the_queues_max_deliveries_counts_without_one_of_the_handler(committed, drain):
    Message.objects.create_queue("dead")
    Message.objects.create_queue("orders", max_deliveries=1, dead_letter_queue="dead")
    Message.objects.send("orders", 1)
    [message] = Message.objects.read("orders")
    Message.objects.set_vt("orders", message, 0)

    drain(lambda message: None)

    [dead] = Message.objects.read("dead")
    assert dead.headers["x-dead-letter"]["reason"] == "max_deliveries"


def test_attempts_and_deliveries_are_counted_apart(committed_orders, drain):
    seen: list[tuple[int, int]] = []
    committed_orders.send(1)
    [message] = committed_orders.read()
    committed_orders.set_vt(message, 0)

    def look(message: Message, context: Any) -> None:
        seen.append((context.attempt, context.deliveries))
        raise ValueError

    drain(look, retry=NoRetry())

    assert seen == [(1, 2)]


def test_a_suspect_runs_alone(committed_orders, drain):
    """A message delivered twice without an outcome may kill its process."""
    inside: set[int] = set()
    company: dict[int, int] = {}
    lock = threading.Lock()

    def look(message: Message) -> None:
        with lock:
            inside.add(message.id)
        time.sleep(0.02)
        with lock:
            company[message.id] = len(inside)
            inside.discard(message.id)

    ids = committed_orders.send_batch(list(range(30)))
    suspects = ids[:3]
    for _ in range(2):
        leased = committed_orders.read(qty=3)
        assert [message.id for message in leased] == suspects
        committed_orders.set_vt(suspects, 0)

    drain(look, max_workers=4)

    assert sorted(outcomes()) == ids
    assert {company[pk] for pk in suspects} == {1}
    assert max(company.values()) > 1


def test_messages_of_one_killed_process_run_among_others(committed_orders, drain):
    """A killed process makes no suspects: at most one of its messages killed it."""
    together = threading.Barrier(4)
    ids = committed_orders.send_batch(list(range(4)))
    committed_orders.read(qty=4)
    committed_orders.set_vt(ids, 0)

    # Each handler waits for the others, and would time out alone.
    drain(lambda message: together.wait(10), max_workers=4, retry=NoRetry())

    assert outcomes() == dict.fromkeys(ids, "COMPLETED")


@pytest.mark.parametrize(
    ("deliveries", "attempts", "suspect"),
    [
        (1, 0, False),
        (2, 0, False),
        (3, 0, True),
        (3, 1, False),
        (9, 8, False),
        (9, 6, True),
        (10, 9, False),
        (10, 8, True),
    ],
)
def test_a_message_is_suspect_after_two_deliveries_without_an_outcome_or_one_before_its_last(
    deliveries, attempts, suspect
):
    message = Message(id=1)
    message.read_ct, message.attempts = deliveries, attempts

    assert is_suspect(message, max_deliveries=10) is suspect


def test_a_suspect_is_run_though_others_take_longer_than_its_lease(committed_orders, consume):
    begun, finish = threading.Event(), threading.Event()

    def work(message: Message) -> None:
        if message.body == "long":
            begun.set()
            finish.wait(30)

    committed_orders.send("long")
    consume(work, visibility_timeout=1, max_workers=2)
    begun.wait(10)
    suspect = committed_orders.send("suspect", delay=3600)
    committed_orders.set_vt(suspect, 0)
    # As if a consumer had died while handling it.
    run_sql("UPDATE pgqueue_deferred SET read_ct = 3 WHERE id = %s", [suspect])

    until(lambda: suspect in outcomes(), 20)
    finish.set()


# Heartbeats and rescue


def test_a_dead_consumers_leases_come_back_before_their_timeout(committed_orders, consume, events):
    pk = committed_orders.send(1)
    dead = Process.objects.register(["orders"], version="1", using="default")
    lease("orders", vt=3600, process_id=dead.pk)
    silence(dead, seconds=60)

    consume(lambda message: None)
    until(lambda: pk in outcomes())

    [rescued] = named(events, "leases_rescued")
    assert (rescued["count"], rescued["worker"]) == (1, dead.pk)
    assert not Process.objects.filter(pk=dead.pk).exists()


def silence(process: Process, seconds: int) -> None:
    run_sql(
        "UPDATE pgqueue_process SET heartbeat_at = now() - make_interval(secs => %s) WHERE id = %s",
        [seconds, process.pk],
    )


def test_a_process_row_names_the_messages_it_works_on(committed_orders, consume, held):
    pk = committed_orders.send(1)

    run = consume(held.work, options={"heartbeat": 0.1})
    until(lambda: Process.objects.filter(working_on={"orders": [pk]}).exists())
    process = Process.objects.get()
    held.let_go()
    run.stop()

    assert (process.queues, process.stopping) == (["orders"], False)
    assert not Process.objects.exists()


def test_a_consumer_taken_for_dead_registers_again_and_goes_on(committed_orders, consume):
    run = consume(lambda message: None, options={"heartbeat": 0.05})
    until(lambda: Process.objects.exists())
    first = Process.objects.get().pk
    elsewhere(lambda: Process.objects.all().delete())

    until(lambda: Process.objects.exclude(pk=first).exists())
    committed_orders.send(1)
    until(lambda: run.subscription.counts.completed == 1)


def test_a_graceful_stop_leaves_no_lease(committed_orders, consume, held):
    committed_orders.send_batch(list(range(10)))
    run = consume(held.work, max_workers=1)
    held.until_begun()
    run.consumer.stop()
    until(lambda: len([row for row in live() if row[1] == "PROCESSING"]) == 1)
    held.let_go()
    run.wait()

    assert (leases(), len(outcomes())) == (0, 1)
    assert {(row[2], row[3]) for row in live()} == {(0, 0)}


def test_a_handler_that_a_stop_interrupts_loses_its_message_at_once_and_uncounted(
    committed_orders, consume, held, events
):
    """Its outcome comes too late: by then the message may be running elsewhere."""
    pk = committed_orders.send(1)
    run = consume(held.work, options={"graceful_timeout": 0.2})
    held.until_begun()
    [running] = run.subscription.running.values()

    run.stop()
    held.let_go()
    until(lambda: not alive(running.thread))

    assert (live(), len(run.subscription.unwritten)) == ([(pk, "SCHEDULED", 0, 0)], 0)
    assert named(events, "leases_lost") == []
    [interrupted] = named(events, "messages_interrupted")
    assert [message.id for message in interrupted["messages"]] == [pk]
    assert [message.id for message in committed_orders.read()] == [pk]


def test_a_message_that_runs_while_its_process_grows_too_large_keeps_its_delivery(
    committed_orders, consume, held, monkeypatch
):
    """The message may be the reason, so max_deliveries must end it."""
    pk = committed_orders.send(1)
    run = consume(held.work, options={"graceful_timeout": 0.2, "max_memory": 2**60})
    held.until_begun()

    monkeypatch.setattr("django_pgqueue.worker.consumer.memory", lambda: 2**61)
    run.wait()
    held.let_go()

    assert leases() == 0
    assert [(message.id, message.read_ct) for message in committed_orders.read()] == [(pk, 2)]


def alive(thread: int | None) -> bool:
    return thread in {each.ident for each in threading.enumerate()}
