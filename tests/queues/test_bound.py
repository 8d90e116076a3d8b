"""A bound queue, queue("orders"): the operations without the name."""

from __future__ import annotations

import pytest

import django_pgqueue
from django_pgqueue import queue
from django_pgqueue.models import Message, Queue

DATABASES = ["default", "other"]


def test_a_bound_queue_does_what_the_manager_does(db):
    orders = queue("orders")
    orders.create(visibility_timeout=9)
    pk = orders.send({"order": 7}, priority=1)
    orders.send_batch([1, 2])

    [message] = orders.read()

    assert message.id == pk
    assert (message.vt - message.first_read_at).total_seconds() == 9
    assert orders.archive(message) == [pk]
    assert len(orders.peek(qty=5)) == 2
    assert orders.metrics().archived == 1
    assert orders.purge() == 2
    assert orders.drop() is True


@pytest.mark.django_db(databases=DATABASES)
def test_a_queue_object_is_a_queue_in_its_database():
    made = queue("orders", using="other").create()

    pk = queue(made).send(1)

    assert queue(made) == queue("orders", using="other")
    assert [message.id for message in queue("orders", using="other").read()] == [pk]


def test_naming_a_queue_makes_no_query(django_assert_num_queries, db):
    with django_assert_num_queries(0):
        queue("not-made-yet")


def test_queues_of_the_same_name_and_database_are_equal():
    assert queue("orders") == queue("ORDERS")
    assert hash(queue("orders")) == hash(queue("ORDERS"))
    assert queue("orders") != queue("orders", using="other")
    assert queue("orders") != "orders"
    assert repr(queue("orders", using="other")) == "queue('orders', using='other')"
    assert repr(queue("orders")) == "queue('orders')"


@pytest.mark.django_db(databases=DATABASES)
def test_using_names_the_database():
    orders = queue("orders", using="other")
    orders.create()
    pk = orders.send(1)

    assert [m.id for m in orders.read()] == [pk]
    assert orders.archive(pk) == [pk]
    assert Queue.objects.using("other").get().name == "orders"
    assert not Queue.objects.exists()
    assert Message.objects.db_manager("other").metrics("orders").archived == 1
    assert Message.objects.using("other").metrics("orders").archived == 1
    assert orders.drop()


def test_the_package_offers_its_names_at_the_top():
    assert django_pgqueue.queue is queue
    for name in ("Receipt", "State"):
        assert getattr(django_pgqueue, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing"):
        _ = django_pgqueue.nothing
