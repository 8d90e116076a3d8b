"""Archive, delete and set_vt: fenced by receipt, unfenced by id for operators."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import transaction
from django.utils import timezone

from django_pgqueue.errors import InvalidArgument
from django_pgqueue.models import ArchivedMessage, BoundQueue, LiveMessage, Message
from django_pgqueue.types import Receipt
from tests.conftest import rolled_back
from tests.factories import QueueFactory
from tests.messages import SETTLE, everything

each_operation = pytest.mark.parametrize("operation", ["archive", "delete", "set_vt"])


def read_again(queue: BoundQueue) -> tuple[Message, Message]:
    """A message delivered twice: returns the old and the new delivery."""
    queue.send({"order": 7})
    [old] = queue.read(vt=0)
    [new] = queue.read(vt=60)
    assert old.id == new.id
    return old, new


# By receipt


def test_archive_moves_the_outcome_and_leaves_the_body_where_it_is(orders):
    pk = orders.send({"order": 7}, headers={"h": 1})
    orders.read(vt=0)
    [message] = orders.read()

    assert orders.archive(message.receipt) == [pk]

    archived = ArchivedMessage.objects.get()
    assert (archived.pk, archived.state, archived.read_ct) == (pk, "COMPLETED", 2)
    assert (archived.body, archived.headers) == ({"order": 7}, {"h": 1})
    assert archived.enqueued_at == message.enqueued_at
    assert archived.first_read_at == message.first_read_at
    assert archived.first_read_at < archived.last_read_at < archived.archived_at
    assert archived.archive_xid > 0
    assert (archived.error, archived.result) == (None, None)
    assert not LiveMessage.objects.exists()


def test_delete_leaves_nothing(orders):
    pk = orders.send(1)
    [message] = orders.read()

    assert orders.delete(message.receipt) == [pk]

    assert everything() == ([], [], [])


def test_a_message_that_was_read_stands_for_its_receipt(orders):
    old, new = read_again(orders)

    assert orders.archive(old) == []
    assert orders.archive(old).lost == [old.receipt]
    assert orders.archive([new]) == [new.id]


@each_operation
def test_a_receipt_still_counts_after_the_lease_ran_out_if_it_was_not_read_since(orders, operation):
    orders.send(1)
    [message] = orders.read(vt=0)

    done = SETTLE[operation](orders, message.receipt)

    assert (done, done.lost) == ([message.id], [])


@each_operation
def test_a_receipt_of_a_message_that_is_gone_is_lost(orders, operation):
    orders.send(1)
    [message] = orders.read()
    orders.archive(message)
    before = everything()

    done = SETTLE[operation](orders, [message.receipt, Receipt(10**15, 1)])

    assert (done, done.lost) == ([], [message.receipt, Receipt(10**15, 1)])
    assert everything() == before


@each_operation
def test_a_receipt_says_what_was_done_and_what_was_not(orders, operation):
    sent = orders.send_batch(range(4))
    messages = orders.read(qty=4)
    orders.delete(sent[1])
    receipts = [message.receipt for message in reversed(messages)]

    done = SETTLE[operation](orders, receipts)

    assert done == [sent[0], sent[2], sent[3]]
    assert done.lost == [messages[1].receipt]


@each_operation
def test_receipts_of_first_and_of_later_deliveries_go_together(orders, operation):
    sent = orders.send_batch(range(3))
    [stale, *_] = [message.receipt for message in orders.read(qty=2, vt=0)]
    twice = [message.receipt for message in orders.read(qty=2)]
    [once] = [message.receipt for message in orders.read()]

    done = SETTLE[operation](orders, [stale, twice[1], once])

    assert [receipt.read_ct for receipt in (stale, twice[1], once)] == [1, 2, 1]
    assert done == sent[1:]
    assert done.lost == [stale]


@each_operation
def test_a_receipt_works_in_its_own_queue_only(orders, operation):
    other = QueueFactory()
    Message.objects.send(other, 1)
    [message] = Message.objects.read(other)
    before = everything()

    by_receipt = SETTLE[operation](orders, message.receipt)
    by_id = SETTLE[operation](orders, message.id)

    assert (by_receipt, by_receipt.lost) == ([], [message.receipt])
    assert (by_id, by_id.lost) == ([], [message.id])
    assert everything() == before


# By bare id


@each_operation
@pytest.mark.parametrize("place", ["unread", "delayed", "in flight", "due again"])
def test_a_bare_id_acts_on_a_live_message_wherever_it_stands(orders, operation, place):
    pk = orders.send({"order": 7}, priority=5, delay=60 if place == "delayed" else 0)
    if place in ("in flight", "due again"):
        orders.read(vt=60 if place == "in flight" else 0)

    done = SETTLE[operation](orders, pk)

    assert (done, done.lost) == ([pk], [])
    if operation == "set_vt":
        live = LiveMessage.objects.get()
        assert 55 < (live.vt - timezone.now()).total_seconds() <= 61
    else:
        assert not LiveMessage.objects.exists()
        assert (
            Message.objects.count() == ArchivedMessage.objects.count() == (operation == "archive")
        )


def test_archiving_by_id_keeps_the_count_of_deliveries_that_were_made(orders):
    unread, read = orders.send("unread"), orders.send("read", priority=1)
    orders.read()

    orders.archive([unread, read])

    outcomes = {a.pk: (a.read_ct, a.first_read_at is None) for a in ArchivedMessage.objects.all()}
    assert outcomes == {unread: (0, True), read: (1, False)}


@each_operation
def test_a_bare_id_of_no_live_message_is_lost_and_no_error(orders, operation):
    archived = orders.send(1)
    orders.archive(archived)
    before = everything()

    done = SETTLE[operation](orders, [archived, 10**15, -1, 0])

    assert (done, done.lost) == ([], [archived, 10**15, -1, 0])
    assert everything() == before


@each_operation
def test_duplicates_collapse(orders, operation):
    one, two = orders.send_batch([1, 2])

    assert SETTLE[operation](orders, [two, one, two, one]) == [one, two]


@each_operation
def test_duplicate_receipts_collapse(orders, operation):
    pk = orders.send(1)
    [message] = orders.read()

    done = SETTLE[operation](orders, [message, message.receipt])

    assert (done, done.lost) == ([pk], [])


@each_operation
def test_receipts_and_ids_may_be_mixed(orders, operation):
    old, new = read_again(orders)
    unread = orders.send(2)

    done = SETTLE[operation](orders, {old.receipt, unread})

    assert (done, done.lost) == ([unread], [old.receipt])
    assert SETTLE[operation](orders, (new,)) == [new.id]


@each_operation
def test_nothing_to_settle_is_nothing_done(orders, operation):
    orders.send(1)
    before = everything()

    done = SETTLE[operation](orders, [])

    assert (done, done.lost) == ([], [])
    assert everything() == before


@each_operation
@pytest.mark.parametrize("kind", [{"unlogged": True}, {"partition_interval": dt.timedelta(1)}])
def test_unlogged_and_partitioned_queues_settle_alike(db, operation, kind):
    queue = QueueFactory(**kind)
    bound = BoundQueue(queue.name)
    leased, unread, delayed = bound.send(1, priority=1), bound.send(2), bound.send(3, delay=9)
    [message] = bound.read()

    assert SETTLE[operation](bound, message.receipt) == [leased]
    assert SETTLE[operation](bound, [unread, delayed]) == [unread, delayed]


@each_operation
def test_settling_is_undone_with_the_transaction_around_it(orders, operation):
    orders.send(1)
    [message] = orders.read()
    unread = orders.send(2)
    before = everything()

    with rolled_back():
        SETTLE[operation](orders, [message, unread])
        assert everything() != before

    assert everything() == before


def test_ids_beyond_those_of_32_bits_work(orders):
    queue = Message.objects.resolve("orders")
    pk = Message.objects.create(id=2**40, queue=queue, body=1).pk

    [message] = orders.read()

    assert orders.archive(message.receipt) == [pk] == [2**40]


# set_vt


def test_set_vt_counts_from_now_and_not_from_the_old_timeout(orders):
    orders.send(1)
    [message] = orders.read(vt=1000)

    orders.set_vt(message, 60)

    remaining = LiveMessage.objects.get().vt - timezone.now()
    assert 55 < remaining.total_seconds() <= 61


def test_set_vt_counts_no_delivery_and_the_receipt_stays_good(orders):
    orders.send(1)
    [message] = orders.read()

    orders.set_vt(message, 120)

    live = LiveMessage.objects.get()
    assert (live.read_ct, live.state) == (1, "PROCESSING")
    assert orders.archive(message) == [message.id]


def test_set_vt_of_zero_gives_the_message_back_at_once(orders):
    orders.send(1)
    [message] = orders.read()

    assert orders.set_vt(message, 0) == [message.id]

    [again] = orders.read()
    assert (again.id, again.read_ct) == (message.id, 2)


def test_set_vt_hides_a_message_that_was_never_read(orders):
    pk = orders.send(1, priority=4, group="g")

    assert orders.set_vt(pk, 60) == [pk]

    assert orders.read() == []
    live = LiveMessage.objects.get()
    assert (live.state, live.read_ct, live.priority, live.group_key) == ("SCHEDULED", 0, 4, "g")
    assert live.first_read_at is None


@pytest.mark.parametrize("vt", [60, 60.0, dt.timedelta(minutes=1), -5, dt.timedelta(0)])
def test_set_vt_takes_seconds_or_a_timedelta(orders, vt):
    pk = orders.send(1)

    orders.set_vt(pk, vt)

    expected = vt.total_seconds() if isinstance(vt, dt.timedelta) else vt
    remaining = (LiveMessage.objects.get().vt - timezone.now()).total_seconds()
    assert abs(remaining - expected) < 5


def test_set_vt_takes_an_aware_moment(orders):
    moment = dt.datetime(2099, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-8)))
    unread = orders.send(1)
    leased = orders.send(2, priority=1)
    orders.read()

    orders.set_vt([unread, leased], moment)

    assert set(LiveMessage.objects.values_list("vt", flat=True)) == {moment}


# Bad input


@each_operation
@pytest.mark.parametrize(
    "target", ["1", b"1", None, 1.0, True, object(), ["1"], [None], [1, True], [(1, 1)], 2**64]
)
def test_what_is_neither_receipt_nor_id_is_refused(orders, operation, target):
    orders.send(1)
    before = everything()

    with transaction.atomic():
        with pytest.raises(InvalidArgument):
            SETTLE[operation](orders, target)
        assert everything() == before


@each_operation
def test_a_message_that_was_not_read_has_no_receipt_to_settle_by(orders, operation):
    orders.send(1)

    with pytest.raises(InvalidArgument):
        SETTLE[operation](orders, Message.objects.get())

    assert LiveMessage.objects.get().state == "PENDING"


@pytest.mark.parametrize(
    "vt",
    [None, True, "60", float("nan"), float("inf"), dt.datetime(2099, 1, 1), 10**15],
)
def test_a_timeout_that_is_none_is_refused(orders, vt):
    pk = orders.send(1)
    before = everything()

    with pytest.raises(InvalidArgument, match="vt"):
        orders.set_vt(pk, vt)

    assert everything() == before


def test_of_two_receipts_of_one_message_the_delay_of_the_good_one_counts(orders):
    old, new = read_again(orders)

    done = orders.retry({old.receipt: 3600, new.receipt: 0})

    assert (done, done.lost) == ([new.id], [old.receipt])
    assert orders.metrics().delayed == 0
