"""Every operation has an async twin, named with an "a" in front."""

from __future__ import annotations

import datetime as dt
import inspect
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import models
from django.utils.timezone import now

from django_pgqueue.models import ArchivedMessage, BoundQueue, LiveMessage, Message, Queue, queue
from django_pgqueue.queues.manager import MessageManager
from django_pgqueue.types import Metrics, Receipt
from tests.conftest import run_sql

# Arguments of some operations.
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "send": (({"n": 1},), {"headers": {"h": 1}, "priority": 3, "group": "g"}),
    "send_batch": (([1, 2],), {"delay": 60}),
    "read": ((), {"qty": 2, "vt": 7, "conditional": {"order": 7}}),
    "read_with_poll": ((), {"max_poll_seconds": 0, "qty": 2}),
    "pop": ((), {"qty": 2}),
    "archive": (([1, Receipt(2, 9)],), {}),
    "delete": (([1, Receipt(2, 9)],), {}),
    "set_vt": (([1, Receipt(2, 9)], 60), {}),
    "metrics": ((), {}),
}

#: The methods without an async twin: tools for operators, and what only consumers need.
NO_TWIN = {
    BoundQueue: {
        *(
            "alter",
            "attempts",
            "create",
            "drop",
            "maintain",
            "purge",
            "redrive",
            "repartition",
            "replay",
            "steps",
            "subscribe",
        ),
        *("drained", "group", "next_due", "settle", "why"),
        *("batch", "batches", "message"),
    },
    # queue() has the operations on one queue, and their twins.
    MessageManager: {
        *("send", "send_batch", "read", "read_with_poll", "pop", "archive", "delete", "set_vt"),
        *("create_queue", "drop_queue", "list_queues", "maintain_all", "metrics", "metrics_all"),
        *("bind", "unbind", "list_bindings", "test_routing", "resolve", "purge"),
    },
}


# Engine functions called only by consumers and maintenance.
INTERNAL = ["lease", "follow", "erase", "rescue"]


@pytest.mark.parametrize("name", [*INTERNAL, *(f"a{name}" for name in INTERNAL)])
def test_what_only_consumers_need_is_no_method(name):
    assert not hasattr(BoundQueue, name)
    assert not hasattr(MessageManager, name)


def is_twin(function: Any) -> bool:
    return inspect.iscoroutinefunction(function)


def methods(where: type) -> list[str]:
    inherited = set(dir(models.Manager)) if issubclass(where, models.Manager) else set()
    return [
        name
        for name, member in inspect.getmembers(where, inspect.isfunction)
        if not name.startswith("_") and name not in inherited and not is_twin(member)
    ]


@pytest.mark.parametrize("where", NO_TWIN)
def test_what_an_application_calls_has_a_twin_with_the_same_arguments(where):
    twins = {name: getattr(where, f"a{name}", None) for name in methods(where)}

    # The twin of wait() is aresult(), a method of its own: "await" is a keyword.
    assert {name for name, twin in twins.items() if twin is None} - {"wait"} == NO_TWIN[where]
    for name, twin in twins.items():
        if twin is not None:
            assert is_twin(twin)
            method = getattr(where, name)
            assert twin.__name__ == f"a{method.__name__}"
            assert inspect.signature(twin).parameters == inspect.signature(method).parameters


@pytest.mark.parametrize("name", ["send", "read", "archive"])
def test_a_method_of_a_queue_is_found_in_the_source_with_its_signature_and_a_body(name):
    method = getattr(BoundQueue, name)
    source = inspect.getsource(method)

    assert f"def {name}(" in source
    assert "self." in source
    assert all(f"{each}:" in source for each in list(inspect.signature(method).parameters)[1:])


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, member in inspect.getmembers(BoundQueue, inspect.isfunction)
        if not name.startswith("_") and member.__doc__ and not is_twin(member)
    ],
)
def test_a_method_has_the_docstring_of_the_function_it_calls(name):
    method = getattr(BoundQueue, name)
    first_line = inspect.cleandoc(method.__doc__).split("\n\n")[0]

    assert "".join(first_line.split()) in "".join(inspect.getsource(method).split())


@pytest.mark.parametrize("name", CALLS)
def test_a_twin_gives_the_same_result(db, name):
    Message.objects.create_queue("orders")
    pks = Message.objects.send_batch("orders", [{"order": 7}] * 3, headers={"h": 1})
    args, kwargs = CALLS[name]
    # Functions among the arguments are called with these messages.
    args = tuple(name_them(arg, pks) for arg in args)

    by_sync = outcome(getattr(queue("orders"), name), args, kwargs)
    by_async = outcome(async_to_sync(getattr(queue("orders"), f"a{name}")), args, kwargs)

    assert by_async == by_sync


def name_them(arg: Any, pks: list[int]) -> Any:
    if isinstance(arg, list) and isinstance(arg[-1], Receipt):
        return [pks[0], Receipt(pks[1], 9)]
    return arg


def outcome(operation: Any, args: Any, kwargs: Any) -> Any:
    """An operation's result and its rows; the operation is then rolled back."""
    run_sql("SAVEPOINT before")
    highest = max(Message.objects.values_list("pk", flat=True))
    result = plain(operation(*args, **kwargs), highest)
    state = [
        list(model.objects.order_by("pk").values_list(*columns))
        for model, columns in (
            (LiveMessage, ("queue__name", "state", "read_ct", "priority", "group_key")),
            (ArchivedMessage, ("state", "read_ct")),
        )
    ]
    run_sql("ROLLBACK TO SAVEPOINT before")
    return result, state


def plain(result: Any, highest: int) -> Any:
    """A result without ids and times, which differ from call to call."""
    if isinstance(result, Message):
        return (result.id, result.body, result.headers, result.read_ct, result.priority)
    if isinstance(result, Metrics):
        return (result.queue_name, result.length, result.ready, result.archived)
    if isinstance(result, models.Model):
        return (type(result).__name__, str(result))
    if isinstance(result, list):
        lost = getattr(result, "lost", None)
        return ([plain(each, highest) for each in result], lost)
    if isinstance(result, int) and result > highest:
        return "a new id"
    return result


def test_a_bound_queue_follows_the_stored_settings_however_it_was_bound(committed):
    orders = BoundQueue(Message.objects.create_queue("orders", visibility_timeout=30))
    orders.send(1)
    Queue.objects.update(visibility_timeout=600)
    Queue.objects.forget_all()

    [message] = orders.read()

    assert message.vt - now() > dt.timedelta(minutes=9)
