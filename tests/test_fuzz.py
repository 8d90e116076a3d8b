"""Hostile values for every public argument: the result is a value, or an error with advice.

    FUZZ_EXAMPLES=2000 pytest tests/test_fuzz.py     # long; 20 by default

Each example takes a working call and replaces one to three arguments. The call may succeed;
otherwise it raises PgQueueError or TypeError with a text, and sends nothing. A database error, or
any other exception, is a fault.
"""

from __future__ import annotations

import datetime as dt
import inspect
import os
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.db.models import Manager
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_pgqueue import consumer, handlers, schedule, schedules
from django_pgqueue.acks import Ack, Discard, Nack, Reject
from django_pgqueue.errors import PgQueueError
from django_pgqueue.models import BoundQueue, Message, Queue
from django_pgqueue.types import Receipt
from tests.conftest import run_sql

pytestmark = pytest.mark.django_db

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "20"))
UTC = dt.timezone.utc

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 101, 2**31, -(2**31) - 1, 2**63, -(2**63), 2**64, 10**400]),
    st.integers(),
    st.floats(),
    st.sampled_from([1e300, -1e300, 5e-324, 0.0000001]),
    st.text(max_size=20),
    st.sampled_from(["", "\x00", "a\x00b", "\ud800", "\\u0000", "'; --", "%s", "{}", "x" * 256]),
    st.binary(max_size=8),
    st.decimals().filter(lambda value: not value.is_snan()),  # unhashable
    st.sampled_from(
        [
            dt.datetime(2026, 1, 1),
            dt.datetime.min,
            dt.datetime.max,
            dt.datetime.min.replace(tzinfo=UTC),
            dt.datetime.max.replace(tzinfo=UTC),
            dt.date(2026, 1, 1),
            dt.timedelta.max,
            dt.timedelta.min,
            dt.timedelta(seconds=-1),
            dt.timedelta(microseconds=1),
            Decimal("NaN"),
            UUID(int=0),
            complex(1, 1),
            Ellipsis,
            object,
            object(),
            len,
            Ack(),
            Reject("\x00"),
            Discard(),
            Nack(1.0, "\ud800"),
            Queue(),
            Message(),
        ]
    ),
)
numbers = st.one_of(
    st.integers(), st.sampled_from([0, -1, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63), 2**64])
)


def can_be_hashed(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


hashable = scalars.filter(can_be_hashed)
receipts = st.one_of(
    st.builds(Receipt, numbers, numbers, numbers), st.builds(Receipt, hashable, hashable, hashable)
)
keys = st.one_of(receipts, st.integers(), st.text(max_size=5), st.none())
hostile = st.one_of(
    scalars,
    receipts,
    st.recursive(
        st.one_of(scalars, receipts),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(keys, inner, max_size=3),
        ),
        max_leaves=4,
    ),
    st.builds(iter, st.lists(scalars, max_size=2)),
    st.frozensets(st.integers(), max_size=2),
)


def is_a_wait(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0.01


def is_a_rate(value: Any) -> bool:
    """Whether a value is a rate so low that three messages take long."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1000


def given_receipt(message: Message) -> dict[str, Any]:
    """Working arguments, by name, for a message that was read."""
    receipt = message.receipt
    return {
        "body": {"n": 1},
        "bodies": [1, 2],
        "receipts_or_ids": receipt,
        "receipts": [receipt],
        "heads": [receipt],
        "delays": {receipt: 0},
        "errors": {receipt: "no"},
        "outcomes": {receipt: Ack()},
        "ids": [message.id],
        "vt": 30,
        "process_id": 1,
        "message_id": message.id,
        "max_poll_seconds": 0,
        "target": None,
        "unlogged": False,
    }


def public(where: type) -> set[str]:
    """The public operations of a class, without their async twins."""
    return {
        name
        for name, value in inspect.getmembers(where, inspect.isfunction)
        if not name.startswith("_") and not inspect.iscoroutinefunction(value)
    }


#: Without those that cannot run in a test's transaction, or wait as long as their argument says.
OPERATIONS = sorted(
    public(BoundQueue) - {"create", "drop", "maintain", "repartition", "result", "wait"}
)
#: Arguments without a check: callables, or values passed to the caller's code.
ANYTHING = {"progress"}


def parameters(operation: Callable[..., Any]) -> list[inspect.Parameter]:
    found = inspect.signature(operation).parameters.values()
    return [p for p in found if p.name not in {"self", "queue", "args", "kwargs", *ANYTHING}]


def attempt(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Call it; returns the result, or an error of ours with a text."""
    try:
        return call(), None
    except (PgQueueError, TypeError) as error:
        found = error
    assert str(found).strip(), f"{found!r} says nothing"
    return None, found


def stored() -> int:
    [(count,)] = run_sql("SELECT count(*) FROM pgqueue_message")
    return int(count)


def fuzz(test: Callable[..., None]) -> Callable[..., None]:
    return settings(
        max_examples=EXAMPLES,
        # The short form is repeatable; the long one searches further.
        derandomize="FUZZ_EXAMPLES" not in os.environ,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )(given(data=st.data())(test))


#: Operations of ``Message.objects`` only, with working arguments.
OF_ALL: dict[str, dict[str, Any]] = {
    "bind": {"pattern": "a.*", "queue": "orders"},
    "drop_queue": {"name": "other"},
    "list_bindings": {},
    "publish": {"key": "a.b", "body": 1},
    "publish_batch": {"key": "a.b", "bodies": [1, 2]},
    "test_routing": {"key": "a.b"},
    "unbind": {"pattern": "a.b", "queue": "orders"},
}
#: Operations without arguments, or that cannot run in a test's transaction. create_queue has its
#: own test.
OF_ALL_LEFT_OUT = {"create_queue", "list_queues", "maintain_all", "metrics_all", "resolve"}
#: Django's methods, with their own arguments.
DJANGO = {name for name, _ in inspect.getmembers(Manager, callable)}


def test_every_operation_on_all_queues_is_fuzzed():
    of_all = public(type(Message.objects)) - public(BoundQueue) - DJANGO
    assert of_all - OF_ALL_LEFT_OUT == set(OF_ALL)


@pytest.mark.parametrize("name", OPERATIONS)
@fuzz
def test_hostile_arguments_raise_our_errors_only(orders, name, data):
    operation = getattr(orders, name)
    orders.purge()
    orders.send_batch([1, 2, 3])
    [message] = orders.read()
    works = given_receipt(message)
    known = parameters(operation)
    arguments = {p.name: works[p.name] for p in known if p.name in works}
    if known:
        chosen = data.draw(
            st.lists(st.sampled_from([p.name for p in known]), min_size=1, max_size=3, unique=True)
        )
        for each in chosen:
            slow = is_a_rate if each == "rate" else is_a_wait if "poll" in each else None
            values = hostile if slow is None else hostile.filter(lambda v, f=slow: not f(v))
            arguments[each] = data.draw(values, label=each)
    before = stored()

    result, error = attempt(lambda: operation(**arguments))

    if name.startswith("send"):
        sent = 0 if error else len(set(result)) if isinstance(result, list) else 1
        # A random unique key may be that of an earlier example's message.
        assert stored() - before == sent or (not error and "unique" in arguments)
    # The transaction can continue: nothing is broken.
    assert orders.send(1) > 0


@pytest.mark.parametrize("name", OF_ALL)
@fuzz
def test_hostile_arguments_of_operations_on_all_queues_raise_our_errors_only(orders, name, data):
    operation = getattr(Message.objects, name)
    Message.objects.create_queue("other")
    Message.objects.bind("a.b", "orders")
    known = [*inspect.signature(operation).parameters]
    chosen = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
    arguments = {**OF_ALL[name], **{each: data.draw(hostile, label=each) for each in chosen}}
    before = stored()

    result, error = attempt(lambda: operation(**arguments))

    if name.startswith("publish"):
        sent = (
            sum(len(set(ids)) if isinstance(ids, list) else 1 for ids in result.values())
            if error is None
            else 0
        )
        assert stored() - before == sent or (not error and "unique" in arguments)
    assert orders.send(1) > 0


@pytest.mark.parametrize("decorator", [consumer, schedule])
@fuzz
def test_hostile_options_of_a_decorator_raise_our_errors_only(
    own_handlers, monkeypatch, decorator, data
):
    def handle(message: Message) -> None: ...

    monkeypatch.setattr(handlers.registry, "_handlers", {})
    monkeypatch.setattr(schedules, "_declared", {})
    works = {"queue": "orders"} if decorator is consumer else {"every": 60}
    handler = handle if decorator is consumer else consumer("orders")(handle)
    known = [p.name for p in inspect.signature(decorator).parameters.values()]
    chosen = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
    arguments = {**works, **{each: data.draw(hostile, label=each) for each in chosen}}

    attempt(lambda: decorator(**arguments)(handler))


@fuzz
def test_hostile_settings_of_a_queue_raise_our_errors_only(db, data):
    create = Message.objects.create_queue
    known = [p.name for p in parameters(create) if p.name != "name"]
    chosen = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=2, unique=True))
    options = {each: data.draw(hostile, label=each) for each in chosen}
    before = Queue.objects.count()

    found, error = attempt(lambda: create("fuzzed", **options))

    if error is not None:
        assert Queue.objects.count() == before
    else:
        found.delete()


@pytest.mark.parametrize("name", ["send", "read", "archive", "metrics", "create_queue"])
@fuzz
def test_hostile_names_of_queues_raise_our_errors_only(db, name, data):
    operation = getattr(Message.objects, name)
    arguments = {"send": [1], "archive": [1]}.get(name, [])
    queue = data.draw(hostile.filter(lambda v: not (isinstance(v, str) and v.isalnum())))

    attempt(lambda: operation(queue, *arguments))

    assert run_sql("SELECT 1") == [(1,)]
