"""The @consumer decorator and its registry."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import inspect
import re
import typing
from typing import Any

import pytest

from django_pgqueue import consumer, handlers
from django_pgqueue.acks import AckPolicy
from django_pgqueue.errors import InvalidArgument, InvalidQueueName
from django_pgqueue.handlers import Handler
from django_pgqueue.retries import NoRetry

pytestmark = pytest.mark.usefixtures("own_handlers")


def handle(message: Any) -> None:
    pass


async def ahandle(message: Any) -> None:
    pass


def test_the_function_stays_a_function():
    assert consumer("orders")(handle) is handle


def test_type_checkers_and_editors_know_the_names_of_the_policies():
    hints = typing.get_type_hints(consumer)["ack_policy"]

    names = [name for part in typing.get_args(hints) for name in typing.get_args(part)]
    assert names == [policy.name for policy in AckPolicy]


def test_a_decorated_function_is_found_by_queue_whatever_its_case():
    consumer("Orders", ack_policy="MANUAL", visibility_timeout=dt.timedelta(minutes=1))(handle)

    [found] = handlers.handlers(["orders"])

    assert (found.function, found.ack_policy, found.visibility_timeout) == (
        handle,
        AckPolicy.MANUAL,
        60.0,
    )
    assert handlers.handler_of(handle) is found


@pytest.fixture
def consumed(own_handlers: None) -> None:
    for name in ("mail-in", "mail-out", "Mail-slow", "orders"):
        consumer(name)(handle)
    consumer("orders", using="other")(handle)


@pytest.mark.parametrize(
    ("names", "without", "found"),
    [
        (["mail-*"], [], ["mail-in", "mail-out", "Mail-slow"]),
        (["MAIL-[io]*"], [], ["mail-in", "mail-out"]),
        (["order?"], [], ["orders", "orders"]),
        (["*"], ["mail-*"], ["orders", "orders"]),
        ([], ["mail-out", "ORDERS"], ["mail-in", "Mail-slow"]),
        (["mail-*", "mail-in"], ["*-slow", "orders"], ["mail-in", "mail-out"]),
    ],
)
@pytest.mark.usefixtures("consumed")
def test_queues_are_chosen_by_name_and_pattern(names, without, found):
    assert [each.queue for each in handlers.handlers(names, without)] == found


@pytest.mark.parametrize(
    ("names", "without", "text"),
    [
        (
            ["post-*"],
            [],
            "matches 'post-*'. Queues with a consumer: mail-in, mail-out, mail-slow, orders",
        ),
        (
            [],
            ["post-*"],
            "matches 'post-*'. Queues with a consumer: mail-in, mail-out, mail-slow, orders",
        ),
        ([], ["mail-inn"], "there is no @consumer('mail-inn')"),
        (["orders"], ["ord*"], "no queue is left without ord*. Queues with a consumer: mail-in, "),
    ],
)
@pytest.mark.usefixtures("consumed")
def test_a_name_or_pattern_without_a_consumer_is_an_error(names, without, text):
    with pytest.raises(InvalidArgument, match=re.escape(text)):
        handlers.handlers(names, without)


def test_a_queue_named_twice_is_consumed_once():
    consumer("orders")(handle)

    assert len(handlers.handlers(["orders", "ORDERS"])) == 1


def test_without_names_every_queue_is_meant():
    consumer("orders")(handle)
    consumer("mails")(ahandle)

    assert [handler.queue for handler in handlers.handlers()] == ["orders", "mails"]


def test_a_queue_without_a_handler_is_named_with_those_that_have_one():
    consumer("orders")(handle)

    with pytest.raises(InvalidArgument, match=r"no @consumer\('mails'\).*: orders"):
        handlers.handlers(["orders", "mails"])


def test_a_function_without_decorator_is_no_handler():
    with pytest.raises(LookupError):
        handlers.handler_of(handle)


def test_a_queue_has_one_consumer():
    consumer("orders")(handle)
    consumer("orders")(handle)  # simulates a module imported twice

    with pytest.raises(
        InvalidArgument, match=r"consumed by .*handle.*Give the second one its own queue"
    ):
        consumer("ORDERS")(ahandle)


def test_two_databases_may_have_a_consumer_each():
    consumer("orders")(handle)
    consumer("orders", using="other")(ahandle)

    assert len(handlers.handlers(["orders"])) == 2


def test_an_async_function_is_known_for_one():
    assert (Handler("orders", handle).is_async, Handler("orders", ahandle).is_async) == (
        False,
        True,
    )


class Object:
    def __call__(self, message: Any) -> None:
        pass


class AsyncObject:
    async def __call__(self, message: Any) -> None:
        pass


def test_an_object_with_an_async_call_is_async_and_is_named_by_its_class():
    plain, asynchronous = Handler("orders", Object()), Handler("orders", AsyncObject())

    assert (plain.is_async, asynchronous.is_async) == (False, True)
    assert asynchronous.label == f"{__name__}.AsyncObject"


def generate(message: Any) -> Any:
    yield message


async def agenerate(message: Any) -> Any:
    yield message


class GeneratingObject:
    def __call__(self, message: Any) -> Any:
        yield message


@pytest.mark.parametrize(
    "function", [generate, agenerate, functools.partial(generate), GeneratingObject()]
)
def test_a_generator_function_is_refused(function):
    with pytest.raises(InvalidArgument, match="has a yield"):
        consumer("orders")(function)
    assert handlers.handlers() == []


@pytest.mark.parametrize("middleware", [handle, "shop.measure", ["shop.measure"], None, 5])
def test_middleware_is_a_list_of_functions(middleware):
    with pytest.raises(InvalidArgument, match=r"middleware must be a list of functions, not "):
        consumer("orders", middleware=middleware)(handle)
    assert handlers.handlers() == []


def test_a_class_is_refused():
    class Charge:
        def __init__(self, gateway: Any) -> None:
            pass

    with pytest.raises(InvalidArgument, match=r"Charge is a class.*pass an instance"):
        consumer("orders")(Charge)
    assert handlers.handlers() == []


@pytest.mark.parametrize(
    "options",
    [
        {"ack_policy": "SOMETIMES"},
        {"visibility_timeout": 0},
        {"visibility_timeout": "long"},
        {"timeout": -1},
        {"max_deliveries": 0},
        {"max_workers": 0},
        {"max_workers": 1.5},
        {"max_workers": True},
        {"batch_size": 0},
        {"fetch_batch_size": 0},
        {"overfetch_factor": 0.5},
        {"min_fetch_interval": -1},
        {"max_fetch_interval": "often"},
        {"retry": None},
        {"retry": 5},
        {"retry": NoRetry, "batch_size": 0},
        {"locked": True, "batch": True},
        {"locked": True, "ack_policy": "ACK_FIRST"},
    ],
)
def test_options_that_make_no_sense_are_refused_at_once(options):
    with pytest.raises(InvalidArgument):
        consumer("orders", **options)(handle)
    assert handlers.handlers() == []


@pytest.mark.parametrize("options", [{"locked": True}, {"ack_policy": "TRANSACTIONAL"}])
def test_an_async_function_has_no_transaction(options):
    with pytest.raises(InvalidArgument, match=r"no async transactions.*make it a plain function"):
        consumer("orders", **options)(ahandle)


def test_without_parentheses_it_says_how_to_write_it():
    with pytest.raises(InvalidArgument, match=r'write @consumer\("orders"\) above handle'):
        consumer(handle)  # type: ignore[arg-type]


def test_every_field_of_a_handler_is_an_option_with_the_same_default():
    parameters = inspect.signature(consumer).parameters
    options = {
        name: each.default for name, each in parameters.items() if each.kind != each.VAR_KEYWORD
    }
    fields = {
        each.name: each.default for each in dataclasses.fields(Handler) if each.name != "function"
    }
    del fields["call"]

    assert options == {**fields, "queue": inspect.Parameter.empty}


def test_a_queue_name_is_checked():
    with pytest.raises(InvalidQueueName):
        consumer("no such name!")(handle)
