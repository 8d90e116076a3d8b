"""Subscriptions in a test's transaction, with the helpers for tests."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import transaction
from django.test import TestCase

from django_pgqueue import consumer
from django_pgqueue.acks import Reject
from django_pgqueue.models import Message, queue
from django_pgqueue.testing import (
    assert_enqueued,
    assert_not_enqueued,
    captured_messages,
    drain,
    eager,
    travel,
)
from tests.subscriptions.messages import numbers


def send(*bodies, **settings):
    return queue("orders").send_batch([{"n": n} for n in bodies], **settings)


class InATransaction(TestCase):
    @classmethod
    def setUpTestData(cls):
        queue("orders").create()
        queue("audit").subscribe(to="orders")

    def test_sends_and_reads_take_turns(self):
        audit = queue("audit")
        for number in range(0, 9, 3):
            send(number, number + 1, number + 2)
            first = audit.read(qty=2)
            assert numbers(first) == [number, number + 1]
            assert len(audit.archive(first)) == 2
            assert numbers(audit.read(qty=5)) == [number + 2]
            assert audit.read(qty=5) == []

    def test_savepoints_do_not_hide_messages(self):
        audit = queue("audit")
        with transaction.atomic():
            send(0)
        with transaction.atomic():
            send(1)
            transaction.set_rollback(True)
        send(2)
        assert numbers(audit.read(qty=5)) == [0, 2]

    def test_a_read_goes_on_after_a_rollback_to_before_it(self):
        audit = queue("audit")
        send(0)
        outer = transaction.atomic()
        with outer:
            send(1)
            assert numbers(audit.peek(qty=5)) == [0, 1]
            transaction.set_rollback(True)
        assert numbers(audit.read(qty=5)) == [0]

    def test_looks_see_the_messages_of_the_test(self):
        audit = queue("audit")
        send(0, 1, 2)
        assert audit.metrics().unread == 3
        assert not audit.drained()
        audit.read()
        assert numbers(audit.peek(qty=5)) == [1, 2]
        assert audit.metrics().unread == 2
        [found] = [each for each in Message.objects.metrics_all() if each.queue_name == "audit"]
        assert (found.unread, found.in_flight) == (2, 1)

    def test_seek_and_purge_skip_what_was_sent(self):
        audit = queue("audit")
        ids = send(0, 1, 2)
        audit.seek("now")
        send(3)
        assert numbers(audit.read(qty=5)) == [3]
        audit.seek(ids[1])
        assert numbers(audit.read(qty=5)) == [1, 2, 3]
        audit.seek("earliest")
        assert numbers(audit.read(qty=1)) == [0]
        assert audit.purge() == 4
        send(4)
        assert numbers(audit.read(qty=5)) == [4]

    def test_a_subscription_that_begins_in_the_test(self):
        send(0)
        queue("mails").subscribe(to="orders")
        queue("all").subscribe(to="orders", start="earliest")
        send(1)
        assert numbers(queue("mails").read(qty=5)) == [1]
        assert numbers(queue("all").read(qty=5)) == [0, 1]

    def test_what_leaves_the_source_stays(self):
        audit = queue("audit")
        send(0, 1)
        audit.read()
        queue("orders").purge()
        send(2)
        assert sorted(numbers(audit.read(qty=5))) == [1, 2]

    def test_retries_and_dead_letters(self):
        queue("dead").create()
        queue("audit").alter(dead_letter_queue="dead")
        send(0, 1)

        def handler(body: dict):
            raise Reject(str(body["n"]))

        drain("audit", handler, policies=True)
        assert sorted(numbers(queue("dead").peek(qty=5))) == [0, 1]
        assert queue("audit").drained()

    def test_drain_handles_unread_messages_and_new_ones(self):
        seen = []

        def handler(body: dict):
            seen.append(body["n"])
            if body["n"] == 0:
                send(1)

        send(0)
        assert len(drain("audit", handler)) == 2
        assert seen == [0, 1]
        send(2)
        drain("audit", handler)
        assert seen == [0, 1, 2]

    def test_drain_heeds_a_limit(self):
        queue("audit").alter(limit=2)
        seen = []
        send(*range(5))

        def handler(body: dict):
            seen.append(body["n"])

        drain("audit", handler)
        assert sorted(seen) == [0, 1, 2, 3, 4]

    def test_travel_makes_delayed_messages_readable(self):
        audit = queue("audit")
        send(0, delay=3600)
        assert audit.read() == []
        travel(dt.timedelta(hours=2))
        assert numbers(audit.read(qty=5)) == [0]

    def test_travel_makes_unread_delayed_messages_readable(self):
        send(0, delay=3600)
        assert queue("audit").peek() == []
        travel(dt.timedelta(hours=2))
        assert numbers(queue("audit").read(qty=5)) == [0]

    def test_travel_ends_leases(self):
        audit = queue("audit")
        send(0)
        audit.read()
        travel(dt.timedelta(hours=2))
        assert [message.read_ct for message in audit.read()] == [2]

    def test_assertions_find_what_a_read_would_find(self):
        send(0, 1)
        [found] = assert_enqueued("audit", contains={"n": 1}, count=1)
        assert found.body == {"n": 1}
        assert_enqueued("orders", count=2)
        [first, _] = queue("audit").read(qty=2)
        queue("audit").archive(first)
        assert_not_enqueued("audit", body={"n": 0})
        assert_enqueued("audit", body={"n": 1})
        with pytest.raises(AssertionError, match="audit"):
            assert_enqueued("audit", body={"n": 7})

    def test_captured_messages_lists_each_send_once(self):
        with captured_messages() as sent:
            send(0)
            queue("audit").release([queue("audit").read()[0].receipt])
        assert numbers(sent) == [0]


@pytest.mark.django_db
def test_eager_handles_the_messages_of_subscriptions(own_handlers, make_queue):
    make_queue("orders")
    make_queue("audit", to="orders")
    seen = []

    @consumer("audit")
    def handle(body: dict):
        seen.append(body["n"])

    with eager():
        send(0)
        send(1)
        assert seen == [0, 1]


@pytest.mark.django_db(transaction=True)
def test_make_queue_removes_a_source_behind_its_subscription(make_queue):
    make_queue("orders")
    audit = make_queue("audit", to="orders", start="earliest")
    send(0)
    assert numbers(audit.read(qty=5)) == [0]


@pytest.mark.django_db(transaction=True)
def test_a_subscription_that_begins_in_a_transaction_gets_what_follows_there(transactional_db):
    queue("orders").create()
    with transaction.atomic():
        send(0)
        queue("audit").subscribe(to="orders")
        # Later transactions end before, so that a snapshot of this one shows its own id.
        _other_transactions(5)
        queue("mails").subscribe(to="orders")
        send(1)
    assert numbers(queue("audit").read(qty=5)) == [1]
    assert numbers(queue("mails").read(qty=5)) == [1]


def _other_transactions(number):
    import threading

    from django.db import connection

    def work():
        for _ in range(number):
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_current_xact_id()")
        connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
