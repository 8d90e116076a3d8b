"""A message waits for a signal or a time, without a worker, and then goes on."""

from __future__ import annotations

import datetime as dt

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.utils import timezone

from django_pgqueue import asignal, consumer, signal
from django_pgqueue.acks import Waiting
from django_pgqueue.errors import (
    InvalidArgument,
    InvalidMessage,
    LeaseLost,
    NeverRead,
    StepRefused,
    TimedOut,
)
from django_pgqueue.flows.steps import STEP_BYTES
from django_pgqueue.models import PendingWait, SentSignal, queue
from django_pgqueue.retries import NoRetry
from django_pgqueue.testing import drain, travel
from tests.conftest import run_sql
from tests.flows.doing import again, leased
from tests.management.calling import call
from tests.management.roles import acting, role

__all__ = ["role"]

DAY = dt.timedelta(days=1)


@pytest.fixture(autouse=True)
def _own(own_handlers):
    pass


def park(message, key="paid:7", timeout="3d"):
    with pytest.raises(Waiting):
        message.wait_for(key, timeout=timeout)


def test_a_signal_makes_a_waiting_message_due_and_the_next_delivery_gets_its_value(orders):
    orders.send({})
    park(leased())
    assert orders.read() == []

    assert signal("paid:7", {"receipt": 41}) == 1
    assert leased().wait_for("paid:7", timeout="3d") == {"receipt": 41}


def test_every_later_delivery_gets_the_value(orders):
    orders.send({})
    park(leased())
    signal("paid:7", 41)
    message = leased()
    assert message.wait_for("paid:7", timeout="3d") == 41
    SentSignal.objects.all().delete()

    assert again(message).wait_for("paid:7", timeout="3d") == 41


def test_after_the_timeout_the_next_delivery_raises_timed_out_and_so_does_each_later_one(orders):
    orders.send({})
    park(leased())
    assert travel(3 * DAY) == 0
    message = leased()

    with pytest.raises(TimedOut, match="'paid:7' did not come in time"):
        message.wait_for("paid:7", timeout="3d")
    signal("paid:7", 41)
    with pytest.raises(TimedOut):
        again(message).wait_for("paid:7", timeout="3d")
    assert not PendingWait.objects.exists()


def test_a_wait_counts_neither_a_delivery_nor_an_attempt(orders):
    orders.alter(max_deliveries=1)
    orders.send({})
    for number in range(5):
        message = leased()
        assert (message.read_ct, message.attempts) == (1, 0)
        park(message, f"event:{number}")
        signal(f"event:{number}")
    assert leased().read_ct == 1


def test_the_timeout_counts_from_the_first_delivery_that_came_to_the_line(orders):
    orders.send({})
    park(leased(), timeout=3600)
    [until] = PendingWait.objects.values_list("until", flat=True)
    orders.set_vt(run_sql("SELECT id FROM pgqueue_deferred")[0][0], 0)
    park(leased(), timeout=7200)

    assert PendingWait.objects.get().until == until
    assert run_sql("SELECT vt FROM pgqueue_deferred") == [(until,)]


# Signals


def test_an_early_signal_is_kept(orders):
    signal("paid:7", 41)
    orders.send({})

    assert leased().wait_for("paid:7", timeout="3d") == 41
    assert not PendingWait.objects.exists()


def test_an_early_signal_is_kept_for_as_long_as_it_says(orders):
    signal("paid:7", 41, keep_for="1d")
    travel(DAY)
    orders.send({})

    park(leased())
    assert signal("paid:7", 42) == 1
    assert leased().wait_for("paid:7", timeout="3d") == 42


def test_a_second_signal_changes_nothing_while_the_first_is_kept(orders):
    orders.send_batch([{}, {}])
    park(leased())
    assert signal("paid:7", 1) == 1
    assert signal("paid:7", 2) == 0

    first, second = orders.read(qty=2)
    assert first.wait_for("paid:7", timeout="3d") == 1
    assert second.wait_for("paid:7", timeout="3d") == 1


def test_a_signal_reaches_all_messages_that_wait_for_it_in_all_queues(orders):
    queue("mails").create()
    for name in ("orders", "orders", "mails"):
        queue(name).send({})
        park(leased(name))
    queue("orders").send({})
    park(leased(), "paid:8")

    assert signal("paid:7", 41) == 3
    assert [m.wait_for("paid:7", timeout=9) for m in orders.read(qty=9)] == [41, 41]
    assert [m.wait_for("paid:7", timeout=9) for m in queue("mails").read(qty=9)] == [41]


def test_a_signal_that_is_rolled_back_was_not_sent(orders):
    orders.send({})
    park(leased())
    with transaction.atomic():
        assert signal("paid:7", 41) == 1
        transaction.set_rollback(True)

    assert orders.read() == []
    assert PendingWait.objects.count() == 1
    assert signal("paid:7", 42) == 1


@pytest.mark.parametrize("value", [None, 0, "", [1], {"a": None}])
def test_a_signal_has_any_json_value(orders, value):
    orders.send({})
    park(leased())
    signal("paid:7", value)

    assert leased().wait_for("paid:7", timeout="3d") == value


@pytest.mark.parametrize("key", ["", "x" * 201, None, 7, "a\0"])
def test_a_key_is_text(orders, key):
    orders.send({})

    with pytest.raises(InvalidArgument, match="the key of a signal"):
        signal(key)
    with pytest.raises(InvalidArgument, match="the key of a signal"):
        leased().wait_for(key, timeout=1)


@pytest.mark.parametrize("span", ["3", "3 days", "d", "", None, -1, "-1d", float("nan")])
def test_a_length_of_time_is_seconds_or_text_with_a_unit(orders, span):
    orders.send({})
    message = leased()

    with pytest.raises(InvalidArgument, match="timeout"):
        message.wait_for("paid:7", timeout=span)
    with pytest.raises(InvalidArgument, match="keep_for"):
        signal("paid:7", keep_for=span)
    assert not SentSignal.objects.exists()


def test_the_largest_value_arrives_early_and_late(orders):
    value = "x" * (STEP_BYTES - 2)
    orders.send({})
    park(leased())
    signal("paid:7", value)
    assert leased().wait_for("paid:7", timeout=9) == value
    orders.send({})
    assert leased().wait_for("paid:7", timeout=9) == value

    with pytest.raises(InvalidMessage, match="the value of signal 'paid:8'"):
        signal("paid:8", value + "x")


def test_a_consumer_that_drains_the_queue_does_not_wait_for_it(orders):
    orders.send({})
    orders.set_vt(leased(), 0)
    park(leased())

    assert orders.drained()


def test_a_signals_value_is_json(orders):
    with pytest.raises(InvalidMessage, match="the value of signal 'paid:7'"):
        signal("paid:7", {1, 2})


# Sleeps


def test_a_sleep_is_a_wait_for_a_time(orders):
    orders.send({})
    with pytest.raises(Waiting):
        leased().sleep("1d")
    assert orders.read() == []
    travel(DAY)
    message = leased()

    assert message.sleep("1d") is None
    with pytest.raises(Waiting):
        message.sleep("1d", name="again")
    travel(DAY)
    last = leased()
    last.sleep("1d")
    last.sleep("1d", name="again")


def test_two_waits_of_a_handler_have_two_names(orders):
    orders.send({})
    signal("paid:7")
    message = leased()
    message.wait_for("paid:7", timeout=9)

    with pytest.raises(InvalidArgument, match="has used step 'wait_for paid:7' before"):
        message.wait_for("paid:7", timeout=9)


def test_a_sleep_hears_no_signal(orders):
    orders.send({})
    with pytest.raises(Waiting):
        leased().sleep("1d")

    assert signal("sleep") == 0


# Refused


def test_a_message_of_a_group_does_not_wait(orders):
    orders.send({}, group="customer")

    with pytest.raises(InvalidArgument, match="other messages would wait"):
        leased().wait_for("paid:7", timeout=9)


@pytest.mark.parametrize("options", [{"ack_policy": "TRANSACTIONAL"}, {"locked": True}])
def test_a_handler_in_a_transaction_does_not_wait(orders, options):
    orders.send({})

    @consumer("orders", **options)
    def handle(message):
        message.wait_for("paid:7", timeout=9)

    with pytest.raises(StepRefused, match="a wait of message"):
        drain("orders", handle)


def test_a_late_worker_and_a_peek_do_not_wait(orders):
    orders.send({})
    with pytest.raises(NeverRead):
        orders.peek()[0].wait_for("paid:7", timeout=9)
    late = leased()
    holder = again(late)

    with pytest.raises(LeaseLost):
        late.wait_for("paid:7", timeout=9)
    assert not PendingWait.objects.exists()
    assert not SentSignal.objects.exists()
    park(holder)


# What the message's other properties do meanwhile


def test_a_waiting_message_keeps_its_unique_key_until_it_is_done(orders):
    orders.send({}, unique="order-7", until="done")
    park(leased())

    assert orders.send({}, unique="order-7", until="done").conflict == "skipped"


def test_a_waiting_message_can_expire(orders):
    orders.send({}, expires=DAY)
    park(leased())
    travel(2 * DAY)
    signal("paid:7")

    assert orders.read() == []
    assert run_sql("SELECT state FROM pgqueue_archive") == [("EXPIRED",)]


@pytest.mark.django_db(transaction=True)
def test_retention_keeps_the_partition_of_a_waiting_message(committed):
    queue("orders").create(partition_interval=DAY, retention=DAY)
    old = timezone.now() - 3 * DAY
    pk = queue("orders").send({})
    park(leased())
    run_sql("UPDATE pgqueue_message SET enqueued_at = %s", [old])
    run_sql("UPDATE pgqueue_deferred SET enqueued_at = %s", [old])
    queue("orders").maintain()
    signal("paid:7", 41)

    [message] = queue("orders").read()
    assert message.id == pk
    assert message.wait_for("paid:7", timeout="3d") == 41


def test_a_message_that_has_ended_waits_no_more(orders):
    cancelled = orders.send({})
    park(leased())
    expired = orders.send({}, expires=DAY)
    park(leased())
    replaced = orders.send({}, unique="o", until="done", on_conflict="replace")
    park(leased())
    assert orders.cancel(cancelled) == [cancelled]
    orders.send({}, unique="o", until="done", on_conflict="replace")
    travel(2 * DAY)
    run_sql("UPDATE pgqueue_deferred SET vt = now() - interval '1 s' WHERE id = %s", [expired])
    live = leased()
    park(live)

    assert signal("paid:7") == 1
    assert [len(orders.steps(pk)) for pk in (cancelled, expired, replaced, live.id)] == [0, 0, 0, 1]


@pytest.mark.django_db(transaction=True)
def test_maintenance_deletes_what_no_message_needs(committed_orders):
    pk = committed_orders.send({})
    park(leased(), timeout=1)
    signal("early", keep_for=1)
    committed_orders.delete(pk)
    committed_orders.maintain()
    assert not PendingWait.objects.exists()
    assert SentSignal.objects.count() == 2
    travel(2 * DAY)
    committed_orders.maintain()

    assert not SentSignal.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_maintenance_deletes_waits_of_messages_that_have_ended(committed_orders):
    pk = committed_orders.send({})
    park(leased())
    committed_orders.send({})
    park(leased())
    committed_orders.cancel(pk)
    committed_orders.maintain()

    assert PendingWait.objects.exclude(message_id=pk).count() == PendingWait.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_signal_reaches_queues_on_which_its_sender_has_no_rights(committed_orders, role):
    queue("hooks").create()
    for kind in ("consumer", "operator"):
        committed_orders.send({})
        park(leased(), kind)
        call("pgqueue_grants", "--role", role, "--for", kind, "--queue", "hooks", "--apply")
        with acting(role):
            assert signal(kind, 41) == 1
        assert leased().wait_for(kind, timeout="3d") == 41


@pytest.mark.django_db(transaction=True)
def test_a_message_of_a_subscription_waits_for_itself(committed_orders):
    for name in ("audit", "mails"):
        queue(name).subscribe(to="orders", start="earliest")
    committed_orders.send_batch([{}] * 20)
    audit, mail = queue("audit").read(qty=20)[0], queue("mails").read(qty=20)[0]
    park(audit, "audit")
    park(mail, "mail")
    assert signal("audit", 1) == 1

    [again] = queue("audit").read()
    assert again.id == audit.id
    assert again.wait_for("audit", timeout=9) == 1
    assert queue("mails").read() == []


@pytest.mark.django_db(transaction=True)
def test_a_waiting_message_takes_no_slot_of_a_limit(committed_orders):
    orders = committed_orders
    orders.alter(limit=1)
    orders.send_batch([1, 2])
    first = leased()
    assert orders.read() == []
    park(first)

    assert [message.body for message in orders.read()] == [2]


def test_a_wait_of_another_message_is_an_error_of_the_handler(orders):
    queue("others").create()
    queue("others").send({})
    orders.send({})

    @consumer("orders", retry=NoRetry())
    def handle(message):
        queue("others").read()[0].wait_for("paid:7", timeout=9)

    drain("orders", handle, policies=True)

    assert run_sql("SELECT state FROM pgqueue_archive") == [("FAILED",)]
    assert PendingWait.objects.count() == 1


# In a consumer, in tests, and in async code


def test_draining_a_queue_stops_at_a_wait_and_goes_on_after_the_signal(orders):
    seen = []

    @consumer("orders")
    def handle(message):
        seen.append(message.step("charge", lambda: len(seen)))
        try:
            seen.append(message.wait_for("paid:7", timeout="3d"))
        except TimedOut:
            seen.append("late")

    orders.send({})
    drain("orders", handle)
    assert seen == [0]
    signal("paid:7", "yes")
    drain("orders", handle, policies=True)
    orders.send({})
    drain("orders", handle)

    assert seen == [0, 0, "yes", 3, "yes"]
    assert orders.metrics().length == 0


def test_a_handler_that_swallows_the_wait_still_waits(orders):
    @consumer("orders")
    def handle(message):
        try:
            message.wait_for("paid:7", timeout="3d")
        except BaseException:
            return

    orders.send({})
    drain("orders", handle, policies=True)

    assert orders.metrics().delayed == 1
    assert PendingWait.objects.count() == 1


def test_the_other_messages_of_a_batch_are_released(orders):
    seen = []

    @consumer("orders", batch=True, batch_size=3)
    def handle(messages):
        seen.append([message.body for message in messages])
        for message in messages:
            if message.body == 1:
                message.wait_for("paid:7", timeout="3d")

    orders.send_batch([0, 1, 2])
    drain("orders", handle)

    assert seen == [[0, 1, 2], [0, 2]]
    assert orders.metrics().delayed == 1


@pytest.mark.django_db(transaction=True)
def test_async_handlers_wait_and_send_signals(committed_orders):
    seen = []

    @consumer("orders")
    async def handle(message):
        seen.append(await message.await_for("paid:7", timeout="3d"))
        await message.asleep(0)

    committed_orders.send({})
    drain("orders", handle)
    assert async_to_sync(asignal)("paid:7", 41) == 1
    drain("orders", handle)

    assert seen == [41, 41]
    assert connection.in_atomic_block is False
