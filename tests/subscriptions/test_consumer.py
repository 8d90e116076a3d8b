"""Consumers of subscriptions."""

from __future__ import annotations

import threading

import pytest
from django.db import transaction

from django_pgqueue import queue
from django_pgqueue.acks import Reject
from django_pgqueue.engine.read import sleep
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.handlers import Handler
from django_pgqueue.models import Queue
from django_pgqueue.worker import Consumer, Options
from tests.app.models import Order
from tests.conftest import run_sql
from tests.waiting import until
from tests.worker.conftest import consume, events, held  # noqa: F401

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def audit(committed_orders):
    queue("audit").subscribe(to="orders", start="earliest")
    return queue("audit")


def left(name="audit"):
    """How many rows a queue has in the tables of messages in the queue."""
    return sum(
        run_sql(
            f"SELECT count(*) FROM pgqueue_{table} WHERE queue_id = "
            f"(SELECT id FROM pgqueue_queue WHERE name = '{name}')"
        )[0][0]
        for table in ("message", "ready", "deferred", "lease")
    )


def test_a_send_to_the_source_wakes_the_consumer(committed_orders, consume, monkeypatch):  # noqa: F811
    """The polls that find messages whatever happens are an hour away."""
    for name in ("_LISTENING", "_IN_DOUBT"):
        monkeypatch.setattr(sleep, name, (3600.0, 1.0, 3600.0))
    seen = []
    wake = Queue.objects.get(name="orders").tables["wake"]
    consume(lambda m: seen.append(m.body), "audit", max_fetch_interval=3600.0)

    for number in range(5):
        committed_orders.send(number)
        until(lambda: seen == list(range(number + 1)))  # noqa: B023
        until(lambda: run_sql(f"SELECT last_value FROM {wake}") == [(7,)])


def test_two_subscriptions_and_the_source_have_consumers_of_their_own(committed_orders, consume):  # noqa: F811
    queue("mirror").subscribe(to="orders", start="earliest")
    seen = {name: [] for name in ("orders", "audit", "mirror")}
    lock = threading.Lock()

    def handler(name):
        def work(message):
            with lock:
                seen[name].append(message.body)

        return Handler(name, work)

    consume(handlers=[handler(name) for name in seen], options={"workers": 2})
    for number in range(100):
        committed_orders.send(number)

    until(lambda: all(sorted(bodies) == list(range(100)) for bodies in seen.values()))


@pytest.mark.parametrize("policy", ["ACK", "ACK_FIRST", "TRANSACTIONAL", "NACK_ON_ERROR"])
def test_every_policy_delivers_every_message(committed_orders, consume, policy):  # noqa: F811
    seen = []
    committed_orders.send_batch(list(range(50)))

    run = consume(lambda m: seen.append(m.body), "audit", ack_policy=policy)
    until(lambda: sorted(seen) == list(range(50)))
    run.stop()

    assert left() == 0


def test_a_transactional_handler_rolls_back_with_its_ack(committed_orders, consume):  # noqa: F811
    committed_orders.send_batch(list(range(3)))
    failed = []

    def work(message):
        Order.objects.create(number=str(message.body))
        if message.body == 1 and not failed:
            failed.append(True)
            raise ValueError("once")

    run = consume(work, "audit", ack_policy="TRANSACTIONAL")
    until(lambda: Order.objects.count() == 3)
    run.stop()

    assert failed == [True]
    assert left() == 0


def test_failures_are_retried_and_end_in_the_subscriptions_archive(committed_orders, consume):  # noqa: F811
    committed_orders.send_batch(list(range(20)))
    tries: dict[int, int] = {}

    def work(message):
        tries[message.body] = tries.get(message.body, 0) + 1
        if message.body == 7:
            raise Reject("never")
        if message.body % 5 == 0 and tries[message.body] < 3:
            raise ValueError("again")

    run = consume(work, "audit")
    until(lambda: sum(tries.values()) == 28)
    run.stop()

    assert run_sql("SELECT state, read_ct FROM pgqueue_archive") == [("FAILED", 1)]
    assert left() == 1  # the body of the failed message


def test_leases_of_slow_handlers_are_extended_without_copies(committed_orders, consume, held):  # noqa: F811
    committed_orders.send_batch(list(range(5)))

    consume(held.work, "audit", visibility_timeout=1, options={"workers": 5})
    held.until_begun()
    leases = "SELECT max(vt) > now() + interval '0.4 s', min(read_at) < now() - interval '2 s'"
    until(lambda: run_sql(f"{leases} FROM pgqueue_lease") == [(True, True)], 30)

    assert run_sql("SELECT count(*) FROM pgqueue_deferred") == [(0,)]
    held.let_go()
    until(lambda: left() == 0)


def test_a_handler_with_locked_is_refused():
    with pytest.raises(InvalidArgument, match=r"'audit' is a subscription.*TRANSACTIONAL"):
        Consumer([Handler("audit", lambda message: None, locked=True)], Options())


def test_a_consumer_waits_for_a_position_that_is_lost(committed_orders, consume, events):  # noqa: F811
    seen = []
    run_sql("UPDATE pgqueue_cursor SET system = 1")
    committed_orders.send("x")

    consume(lambda m: seen.append(m.body), "audit")
    until(lambda: any("pgqueue_seek audit" in str(given.get("error")) for _, given in events))
    assert seen == []
    queue("audit").seek("earliest")

    until(lambda: seen == ["x"])


def test_a_dropped_subscription_leaves_its_source_alone(committed_orders, audit):
    with transaction.atomic():
        committed_orders.send("x")
    number = Queue.objects.get(name="orders").pk
    indexes = (
        f"SELECT count(*) FROM pg_index WHERE indrelid = 'pgqueue_message_q{number}'::regclass"
    )
    [(before,)] = run_sql(indexes)

    audit.drop()

    assert run_sql(indexes) == [(before - 1,)]
    assert run_sql("SELECT count(*) FROM pgqueue_cursor") == [(0,)]
    assert run_sql(
        f"SELECT count(*) FROM pg_trigger WHERE tgrelid = 'pgqueue_message_q{number}'::regclass "
        "AND tgname = 'pgqueue_message_left'"
    ) == [(0,)]
    assert committed_orders.read()[0].body == "x"
