"""The helpers for users' own tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connections
from django.test import TestCase, TransactionTestCase

from django_pgqueue import consumer, queue
from django_pgqueue import handlers as registry
from django_pgqueue.acks import Discard, Nack, Reject, Retry
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.models import ArchivedMessage, BoundQueue, Message
from django_pgqueue.testing import drain, make_tables
from tests.app.models import Order


def place(message: Message) -> None:
    Order.objects.create(number=message.body["order"])


class InATestCase(TestCase):
    """Where everything happens in one transaction that is rolled back."""

    @classmethod
    def setUpTestData(cls) -> None:
        Message.objects.create_queue("orders")

    def test_messages_are_handled_and_archived(self) -> None:
        queue("orders").send_batch([{"order": 1}, {"order": 2}])

        handled = drain("orders", place)

        assert [message.body["order"] for message in handled] == [1, 2]
        assert Order.objects.count() == 2
        assert ArchivedMessage.objects.filter(state="COMPLETED").count() == 2

    def test_each_test_starts_with_an_empty_queue(self) -> None:
        assert drain("orders", place) == []
        assert not Order.objects.exists()


class InATransactionTestCase(TransactionTestCase):
    """Where everything is committed, and the tables are emptied after each test."""

    def setUp(self) -> None:
        Message.objects.create_queue("orders")

    def test_messages_are_handled_and_archived(self) -> None:
        queue("orders").send({"order": 1})

        assert len(drain("orders", place)) == 1
        assert queue("orders").metrics().archived == 1

    def test_each_test_starts_with_an_empty_queue(self) -> None:
        assert drain("orders", place) == []
        assert queue("orders").metrics().archived == 0


def test_what_a_handler_sends_is_handled_too(orders: BoundQueue) -> None:
    def count_down(message: Message) -> None:
        if message.body:
            orders.send(message.body - 1)

    orders.send(3)

    assert [message.body for message in drain("orders", count_down)] == [3, 2, 1, 0]


def test_delayed_messages_stay(orders: BoundQueue) -> None:
    orders.send(1, delay=60)

    assert drain("orders", place) == []
    assert orders.metrics().delayed == 1


def test_an_error_reaches_the_test_and_the_message_stays_leased(orders: BoundQueue) -> None:
    orders.send({"no order": 1})

    with pytest.raises(KeyError):
        drain("orders", place)

    assert orders.metrics().in_flight == 1


@pytest.mark.parametrize("raised", [True, False])
def test_rejected_messages_fail_and_discarded_ones_are_gone(
    orders: BoundQueue, raised: bool
) -> None:
    def judge(message: Message) -> Any:
        outcome = {"bad": Reject("no good"), "spam": Discard()}[message.body]
        if raised:
            raise outcome
        return outcome

    bad, _ = orders.send("bad"), orders.send("spam")

    drain("orders", judge)

    assert ArchivedMessage.objects.get().error == "no good"
    assert Message.objects.get().pk == bad


def test_a_planned_retry_waits(orders: BoundQueue) -> None:
    def later(message: Message) -> None:
        raise Retry(delay=60)

    orders.send(1)

    assert len(drain("orders", later)) == 1
    assert orders.metrics().delayed == 1


def test_what_a_handler_says_of_its_message_counts(orders: BoundQueue) -> None:
    orders.send(1)

    drain("orders", lambda message: message.reject("not today"))

    assert ArchivedMessage.objects.get().state == "FAILED"


@pytest.mark.parametrize("again", ["reject", "raise", "return"])
def test_the_first_word_counts_as_in_a_consumer(orders: BoundQueue, again: str) -> None:
    def contradict(message: Message) -> Any:
        message.ack()
        if again == "reject":
            message.reject("no")
        if again == "raise":
            raise Reject("no")
        return Nack(0.0)

    orders.send(1)

    drain("orders", contradict, limit=1)

    assert [done.state for done in ArchivedMessage.objects.all()] == ["COMPLETED"]


def test_a_body_becomes_the_type_that_the_handler_names(orders: BoundQueue) -> None:
    @dataclass
    class Line:
        sku: str

    seen = []

    def pack(line: Any) -> None:
        seen.append(line)

    pack.__annotations__["line"] = Line
    orders.send({"sku": "a"})

    drain("orders", pack)

    assert seen == [Line("a")]


def test_a_batch_handler_gets_batches_of_one(
    orders: BoundQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.autodiscover()  # or it would register the others during the test
    monkeypatch.setattr(registry, "_handlers", {})

    @consumer("orders", batch=True)
    def judge(messages: list[Message]) -> list[Any]:
        return [Nack(60) if message.body == "later" else None for message in messages]

    orders.send_batch(["now", "later"])

    drain("orders")

    assert (orders.metrics().archived, orders.metrics().delayed) == (1, 1)


def test_an_async_handler_is_awaited(orders: BoundQueue) -> None:
    async def place_async(message: Message) -> None:
        await Order.objects.acreate(number=message.body)

    orders.send("7")

    drain("orders", place_async)

    assert Order.objects.get().number == "7"


def test_a_handler_that_never_ends_is_stopped(orders: BoundQueue) -> None:
    orders.send(1)

    with pytest.raises(AssertionError, match="not empty after 5 messages"):
        drain("orders", lambda message: orders.send(1), limit=5)


def test_the_consumer_of_the_queue_is_found(db: None) -> None:
    Message.objects.create_queue("github")
    Message.objects.create_queue("unknown")

    assert drain("github") == []
    with pytest.raises(InvalidArgument, match="unknown"):
        drain("unknown")


@pytest.mark.django_db(databases=["default", "other"])
def test_tables_are_made_where_django_made_plain_ones() -> None:
    connection = connections["other"]
    models = [m for m in apps.get_app_config("django_pgqueue").get_models() if m._meta.managed]
    call_command("migrate", "django_pgqueue", "zero", database="other", verbosity=0)
    with connection.schema_editor() as editor:
        for model in models:
            editor.create_model(model)

    make_tables("other")

    Message.objects.using("other").create_queue("orders")
    assert queue("orders", using="other").send(1)
    assert len(queue("orders", using="other").read()) == 1
