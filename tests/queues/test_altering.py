"""``queue("orders").alter()``: changes of settings."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import transaction

from django_pgqueue import queue
from django_pgqueue.errors import InvalidArgument, QueueNotFound
from django_pgqueue.models import Queue
from tests.actors import SECONDS, call
from tests.conftest import rolled_back, run_sql
from tests.waiting import until


def test_only_the_given_settings_change_and_none_unsets(orders):
    run_sql("UPDATE pgqueue_queue SET \"limit\" = 7, rate = '10/s', retention = '1 day'")

    altered = queue("ORDERS").alter(rate=None, retention=60, visibility_timeout=99)

    assert altered == Queue.objects.get()
    for each in (altered, Queue.objects.get()):
        assert (each.limit, each.rate, each.visibility_timeout) == (7, None, 99)
        assert each.retention == dt.timedelta(minutes=1)


def test_a_process_uses_its_own_change_at_once(committed_orders):
    committed_orders.send(1)

    committed_orders.alter(visibility_timeout=99)

    [message] = committed_orders.read()
    assert (message.vt - message.first_read_at).total_seconds() == 99


def test_a_limit_holds_for_the_next_read(orders):
    orders.send_batch([1, 2, 3])

    orders.alter(limit=2)

    assert len(orders.read(qty=3)) == 2


def test_a_group_limit_tells_the_queue_object_that_it_has_slots(orders):
    assert orders.alter(group_limit=2).has_slots


def test_the_dead_letter_queue_is_a_name_or_a_queue_or_none(orders):
    dead = queue("dead").create()

    for given in ("dead", "DEAD", dead):
        assert orders.alter(dead_letter_queue=given).dead_letter_queue == dead
        assert orders.alter(dead_letter_queue=None).dead_letter_queue is None


@pytest.mark.django_db(databases=["default", "other"])
def test_it_works_in_the_database_of_the_queue():
    queue("orders").create()
    queue("orders", using="other").create()

    queue("orders", using="other").alter(limit=5)

    assert Queue.objects.using("other").get().limit == 5
    assert Queue.objects.get().limit is None


def test_a_rollback_undoes_it(orders):
    with rolled_back():
        orders.alter(limit=5)

    assert Queue.objects.get().limit is None


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({}, InvalidArgument, "pass a setting to change"),
        ({"limit": 0}, InvalidArgument, "limit must be a whole number from 1 to 10000"),
        ({"limit": 7, "burst": 5}, InvalidArgument, "burst needs a rate"),
        ({"limit": 7, "dead_letter_queue": "orders"}, InvalidArgument, "form a cycle"),
        ({"limit": 7, "dead_letter_queue": "no"}, QueueNotFound, "no queue 'no'"),
        ({"partition_interval": 60}, TypeError, "alter.. got an unexpected keyword argument"),
    ],
    ids=str,
)
def test_an_invalid_change_is_refused_as_a_whole(orders, settings, error, words):
    with pytest.raises(error, match=words):
        orders.alter(**settings)

    assert Queue.objects.get().limit is None


def test_a_queue_that_does_not_exist_is_named(db):
    with pytest.raises(QueueNotFound, match="no queue 'orders'"):
        queue("orders").alter(limit=5)


def test_a_limit_is_checked_with_what_another_session_changes_meanwhile(committed_orders, actor):
    committed_orders.alter(rate="10/s")

    with transaction.atomic():
        committed_orders.alter(rate=None)
        altering = actor.start(call, "alter", "orders", burst=5)
        until(lambda: run_sql("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))

    with pytest.raises(InvalidArgument, match="burst needs a rate"):
        altering.result(timeout=SECONDS)
