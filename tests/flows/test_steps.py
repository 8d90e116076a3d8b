"""A step is done once: a later delivery of its message gets the stored value."""

from __future__ import annotations

import asyncio
import datetime as dt

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import IntegrityError, transaction
from django.test import TestCase

from django_pgqueue import consumer
from django_pgqueue.acks import Reject
from django_pgqueue.errors import (
    InvalidArgument,
    InvalidMessage,
    LeaseLost,
    NeverRead,
    StepRefused,
)
from django_pgqueue.flows.steps import STEP_BYTES
from django_pgqueue.models import Message, Step, queue
from django_pgqueue.testing import drain
from tests.app.models import Order
from tests.conftest import run_sql
from tests.flows.doing import again, leased

TAKEN: list[int] = []


@pytest.fixture(autouse=True)
def _none_taken(own_handlers):
    TAKEN.clear()


def take(number: int) -> dict[str, int]:
    """A function that a step calls. It records each call."""
    TAKEN.append(number)
    return {"receipt": number}


def steps(pk: int, name: str = "orders") -> list[tuple[str, object]]:
    return [(step.name, step.value) for step in queue(name).steps(pk)]


def test_a_later_delivery_gets_the_stored_value_and_does_not_call_the_function(orders):
    orders.send({})
    message = leased()

    assert message.step("charge", take, 41) == {"receipt": 41}
    assert again(message).step("charge", take, 42) == {"receipt": 41}
    assert TAKEN == [41]
    assert steps(message.id) == [("charge", {"receipt": 41})]


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (None, None),
        ((1, 2), [1, 2]),
        ({"b": 1, "a": {1: 2}}, {"a": {"1": 2}, "b": 1}),
        (dt.date(2026, 11, 28), "2026-11-28"),
        ("ä\n", "ä\n"),
        (False, False),
        (1.5, 1.5),
    ],
)
def test_both_deliveries_get_the_same_value(orders, value, stored):
    orders.send({})
    message = leased()

    first = message.step("value", lambda: value)
    second = again(message).step("value", take, 1)

    assert first == second == stored
    assert type(first) is type(second)
    assert TAKEN == []


def test_a_step_that_raises_stores_nothing_and_may_begin_again(orders):
    orders.send({})
    message = leased()

    with pytest.raises(ZeroDivisionError):
        message.step("charge", lambda: 1 / 0)
    assert message.step("charge", take, 1) == {"receipt": 1}
    assert len(steps(message.id)) == 1


def test_steps_have_names_and_no_order(orders):
    orders.send({})
    message = leased()
    message.step("a", take, 1)
    message.step("b", take, 2)
    later = again(message)

    assert later.step("c", take, 3) == {"receipt": 3}
    assert later.step("b", take, 4) == {"receipt": 2}
    assert TAKEN == [1, 2, 3]


def test_a_name_is_used_once_in_a_delivery(orders):
    orders.send({})
    message = leased()
    message.step("mail", take, 1)

    with pytest.raises(InvalidArgument, match=r"has used step 'mail' before.*f'mail-\{n\}'"):
        message.step("mail", take, 2)
    later = again(message)
    later.step("mail", take, 3)
    with pytest.raises(InvalidArgument, match="has used step 'mail' before"):
        later.step("mail", take, 4)
    assert TAKEN == [1]


def test_steps_are_those_of_one_message(orders):
    orders.send_batch([{}, {}])
    first, second = orders.read(qty=2)
    first.step("charge", take, 1)

    assert second.step("charge", take, 2) == {"receipt": 2}


@pytest.mark.parametrize("name", ["", "x" * 256, "a\0", None, 7])
def test_a_name_is_text_that_can_be_stored(orders, name):
    orders.send({})

    with pytest.raises(InvalidArgument, match="name of a step"):
        leased().step(name, take, 1)
    assert TAKEN == []


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), "a\0", "\ud800", object()])
def test_a_value_that_is_not_json_is_an_error_that_names_the_step(orders, value):
    orders.send({})
    message = leased()

    with pytest.raises(InvalidMessage, match="the value of step 'charge'"):
        message.step("charge", lambda: value)
    assert steps(message.id) == []


def test_a_value_over_the_limit_is_an_error_that_names_the_step_and_its_size(orders):
    orders.send({})
    message = leased()
    message.step("most", lambda: "x" * (STEP_BYTES - 2))

    with pytest.raises(InvalidMessage, match=rf"'more' is {STEP_BYTES + 1} bytes .* {STEP_BYTES}"):
        message.step("more", lambda: "ä" * (STEP_BYTES // 2 - 1) + "x")
    assert [name for name, _ in steps(message.id)] == ["most"]


def test_a_called_function_is_no_function(orders):
    orders.send({})

    with pytest.raises(InvalidArgument, match=r"takes a function .* not charge\(order\)"):
        leased().step("charge", take(1))


def test_a_message_that_was_only_peeked_at_has_no_steps(orders):
    orders.send({})

    with pytest.raises(NeverRead):
        orders.peek()[0].step("charge", take, 1)
    assert TAKEN == []


# The fence


@pytest.mark.parametrize("qty", [1, 20], ids=["alone", "in a batch"])
@pytest.mark.parametrize("has_begun", [False, True], ids=["before its steps", "after a step"])
def test_a_late_worker_stores_nothing(orders, qty, has_begun):
    orders.send_batch([{}] * qty)
    late = leased(qty=qty)
    if has_begun:
        late.step("first", take, 0)
    holder = again(late)
    TAKEN.clear()

    with pytest.raises(LeaseLost):
        late.step("charge", take, 1)
    with pytest.raises(LeaseLost):
        late.note({"row": 1})
    assert holder.step("charge", take, 2) == {"receipt": 2}
    assert orders.note(late.id) is None
    assert ([1, 2] if has_begun else [2]) == TAKEN
    assert ("charge", {"receipt": 2}) in steps(late.id)


@pytest.mark.parametrize("end", ["archive", "delete", "cancel"])
def test_after_the_end_of_the_message_nothing_is_stored(orders, end):
    orders.send({})
    message = leased()
    message.step("first", take, 1)
    getattr(orders, end)(message.receipt)

    with pytest.raises(LeaseLost):
        message.step("second", take, 2)
    assert [name for name, _ in steps(message.id)] == ["first"]


def test_a_lease_that_has_expired_but_was_not_read_again_still_stores(orders):
    orders.send({})
    message = leased()
    orders.set_vt(message, 0)

    assert message.step("charge", take, 1) == {"receipt": 1}


def test_each_message_of_a_batch_has_its_steps_and_can_be_archived_with_the_others(orders):
    orders.send_batch([{}] * 20)
    messages = orders.read(qty=20)

    for message in messages:
        message.step("charge", take, message.id)
    assert orders.archive(messages) == [message.id for message in messages]
    assert all(len(steps(message.id)) == 1 for message in messages)


def test_a_follower_in_a_group_has_steps_until_its_head_is_read_again(orders):
    orders.send_batch([{}, {}], group="customer")
    head, follower = orders.read_grouped(qty=2)
    follower.step("first", take, 1)
    orders.set_vt(head.receipt, 0)
    orders.read_grouped(qty=1)

    with pytest.raises(LeaseLost):
        follower.step("second", take, 2)


# The life of a message


def test_steps_survive_a_dead_letter_and_its_redrive(orders, dead_letters):
    orders.send({})
    message = leased()
    message.step("charge", take, 1)
    orders.fail({message.receipt: "no such ship"})
    queue("dead").redrive()

    assert leased().step("charge", take, 2) == {"receipt": 1}


def test_a_release_keeps_steps(orders):
    orders.send({})
    message = leased()
    message.step("charge", take, 1)
    orders.release([message.receipt])
    later = leased()

    assert later.read_ct == 1
    assert later.step("charge", take, 2) == {"receipt": 1}


def test_a_replayed_message_is_another_one(orders):
    orders.send({})
    message = leased()
    message.step("charge", take, 1)
    orders.archive(message)
    orders.replay()

    assert leased().step("charge", take, 2) == {"receipt": 2}


def test_a_completed_message_keeps_its_steps(orders):
    orders.send({})
    message = leased()
    message.step("charge", take, 1)
    orders.archive(message)

    assert steps(message.id) == [("charge", {"receipt": 1})]


def test_erasing_a_message_erases_its_steps_and_its_note(orders):
    orders.send_batch([{}, {}])
    gone, other = orders.read(qty=2)
    for message in (gone, other):
        message.step("charge", take, 1)
        message.note({"row": 1}, flush=True)
    Message.objects.filter(pk=gone.id).delete()

    assert steps(gone.id) == []
    assert orders.note(gone.id) is None
    assert steps(other.id) != []
    assert orders.note(other.id) == {"row": 1}


def test_erasing_a_dead_letter_erases_the_steps_of_its_source(orders, dead_letters):
    orders.send({})
    message = leased()
    message.step("charge", take, 1)
    message.note({"row": 1}, flush=True)
    orders.fail({message.receipt: "no such ship"})
    Message.objects.filter(pk=message.id).delete()

    assert steps(message.id) == []
    assert orders.note(message.id) is None


def test_dropping_a_queue_drops_its_steps(orders):
    orders.send({})
    leased().step("charge", take, 1)
    orders.drop()

    assert not Step.objects.exists()


# Transactions


def test_a_step_in_a_transaction_is_refused_before_its_function_runs(orders):
    orders.send({})
    message = leased()

    with transaction.atomic(), pytest.raises(StepRefused, match=r"step 'charge' of message \d+"):
        message.step("charge", take, 1)
    with transaction.atomic(), pytest.raises(StepRefused, match="atomic=True"):
        message.step("charge", take, 1, atomic=True)
    with transaction.atomic(), pytest.raises(StepRefused, match="note of message"):
        message.note({"row": 1})
    assert TAKEN == []


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_step_in_a_transaction_of_another_database_is_refused(committed_orders):
    committed_orders.send({})
    message = leased()

    with transaction.atomic(using="other"), pytest.raises(StepRefused):
        message.step("charge", take, 1)
    assert TAKEN == []
    assert message.step("charge", take, 2) == {"receipt": 2}


def test_the_names_of_waits_are_no_names_of_steps(orders):
    orders.send({})
    message = leased()

    for name in ("wait_for paid:7", "sleep sleep"):
        with pytest.raises(InvalidArgument, match="has the name of a wait"):
            message.step(name, take, 1)
    assert TAKEN == []


def test_a_function_that_leaves_a_transaction_open_stores_nothing(orders):
    orders.send({})
    message = leased()
    block = transaction.atomic()

    with pytest.raises(StepRefused):
        message.step("charge", block.__enter__)
    transaction.set_rollback(True)
    block.__exit__(None, None, None)
    assert steps(message.id) == []


@pytest.mark.parametrize("options", [{"ack_policy": "TRANSACTIONAL"}, {"locked": True}])
def test_a_handler_in_a_transaction_has_no_steps(orders, options):
    orders.send({})

    @consumer("orders", **options)
    def handle(message):
        message.step("charge", take, 1)

    with pytest.raises(StepRefused):
        drain("orders", handle)
    assert TAKEN == []


def create(number: str) -> str:
    Order.objects.create(number=number)
    return number


def test_an_atomic_step_stores_its_writes_and_its_value_together(orders):
    orders.send({})
    message = leased()

    assert message.step("order", create, "7", atomic=True) == "7"
    assert again(message).step("order", create, "7", atomic=True) == "7"
    assert Order.objects.count() == 1


def test_an_atomic_step_whose_value_cannot_be_stored_writes_nothing(orders):
    orders.send({})
    message = leased()

    def create_and_return_a_set():
        create("7")
        return {1}

    with pytest.raises(InvalidMessage):
        message.step("order", create_and_return_a_set, atomic=True)
    assert not Order.objects.exists()


def test_an_atomic_step_of_a_late_worker_writes_nothing(orders):
    orders.send({})
    late = leased()
    late.step("first", take, 0)
    again(late)

    with pytest.raises(LeaseLost):
        late.step("order", create, "7", atomic=True)
    assert not Order.objects.exists()


def test_a_database_error_in_an_atomic_step_leaves_the_handler_a_working_connection(orders):
    run_sql(f"CREATE UNIQUE INDEX once_only ON {Order._meta.db_table} (number)")
    create("7")
    orders.send({})
    message = leased()

    with pytest.raises(IntegrityError):
        message.step("order", create, "7", atomic=True)
    assert message.step("charge", take, 1) == {"receipt": 1}


# Keys, async code, and tests


def test_a_key_names_the_step_in_every_delivery(orders):
    orders.send({})
    message = leased()

    assert message.step_key("charge") == again(message).step_key("charge")
    assert message.step_key("charge") == f"orders-{message.id}-charge"
    assert message.step_key("charge") != message.step_key("mail")


async def take_async(number: int) -> dict[str, int]:
    await asyncio.sleep(0)
    return take(number)


@pytest.mark.django_db(transaction=True)
def test_async_handlers_await_their_steps(committed_orders):
    committed_orders.send({})
    seen = []

    @consumer("orders")
    async def handle(message):
        seen.append(await message.astep("async", take_async, 1))
        seen.append(await message.astep("plain", take, 2))
        seen.append(await message.astep("order", create, "7", atomic=True))
        await message.anote({"row": 3})
        assert await message.alast_note() == {"row": 3}
        if message.attempts == 0:
            raise ValueError

    drain("orders", handle, policies=True)

    assert seen == [{"receipt": 1}, {"receipt": 2}, "7"] * 2
    assert TAKEN == [1, 2]
    assert Order.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_wrong_kind_of_function_is_an_error_that_says_what_to_write(committed_orders):
    committed_orders.send({})
    message = leased()

    async def in_async_code() -> None:
        with pytest.raises(SynchronousOnlyOperation, match=r"await message\.astep"):
            message.step("charge", take, 1)
        with pytest.raises(SynchronousOnlyOperation, match=r"await message\.anote"):
            message.note({})
        with pytest.raises(InvalidArgument, match="is atomic, and its function is async"):
            await message.astep("charge", take_async, 1, atomic=True)

    asyncio.run(in_async_code())
    with pytest.raises(InvalidArgument, match=r"await message\.astep"):
        message.step("charge", take_async, 1)
    with pytest.raises(InvalidArgument, match=r"await message\.astep"):
        message.step("charge", lambda: take_async(1))
    assert TAKEN == []


class InATest(TestCase):
    def test_steps_work_in_a_test_that_drains_a_queue(self):
        queue("orders").create()
        queue("orders").send({})

        @consumer("orders")
        def handle(message):
            message.step("charge", take, 1)
            with transaction.atomic(), pytest.raises(StepRefused):
                message.step("mail", take, 2)
            if message.attempts == 0:
                raise ValueError

        with transaction.atomic():
            drain("orders", handle, policies=True)

        assert TAKEN == [1]

    def test_a_test_that_reads_by_itself_can_do_steps(self):
        queue("orders").create()
        queue("orders").send({})

        assert leased().step("charge", take, 1) == {"receipt": 1}


def test_a_message_that_is_rejected_keeps_its_steps_in_the_archive(orders):
    orders.send({})

    @consumer("orders")
    def handle(message):
        message.step("charge", take, 1)
        raise Reject("no such ship")

    [message] = drain("orders", handle)

    assert steps(message.id) == [("charge", {"receipt": 1})]
