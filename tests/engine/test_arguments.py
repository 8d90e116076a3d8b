"""Arguments of public operations: accepted, or refused without a partial effect."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.core.serializers.json import DjangoJSONEncoder
from django.db import transaction
from django.utils.translation import gettext_lazy
from hypothesis import given
from hypothesis import strategies as st

from django_pgqueue.engine import arguments
from django_pgqueue.engine.encoding import encode
from django_pgqueue.errors import InvalidArgument, InvalidMessage, InvalidQueueName
from django_pgqueue.models import BoundQueue, Message
from django_pgqueue.types import Receipt

NAIVE = dt.datetime(2099, 1, 1)

circle: list[Any] = []
circle.append(circle)

deep: list[Any] = []
for _ in range(100_000):
    deep = [deep]

NOT_JSON: dict[str, Any] = {
    "NaN": float("nan"),
    "Infinity": {"a": [float("inf")]},
    "minus Infinity": -float("inf"),
    "a set": {1, 2},
    "bytes": b"bytes",
    "an object": object(),
    "an object inside": {"a": [object()]},
    "a tuple as key": {(1, 2): 3},
    "a circle": circle,
    "deeper than can be written": deep,
    "NUL": "\x00",
    "NUL inside": {"a": ["text \x00 text"]},
    "NUL in a key": {"a\x00": 1},
    "NUL after a backslash": "\\\x00",
    "a lone surrogate": "\ud800",
    "a lone surrogate in a key": {"\udfff": 1},
}

LOOKS_LIKE_NUL = [
    "\\u0000",
    "\\\\u0000",
    "a\\u0000b",
    {"\\u0000": "\\u0000"},
    "\\\\\\u0000",
    "u0000",
]

not_json = pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)


@pytest.fixture
def refuse(orders: BoundQueue) -> Callable[..., None]:
    """Check that a call is refused and the caller's transaction can continue."""
    orders.send("before")

    def refuse(operation: Callable[[], Any], error: type[Exception], match: str) -> None:
        with transaction.atomic():
            orders.send("in the transaction")
            with pytest.raises(error, match=match):
                operation()
            assert Message.objects.count() == 2
            orders.send("still usable")
        assert orders.metrics().ready == 3

    return refuse


# Bodies and headers


@not_json
def test_a_body_that_jsonb_cannot_hold_is_refused(refuse, orders, body):
    refuse(lambda: orders.send(body), InvalidMessage, "body")


@not_json
@pytest.mark.parametrize("count", [2, 600])
def test_one_bad_body_refuses_the_batch(refuse, orders, body, count):
    bodies = [1] * (count - 1) + [body]

    refuse(lambda: orders.send_batch(bodies), InvalidMessage, "body")


@not_json
def test_headers_that_jsonb_cannot_hold_are_refused(refuse, orders, body):
    refuse(lambda: orders.send(1, headers={"h": body}), InvalidMessage, "headers")


@pytest.mark.parametrize("headers", ["text", 1, [1], [{"h": 1}], True, ""])
def test_headers_that_are_no_dict_are_refused(refuse, orders, headers):
    refuse(lambda: orders.send(1, headers=headers), InvalidMessage, "headers must be a dict")


@pytest.mark.parametrize("body", LOOKS_LIKE_NUL)
def test_text_that_only_looks_like_nul_is_fine(orders, body):
    orders.send(body)
    orders.send_batch([body] * 600)

    assert [m.body for m in orders.read(qty=None)] == [body] * 601


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(10**30), 10**30)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
        | st.sampled_from(LOOKS_LIKE_NUL[:2]),
        lambda children: (
            st.lists(children, max_size=4)
            | st.dictionaries(
                st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
                children,
                max_size=4,
            )
        ),
        max_leaves=10,
    )
)
def test_whatever_json_can_hold_is_written_as_it_is(body):
    text = arguments.json_text(body)

    assert text is None if body is None else json.loads(text) == body


@given(st.text(), st.sampled_from(["\x00", "\ud800", "\udc00"]), st.text())
def test_what_postgresql_cannot_store_is_found_wherever_it_stands(before, bad, after):
    for value in (before + bad + after, {before + bad + after: 1}, [{"a": before + bad + after}]):
        with pytest.raises(InvalidMessage):
            arguments.json_text(value)


# Batches


@pytest.mark.parametrize(
    ("bodies", "match"),
    [(empty, "empty") for empty in ([], (), iter([]))]
    + [(one, "list of bodies") for one in ("text", b"bytes", {"order": 7}, None, 7, object())],
)
def test_an_empty_batch_or_a_single_body_is_refused(refuse, orders, bodies, match):
    refuse(lambda: orders.send_batch(bodies), InvalidArgument, match)


@pytest.mark.parametrize("name", ["headers", "group", "unique"])
@pytest.mark.parametrize("length", [0, 1, 3])
def test_lists_of_another_length_than_the_bodies_are_refused(refuse, orders, name, length):
    values = [{"h": 1} if name == "headers" else f"key {n}" for n in range(length)]

    refuse(
        lambda: orders.send_batch([1, 2], **{name: values}),
        InvalidArgument,
        f"{name} has {length} items, but there are 2 bodies",
    )


# Numbers, times and keys


@pytest.mark.parametrize("priority", [101, -101, True, 1.0, "1", None, float("nan")])
@pytest.mark.parametrize("count", [1, 2, 600])
def test_a_bad_priority_is_refused(refuse, orders, priority, count):
    refuse(sending(orders, count, priority=priority), InvalidArgument, "priority must be")


@pytest.mark.parametrize(
    "delay",
    [
        NAIVE,
        "60",
        True,
        False,
        float("nan"),
        float("inf"),
        10**20,
        dt.timedelta.max,
        dt.date(2099, 1, 1),
    ],
)
@pytest.mark.parametrize("count", [1, 2, 600])
@pytest.mark.parametrize("name", ["delay", "expires"])
def test_a_bad_time_is_refused(refuse, orders, delay, count, name):
    refuse(sending(orders, count, **{name: delay}), InvalidArgument, name)


def test_a_naive_datetime_is_refused_with_advice():
    with pytest.raises(InvalidArgument, match=r"naive datetime .*make_aware"):
        arguments.moment(NAIVE)


@pytest.mark.parametrize("value", ["", "x" * 256, "a\x00", "\ud800", 7, True, b"k", ("k",)])
@pytest.mark.parametrize("name", ["group", "unique"])
def test_a_bad_key_is_refused(refuse, orders, name, value):
    refuse(lambda: orders.send(1, **{name: value}), InvalidArgument, name)


def sending(orders: BoundQueue, count: int, **options: Any) -> Callable[[], Any]:
    if count == 1:
        return lambda: orders.send(1, **options)
    return lambda: orders.send_batch([1] * count, **options)


# Tests without a database


@pytest.mark.parametrize("name", ["a", "A.b-c_9", "x" * 63])
def test_a_queue_name_is_used_unchanged(name):
    assert arguments.queue_name(name) == name


@given(st.text().filter(lambda text: not text or not text.isascii() or not text.isalnum()))
def test_no_other_name_is_taken(name):
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
    if name and len(name) < 64 and set(name) <= allowed:
        assert arguments.queue_name(name) == name
    else:
        with pytest.raises(InvalidQueueName):
            arguments.queue_name(name)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(0, 0), (1.5, 1.5), (-1, -1), (dt.timedelta(minutes=1), 60), (10**10, 10**10)],
)
def test_a_duration_is_a_number_of_seconds_or_a_timedelta(value, seconds):
    assert arguments.duration(value).total_seconds() == seconds


def test_a_moment_is_absolute_or_relative_or_neither():
    aware = NAIVE.replace(tzinfo=dt.timezone.utc)

    assert arguments.moment(aware) == {"at": aware, "after": None}
    assert arguments.moment(-3) == {"at": None, "after": dt.timedelta(seconds=-3)}
    assert arguments.moment(0) == arguments.moment(None) == {"at": None, "after": None}


@pytest.mark.parametrize("value", [0, 1, 2**31 - 1, None])
def test_a_quantity_is_zero_or_more_or_none(value):
    assert arguments.quantity(value) == value


def test_targets_are_sorted_by_type_and_kept_in_order_without_duplicates():
    mixed = [3, Receipt(2, 1), 1, 3, Receipt(2, 1), Receipt(2, 2)]

    assert arguments.targets(mixed) == ([Receipt(2, 1), Receipt(2, 2)], [3, 1])
    assert arguments.targets(Receipt(1, 1)) == ([Receipt(1, 1)], [])
    assert arguments.targets(7) == ([], [7])
    assert arguments.targets([]) == ([], [])


@pytest.mark.parametrize("receipt", [Receipt("1", 1), Receipt(1, None), Receipt(2**64, 1)])
def test_a_receipt_of_something_else_than_numbers_is_refused(receipt):
    with pytest.raises(InvalidArgument):
        arguments.targets(receipt)


def written(value: Any, by: Callable[[Any], str]) -> Any:
    """The value as a reader gets it, or the error."""
    try:
        return json.loads(by(value))
    except (TypeError, ValueError) as error:
        return str(error)


ZONES = st.none() | st.sampled_from(
    [dt.timezone.utc, dt.timezone(dt.timedelta(hours=2)), dt.timezone(dt.timedelta(seconds=-30))]
)


@given(
    st.datetimes(timezones=ZONES)
    | st.dates()
    | st.times(timezones=ZONES)
    | st.timedeltas(min_value=dt.timedelta(days=-(10**6)))
    | st.decimals()
    | st.uuids()
    | st.text().map(lambda text: gettext_lazy(text or "a"))
)
def test_values_beyond_json_are_written_as_django_does(value):
    assert written(value, encode) == written(value, DjangoJSONEncoder().encode)
