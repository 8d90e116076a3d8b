"""The kind of a failure: which errors are one group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_pgqueue import queue
from django_pgqueue.acks import describe
from django_pgqueue.models import BoundQueue, Message

TRACE = (
    'Traceback (most recent call last):\n  File "/app/shop/{file}.py", line {line}, in {name}\n'
    '    body["price"]\n  File "/env/lib/python3.12/site-packages/lib.py", line {line}, in get\n'
)


def trace(error: str, file: str = "a", name: str = "charge", line: int = 7) -> str:
    return f"{error}\n\n{TRACE.format(file=file, name=name, line=line)}{error}"


@pytest.fixture
def kinds(orders: BoundQueue, sql: Callable[..., Any]) -> Callable[..., list[int]]:
    """Fail a message with each of these errors; returns the kinds, in this order."""

    def fail(*errors: str) -> list[int]:
        orders.send_batch(list(range(len(errors))))
        for message, error in zip(orders.read(qty=len(errors)), errors, strict=True):
            message.reject(error)
        found = sql("SELECT failure FROM pgqueue_archive ORDER BY id")
        return [kind for (kind,) in found]

    return fail


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no order 7", "no order 1234"),
        ("KeyError: 'ann 1'", "KeyError: 'robert 2'"),
        ('no "a b"', 'no "c d"'),
        ("it's 7 o'clock", "it's 8 o'clock"),
        ("id 3f2a77b1-0c4d-4e1a-9b2c-7d8e9f000001", "id 00000000-0c4d-4e1a-9b2c-7d8e9f0000aa"),
        ("after 0.25 s at 12:30:01", "after 17.5 s at 23:59:59"),
        ("card <4242> of 7\nhint 1", "card <1> of 12\nhint 2"),
        (trace("KeyError: 'sku'", line=7), trace("KeyError: 'sku'", line=8)),
        (
            "Traceback (most recent call last):\n  a\nTimeoutError: 3 s\n",
            "Traceback (most recent call last):\n  b\nTimeoutError: 17 s",
        ),
    ],
)
def test_errors_that_differ_in_numbers_and_ids_are_one_kind(kinds, one, other):
    first, second, third = kinds(one, other, "something else")

    assert first == second != third
    assert min(first, third) >= 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("TimeoutError: the bank did not answer", "TimeoutError: no connection"),
        ("KeyError: 'price'", "KeyError: 'sku'"),
        ("KeyError: 'a' of 'x y'", "KeyError: 'b' of 'x y'"),
        ('violates unique constraint "order_pkey"', 'violates unique constraint "order_ref"'),
        (trace("KeyError: 'sku'", file="a"), trace("KeyError: 'sku'", file="b")),
        (trace("KeyError: 'sku'", name="charge"), trace("KeyError: 'sku'", name="refund")),
        (
            "Traceback (most recent call last):\n  a\nA: no",
            "Traceback (most recent call last):\n  a\nB: no",
        ),
    ],
)
def test_errors_of_other_names_places_or_words_are_two_kinds(kinds, one, other):
    first, second = kinds(one, other)

    assert first != second


def test_a_dead_letter_has_its_kind_and_its_source(orders, sql):
    dead = Message.objects.create_queue("dead")
    mails = Message.objects.create_queue("mails", dead_letter_queue=dead)
    for name in ("mails", "orders"):
        queue(name).send(1)
        queue(name).read()[0].reject("no order 7")

    [letter] = sql(
        "SELECT failure, source_id, queue_id FROM pgqueue_message WHERE failure IS NOT NULL"
    )
    [(kind,)] = sql("SELECT failure FROM pgqueue_archive")

    assert letter == (kind, mails.pk, dead.pk)


def test_deliveries_that_ran_out_are_told_apart_by_the_last_error(orders, sql):
    sql("UPDATE pgqueue_queue SET max_deliveries = 1")
    for error in ("no card 7", "no card 8", "no bank"):
        orders.send(error)
        [message] = queue("orders").read(vt=0)
        orders.retry({message.receipt: 0}, errors={message.receipt: error})
        assert orders.read(vt=0) == []

    first, second, third = sql("SELECT failure FROM pgqueue_archive ORDER BY id")

    assert first == second != third


def test_an_exception_has_a_kind_whatever_its_length(kinds):
    def fall(depth: int) -> None:
        if depth:
            fall(depth - 1)
        raise ValueError(f"{'x' * 5000} {depth}")

    told = []
    for depth in (3, 900):
        try:
            fall(depth)
        except ValueError as error:
            told.append(describe(error))

    first, second = kinds(*told)

    assert first == second


def test_a_failure_that_is_sent_again_is_closed(orders, kinds, sql):
    kinds("no card", "no bank")
    first, second = (pk for (pk,) in sql("SELECT id FROM pgqueue_archive ORDER BY id"))

    assert orders.replay(ids=[second]) == 1

    assert sql("SELECT id FROM pgqueue_archive WHERE failure IS NOT NULL") == [(first,)]
