"""What a subscription shows without a read: peek, why, next_due and drained."""

from __future__ import annotations

import threading
import time

import pytest
from django.db import connection, transaction

from django_pgqueue.engine.wake import NOW
from django_pgqueue.errors import InvalidArgument, PositionLost
from django_pgqueue.types import Wait
from tests.subscriptions.messages import numbers, send

pytestmark = pytest.mark.django_db(transaction=True)


def forget_position():
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM pgqueue_cursor")


def test_peek_shows_the_next_messages_and_takes_none(orders, audit):
    send(orders, *range(5))

    assert numbers(audit.peek(qty=3)) == [0, 1, 2]
    assert numbers(audit.peek(qty=None)) == numbers(audit.read(qty=None)) == [0, 1, 2, 3, 4]
    assert audit.peek(qty=10) == []


def test_peek_shows_own_messages_first(orders, audit):
    send(orders, *range(4))
    first = audit.read(qty=2)
    audit.release([first[1].receipt])

    assert numbers(audit.peek(qty=3)) == [1, 2, 3]
    assert numbers(audit.read(qty=3)) in ([1, 2, 3], [2, 3, 1])


def test_peek_goes_on_behind_a_round_that_is_under_way(orders, audit):
    send(orders, 0, 1)
    audit.read()
    send(orders, 2)

    assert numbers(audit.peek(qty=5)) == [1, 2]


def test_peek_shows_messages_of_an_expired_lease(orders, audit):
    send(orders, *range(8))
    audit.read(qty=8, vt=0)

    assert numbers(audit.peek(qty=2)) == [0, 1]
    assert numbers(audit.peek(qty=None, conditional={"n": 5})) == [5]
    assert [message.read_ct for message in audit.peek(qty=2)] == [1, 1]


def test_peek_skips_what_a_read_skips(orders, audit):
    send(orders, 0, expires=0.000001)
    send(orders, 1, delay=60)
    [cancelled] = send(orders, 2)
    orders.cancel([cancelled])
    send(orders, 3)

    assert numbers(audit.peek(qty=5)) == numbers(audit.read(qty=5)) == [3]


def test_peek_looks_past_many_skipped_messages(orders, audit):
    send(orders, *range(1200), expires=0.000001)
    send(orders, -1, -2)

    assert numbers(audit.peek()) == [-1]
    assert numbers(audit.peek(qty=2)) == [-1, -2]


def test_peek_finds_a_message_that_committed_late(orders, audit):
    sent, end = threading.Event(), threading.Event()

    def late():
        with transaction.atomic():
            send(orders, 100)
            sent.set()
            end.wait(10)
        connection.close()

    sender = threading.Thread(target=late)
    sender.start()
    sent.wait(10)
    send(orders, 1)
    audit.read(qty=5)
    end.set()
    sender.join()

    assert numbers(audit.peek(qty=5)) == [100]


def test_peek_in_a_transaction_shows_what_was_sent_there(orders, audit):
    send(orders, 0)
    with transaction.atomic():
        send(orders, 1)
        assert numbers(audit.peek(qty=5)) == [0, 1]
        transaction.set_rollback(True)

    assert numbers(audit.peek(qty=5)) == [0]


def test_peek_runs_in_a_read_only_transaction(orders, audit):
    send(orders, 0)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION READ ONLY")
        assert numbers(audit.peek(qty=5)) == [0]


def test_peek_of_blocked_messages_shows_only_own_ones(orders, audit):
    send(orders, *range(3))
    first, _ = audit.read(qty=2)
    audit.retry({first.receipt: 60.0})

    [found] = audit.peek(qty=5, blocked=True)
    assert (found.id, found.wait.reason) == (first.id, "retry")


def test_peek_of_blocked_messages_shows_expired_leases_of_a_paused_queue(orders, audit):
    send(orders, *range(8))
    audit.read(qty=7, vt=0)
    audit.alter(paused=True)

    found = audit.peek(qty=10, blocked=True)
    assert numbers(found) == list(range(7))
    assert {message.wait.reason for message in found} == {"queue_paused"}


def test_a_lost_position_is_an_error_and_no_empty_queue(orders, audit):
    send(orders, 0)
    forget_position()

    with pytest.raises(PositionLost):
        audit.peek()
    with pytest.raises(PositionLost):
        audit.drained()
    with pytest.raises(PositionLost):
        audit.next_due()


def test_why_tells_where_a_message_is(orders, audit):
    delayed = orders.send({"n": 0}, delay=60)
    leased, retried, unread = send(orders, 1, 2, 3)
    expired = orders.send({"n": 4}, expires=0.000001)
    assert audit.why(delayed).reason == "scheduled"
    assert audit.why(leased) == Wait(None, None)

    found = audit.read(qty=2)
    audit.retry({found[1].receipt: 60.0})

    assert audit.why(delayed).reason == "scheduled"
    assert audit.why(delayed).until is not None
    assert audit.why(leased) == Wait(None, None)
    assert audit.why(retried).reason == "retry"
    assert audit.why(unread) == Wait(None, None)
    assert audit.why(expired) is None
    audit.alter(paused=True)
    assert audit.why(unread).reason == "queue_paused"
    audit.archive(found[:1])
    assert audit.why(leased) is None


def test_a_queue_with_unread_messages_is_not_drained(orders, audit):
    assert audit.drained()

    send(orders, 0)
    assert not audit.drained()
    assert audit.next_due() == NOW

    [message] = audit.read()
    assert audit.drained()
    assert audit.next_due() > 1
    audit.archive(message)
    assert audit.next_due() == float("inf")


def test_read_with_poll_wakes_at_a_send_to_the_source(orders, audit):
    def later():
        time.sleep(0.3)
        send(orders, 1)
        connection.close()

    sender = threading.Thread(target=later)
    sender.start()
    began = time.monotonic()
    found = audit.read_with_poll(max_poll_seconds=30, poll_interval_ms=30_000)
    sender.join()

    assert numbers(found) == [1]
    assert time.monotonic() - began < 15


def test_reads_of_groups_are_refused(orders, audit):
    for read in (audit.read_grouped, audit.read_grouped_rr, audit.pgmq.read_grouped_head):
        with pytest.raises(InvalidArgument, match="does not keep FIFO groups in order"):
            read(qty=2)


def test_pop_takes_each_message_once(orders, audit):
    send(orders, 0, 1)
    assert numbers(audit.pop()) == [0]
    send(orders, 2)

    assert numbers(audit.pop(5)) == [1, 2]
    assert audit.pop(5) == []
    with transaction.atomic(), pytest.raises(InvalidArgument, match="in your transaction"):
        audit.pop()
