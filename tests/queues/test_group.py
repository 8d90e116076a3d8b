"""Settings of single groups."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_pgqueue import queue
from django_pgqueue.errors import InvalidArgument, QueueNotFound
from django_pgqueue.models import BoundGroup, BoundQueue, GroupSetting, Message, Queue
from tests.conftest import rolled_back


@pytest.fixture
def mails(db: None) -> BoundQueue:
    Message.objects.create_queue("mails", group_rate="100/s")
    return queue("mails")


@pytest.fixture
def customer(mails: BoundQueue) -> BoundGroup:
    return mails.group("customer 12")


def stored() -> list[tuple[Any, ...]]:
    return list(
        GroupSetting.objects.values_list("queue__name", "group_key", "limit", "rate", "paused")
    )


def test_each_setting_is_kept_beside_the_others(mails, customer):
    customer.rate("10/s", burst=2)
    customer.pause()
    customer.limit(50)
    mails.group("customer 13").limit(3)

    own = customer.settings()

    assert own is not None
    assert (own.limit, own.rate, own.paused) == (50, "10/s", True)
    assert stored() == [
        ("mails", "customer 12", 50, "10/s", True),
        ("mails", "customer 13", 3, None, False),
    ]


def test_settings_of_a_group_last_until_they_are_taken_back_one_by_one(customer):
    customer.limit(50)
    customer.rate("10/s")
    customer.pause()

    customer.resume()
    customer.limit(None)
    assert stored() == [("mails", "customer 12", None, "10/s", False)]
    customer.rate(None)

    assert customer.settings() is None
    assert stored() == []


def test_reset_takes_all_of_them_back(mails, customer):
    other = mails.group("customer 13")
    for group in (customer, other):
        group.limit(50)
        group.pause()

    customer.reset()

    assert customer.settings() is None
    assert other.settings() is not None


@pytest.mark.parametrize(
    "change",
    [
        lambda group: group.resume(),
        lambda group: group.limit(None),
        lambda group: group.rate(None),
        lambda group: group.reset(),
    ],
    ids=["resume", "limit", "rate", "reset"],
)
def test_a_group_without_settings_stays_without(customer, change):
    change(customer)

    assert stored() == []


def test_a_limit_replaces_the_burst(customer):
    customer.rate("10/s", burst=2)

    customer.limit(50)

    assert GroupSetting.objects.get().burst is None


def test_a_burst_beside_a_limit_is_refused(mails, customer):
    customer.limit(50)
    with pytest.raises(InvalidArgument, match="group_burst and group_limit cannot both be set"):
        customer.rate("10/s", burst=2)

    Queue.objects.update(group_limit=5)
    with pytest.raises(InvalidArgument, match="group_burst and group_limit cannot both be set"):
        mails.group("customer 13").rate("10/s", burst=2)

    assert stored() == [("mails", "customer 12", 50, None, False)]


def test_a_rate_needs_one_of_the_queue(customer):
    Queue.objects.update(group_rate=None)

    with pytest.raises(InvalidArgument, match=r"no group_rate.*AlterQueue\('mails', group_rate="):
        customer.rate("10/s")

    assert stored() == []


@pytest.mark.parametrize(
    "refused",
    [
        lambda mails: mails.group(None),
        lambda mails: mails.group(""),
        lambda mails: mails.group(12),
        lambda mails: mails.group("g").limit(0),
        lambda mails: mails.group("g").limit("5"),
        lambda mails: mails.group("g").rate(10),
        lambda mails: mails.group("g").rate("10/s", burst=0),
        lambda mails: mails.group("g").rate(None, burst=2),
    ],
)
def test_bad_input_changes_nothing(mails, refused):
    with pytest.raises(InvalidArgument):
        refused(mails)

    assert stored() == []


def test_a_missing_queue_is_not_found(db):
    group = queue("nowhere").group("g")

    for change in (group.pause, group.reset, group.settings):
        with pytest.raises(QueueNotFound, match="nowhere"):
            change()


def test_a_rollback_takes_the_setting_with_it(customer):
    with rolled_back():
        customer.pause()

    assert customer.settings() is None


def test_each_change_is_one_statement_after_the_queues(customer):
    """In a savepoint, in which the audit log knows who acts: four statements more."""
    for change in (customer.pause, lambda: customer.limit(50)):
        with CaptureQueriesContext(connection) as ran:
            change()

        assert len(ran) == 6
        assert sum("pgqueue_group_setting" in each["sql"] for each in ran) == 1


def test_a_dropped_queue_takes_the_settings_of_its_groups_with_it(customer):
    customer.pause()

    queue("mails").drop()

    assert stored() == []


def test_each_method_has_an_async_twin(customer):
    methods = {
        name: method
        for name, method in inspect.getmembers(BoundGroup, inspect.isfunction)
        if not name.startswith("_") and not inspect.iscoroutinefunction(method)
    }

    for name, method in methods.items():
        twin = getattr(BoundGroup, f"a{name}")
        assert inspect.signature(twin).parameters == inspect.signature(method).parameters
    async_to_sync(customer.apause)()

    assert stored() == [("mails", "customer 12", None, None, True)]
