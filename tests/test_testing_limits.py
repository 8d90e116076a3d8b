"""``drain``, ``eager`` and ``travel`` with each setting of a queue, in any transaction."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from django.db import connection, transaction

from django_pgqueue import consumer, queue
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.models import ArchivedMessage, BoundQueue, Message, Queue, Schedule
from django_pgqueue.retries import Constant
from django_pgqueue.testing import assert_enqueued, drain, eager, travel

Make = Callable[..., BoundQueue]
IN_A_TRANSACTION = {"atomic": transaction.atomic, "autocommit": nullcontext}
SETTINGS = [
    {"limit": 1},
    {"rate": "10/h"},
    {"rate": "10/h", "burst": 3},
    {"group_limit": 2},
    {"group_rate": "10/h"},
    {"group_rate": "10/h", "group_burst": 3},
    {"group_rate": "10/h", "group_limit": 2},
    {"limit": 5, "rate": "10/h", "burst": 2, "group_limit": 2, "group_rate": "10/h"},
    {"max_deliveries": 1},
]


#: As in a TestCase, a transaction around each test, and as in a TransactionTestCase.
CASES = [
    pytest.param("TestCase", marks=pytest.mark.django_db),
    pytest.param("TransactionTestCase", marks=pytest.mark.django_db(transaction=True)),
]
pytestmark = pytest.mark.parametrize("case", CASES)


@pytest.fixture
def make(case: str, db: None, own_handlers: None) -> Iterator[Make]:
    """Makes a queue for the test, of which none is left."""

    def make(**settings: Any) -> BoundQueue:
        Message.objects.create_queue("orders", **settings)
        return queue("orders")

    yield make
    if not connection.in_atomic_block:
        Queue.objects.get(name="orders").delete()


@pytest.fixture(params=IN_A_TRANSACTION)
def transacting(request: pytest.FixtureRequest) -> Callable[[], Any]:
    return IN_A_TRANSACTION[request.param]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_drain_handles_what_the_settings_allow(make, transacting, settings):
    orders = make(**settings)
    allowed = min(settings.get("burst", 1) if "rate" in settings else 3, 3)
    if "group_rate" in settings:
        slots = settings.get("group_burst") or settings.get("group_limit") or 1
        allowed = min(allowed, slots)

    with transacting():
        orders.send_batch([1, 2, 3], group="customer-7")
        handled = drain("orders", lambda message: None)

        assert [message.body for message in handled] == [1, 2, 3][:allowed]
        assert orders.metrics().length == 3 - allowed
        for body in [1, 2, 3][allowed:]:
            assert_enqueued("orders", body=body, group="customer-7", count=1)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_in_eager_mode_a_message_is_handled_whatever_the_settings(make, transacting, settings):
    orders, handled = make(**settings), []

    @consumer("orders")
    def charge(message: Message) -> None:
        handled.append(message.body)

    with eager(), transacting():
        orders.send(1, group="customer-7")
        assert handled == [1]
    assert ArchivedMessage.objects.get().state == "COMPLETED"


HOUR = 3600
RATES = [
    ({"rate": "10/h"}, None),
    ({"rate": "10/h", "limit": 1}, None),
    ({"group_rate": "10/h"}, "customer-7"),
    ({"group_rate": "10/h", "group_limit": 1}, "customer-7"),
    ({"rate": "10/h", "group_rate": "100/h"}, "customer-7"),
]


@pytest.mark.parametrize(("settings", "group"), RATES, ids=str)
def test_travel_admits_what_the_rate_admits_in_that_time(make, transacting, settings, group):
    orders = make(**settings)

    with transacting():
        orders.send_batch(list(range(40)), group=group)
        travel(HOUR)
        assert len(drain("orders", lambda message: None)) == 10
        assert drain("orders", lambda message: None) == []
        travel(HOUR / 2)
        travel(HOUR / 2)
        assert len(drain("orders", lambda message: None)) == 10
        travel(dt.timedelta(days=1))
        assert len(drain("orders", lambda message: None)) == 20


@pytest.mark.parametrize(("settings", "group"), RATES, ids=str)
def test_what_no_message_waited_for_is_lost_as_in_production(make, settings, group):
    orders = make(**settings)

    orders.send(0, group=group)
    drain("orders", lambda message: None)
    travel(10 * HOUR)
    orders.send_batch(list(range(20)), group=group)
    assert len(drain("orders", lambda message: None)) == 1
    travel(10 * HOUR)
    assert len(drain("orders", lambda message: None)) == 19
    orders.send_batch(list(range(20)), group=group)
    assert len(drain("orders", lambda message: None)) == 1


@pytest.mark.parametrize("settings", [{"rate": "20/s"}, {"group_rate": "3/s"}], ids=str)
def test_time_that_handlers_take_admits_no_more(make, settings):
    orders = make(**settings)
    orders.send_batch([1, 2, 3], group="customer-7")

    assert len(drain("orders", lambda message: time.sleep(0.35))) == 1


def test_a_burst_is_saved_up_by_travel(make):
    orders = make(rate="10/h", burst=5)

    travel(HOUR)
    orders.send_batch(list(range(20)))
    assert len(drain("orders", lambda message: None)) == 5
    travel(HOUR)
    assert len(drain("orders", lambda message: None)) == 10


@pytest.mark.parametrize("burst", [{"group_burst": 3}, {"group_limit": 3}], ids=str)
def test_the_burst_of_a_group_comes_as_a_whole(make, burst):
    orders = make(group_rate="10/h", **burst)
    orders.send_batch(list(range(40)), group="customer-7")
    handled = [len(drain("orders", lambda message: None))]

    for _ in range(3):
        travel(HOUR)
        handled.append(len(drain("orders", lambda message: None)))

    assert handled == [3, 9, 9, 12]


@pytest.mark.parametrize(("settings", "group"), [({}, None), *RATES], ids=str)
def test_planned_retries_run_though_the_rate_delays_them(make, transacting, settings, group):
    orders = make(**settings)

    @consumer("orders", retry=Constant(seconds=1, max_attempts=4))
    def charge(message: Message) -> None:
        attempts.append(message.attempts)
        raise OSError("the bank is closed")

    attempts: list[int] = []
    with transacting():
        orders.send(1, group=group)
        drain("orders", policies=True)

    assert attempts == [0, 1, 2, 3]
    assert ArchivedMessage.objects.get().state == "FAILED"


@pytest.mark.parametrize("settings", [{}, *SETTINGS], ids=str)
def test_options_of_a_send_hold_with_every_setting(make, settings):
    orders, handled = make(**settings), []
    queue_row = Queue.objects.get(name="orders")
    Schedule.objects.create(name="hourly", queue=queue_row, interval=dt.timedelta(hours=1), body=5)

    @consumer("orders")
    def charge(message: Message) -> None:
        handled.append(message.body)

    with eager(), transaction.atomic():
        orders.send(1, delay=HOUR)
        orders.send(2, delay=HOUR, expires=HOUR / 2)
        orders.send(3, delay=HOUR, unique="3", until="done")
        assert orders.send(3, delay=HOUR, unique="3", until="done").conflict == "skipped"
        for body, count in ((1, 1), (2, 1), (3, 1)):
            assert_enqueued("orders", body=body, count=count)
        assert handled == []
    assert travel(2 * HOUR) == 1
    assert_enqueued("orders", body=5, count=1)
    drain("orders")
    assert sorted(handled) == [1, 3, 5]


@pytest.mark.parametrize("settings", [{"limit": 5}, {"rate": "10/h"}, {"group_rate": "10/h"}])
def test_a_read_that_production_refuses_is_refused_in_a_test_too(make, settings):
    orders, refused = make(**settings), []

    def read(message):
        with transaction.atomic(), pytest.raises(InvalidArgument, match="cannot be read in your"):
            orders.read(in_transaction=True)
        refused.append(message)

    orders.send(1)
    read(None)
    drain("orders", read)

    assert len(refused) == 2
    consumer("orders", locked=True)(read)
    with pytest.raises(InvalidArgument, match="locked=True"):
        drain("orders")


def test_the_transaction_of_a_test_case_itself_refuses_no_read(make):
    orders = make(rate="10/h")
    orders.send(1)

    assert [message.body for message in orders.read()] == [1]
