"""A step whose commit seems to fail is not done again by the same delivery."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError, connection, transaction

from django_pgqueue.database.runner import DjangoRunner
from django_pgqueue.models import Message
from tests.app.models import Order
from tests.flows.doing import atomic, orders_by

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def message(committed_orders) -> Message:
    committed_orders.send({})
    return committed_orders.read()[0]


@contextmanager
def no_answer(of: type | object, name: str, containing: str = "") -> Iterator[None]:
    """Let a method do its work, and then raise as if the connection had broken."""
    real = getattr(of, name)

    def act(*args, **kwargs):
        found = real(*args, **kwargs)
        if not containing or any(containing in str(each) for each in args):
            raise OperationalError("the connection is lost")
        return found

    with mock.patch.object(of, name, act):
        yield


def test_an_atomic_step_whose_commit_had_no_answer_is_not_done_again(message):
    with no_answer(connection, "commit"), pytest.raises(OperationalError):
        atomic(message, "first")

    assert atomic(message, "second") == "first"
    assert orders_by() == ["first"]


def test_an_atomic_step_whose_hook_fails_after_the_commit_is_not_done_again(message):
    def order_with_a_hook() -> str:
        Order.objects.create(number="first")
        transaction.on_commit(lambda: 1 / 0)
        return "first"

    with pytest.raises(ZeroDivisionError):
        message.step("order", order_with_a_hook, atomic=True)

    assert atomic(message, "second") == "first"
    assert orders_by() == ["first"]


def test_a_step_whose_store_had_no_answer_is_not_done_again(message):
    calls: list[int] = []
    lost = no_answer(DjangoRunner, "run", "INSERT INTO pgqueue_step")
    with lost, pytest.raises(OperationalError):
        message.step("charge", calls.append, 1)

    message.step("charge", calls.append, 2)
    assert calls == [1]


def test_an_async_step_whose_store_had_no_answer_is_not_done_again(message):
    calls = []

    async def charge() -> int:
        calls.append(1)
        return len(calls)

    async def in_async_code() -> int:
        lost = no_answer(DjangoRunner, "run", "INSERT INTO pgqueue_step")
        with lost, pytest.raises(OperationalError):
            await message.astep("charge", charge)
        return await message.astep("charge", charge)

    assert async_to_sync(in_async_code)() == 1
    assert calls == [1]


def test_a_step_whose_store_was_rolled_back_is_done_again(message):
    def rolled_back() -> str:
        Order.objects.create(number="first")
        transaction.set_rollback(True)
        return "first"

    with pytest.raises(transaction.TransactionManagementError):
        message.step("order", rolled_back, atomic=True)

    assert atomic(message, "second") == "second"
    assert orders_by() == ["second"]
