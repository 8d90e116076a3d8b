"""The helpers for users' tests."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connections, transaction
from django.test import TestCase, TransactionTestCase
from django.utils import translation

from django_pgqueue import consumer, queue
from django_pgqueue.acks import Discard, Nack, Reject, Retry
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.handlers import Handler
from django_pgqueue.models import ArchivedMessage, Message, Queue
from django_pgqueue.retries import Constant, NoRetry
from django_pgqueue.testing import drain, draining, eager, factories, make_queues, make_tables
from tests.app.models import Order
from tests.tasks.framework import needs_tasks


def place(message: Message) -> None:
    Order.objects.create(number=message.body["order"])


class InATestCase(TestCase):
    """A TestCase: one transaction, rolled back."""

    @classmethod
    def setUpTestData(cls) -> None:
        Message.objects.create_queue("orders")

    def test_messages_are_handled_and_archived(self):
        queue("orders").send_batch([{"order": 1}, {"order": 2}])

        handled = drain("orders", place)

        assert [message.body["order"] for message in handled] == [1, 2]
        assert Order.objects.count() == 2
        assert ArchivedMessage.objects.filter(state="COMPLETED").count() == 2

    def test_each_test_starts_with_an_empty_queue(self):
        assert drain("orders", place) == []
        assert not Order.objects.exists()

    def test_errors_are_retried_with_policies(self):
        def fail(message: Message) -> None:
            raise Reject("no good")

        queue("orders").send({"order": 1})

        assert len(drain("orders", fail, policies=True)) == 1
        assert ArchivedMessage.objects.get().state == "FAILED"


class InATransactionTestCase(TransactionTestCase):
    """A TransactionTestCase: commits, and empties the tables after each test."""

    def test_retries_are_run_with_policies(self):
        def fail_once(message: Message) -> None:
            if not message.attempts:
                raise OSError("the bank is closed")

        queue("orders").send({"order": 1})

        assert len(drain("orders", fail_once, policies=True)) == 2
        assert queue("orders").metrics().archived == 1

    def test_an_error_of_a_hook_reaches_the_test_and_the_message_is_done(self):
        for number, mode in enumerate(({"locked": True}, {"ack_policy": "TRANSACTIONAL"}), 1):

            def hook() -> None:
                raise OSError("no mail server")

            def place_and_mail(message: Message) -> None:
                Order.objects.create(number="kept")
                transaction.on_commit(hook)

            handler = Handler("orders", place_and_mail, **mode)
            for policies in (False, True):
                queue("orders").send(1)
                with (
                    patch.object(draining, "_handler", lambda *given, handler=handler: handler),
                    nullcontext() if policies else pytest.raises(OSError, match="no mail"),
                ):
                    drain("orders", policies=policies)

            assert Order.objects.count() == 2 * number
            assert queue("orders").metrics().archived == 2 * number

    def setUp(self) -> None:
        Message.objects.create_queue("orders")

    def test_messages_are_handled_and_archived(self):
        queue("orders").send({"order": 1})

        assert len(drain("orders", place)) == 1
        assert queue("orders").metrics().archived == 1

    def test_each_test_starts_with_an_empty_queue(self):
        assert drain("orders", place) == []
        assert queue("orders").metrics().archived == 0


def test_what_a_handler_sends_is_handled_too(orders):
    def count_down(message: Message) -> None:
        if message.body:
            orders.send(message.body - 1)

    orders.send(3)

    assert [message.body for message in drain("orders", count_down)] == [3, 2, 1, 0]


@pytest.mark.parametrize("policies", [False, True])
def test_delayed_messages_stay(orders, policies):
    orders.send(1, delay=60)

    assert drain("orders", place, policies=policies) == []
    assert orders.metrics().delayed == 1


def test_an_error_reaches_the_test_and_the_message_stays_leased(orders):
    orders.send({"no order": 1})

    with pytest.raises(KeyError):
        drain("orders", place)

    assert orders.metrics().in_flight == 1


@pytest.mark.parametrize("mode", [{"locked": True}, {"ack_policy": "TRANSACTIONAL"}], ids=str)
def test_work_that_a_handler_rolls_back_itself_is_an_error_as_in_a_consumer(
    orders, own_handlers, mode
):
    @consumer("orders", retry=NoRetry(), **mode)
    def roll_back(message: Message) -> None:
        Order.objects.create(number="lost")
        transaction.set_rollback(True)

    orders.send(1)
    with pytest.raises(transaction.TransactionManagementError, match="marked for rollback"):
        drain("orders")

    orders.send(2)
    drain("orders", policies=True)

    assert not Order.objects.exists()
    assert ArchivedMessage.objects.get().state == "FAILED"


def test_the_context_of_a_handler_reaches_neither_the_test_nor_the_next_handler(orders):
    found: list[str | None] = []

    def speak(message: Message) -> None:
        found.append(translation.get_language())
        translation.activate("de")

    orders.send_batch([1, 2])

    drain("orders", speak)

    assert found == [translation.get_language()] * 2


@pytest.mark.parametrize("how", ["raises", "returns", "says"])
def test_rejected_messages_fail_and_discarded_ones_are_gone(orders, how):
    def judge(message: Message) -> Any:
        outcome = {"bad": Reject("no good"), "spam": Discard()}[message.body]
        if how == "says" and message.body == "bad":
            message.reject("no good")
            return None
        if how == "raises":
            raise outcome
        return outcome

    bad, _ = orders.send("bad"), orders.send("spam")

    drain("orders", judge)

    done = ArchivedMessage.objects.get()
    assert (done.state, done.error) == ("FAILED", "no good")
    assert Message.objects.get().pk == bad


def test_a_planned_retry_waits(orders):
    def later(message: Message) -> None:
        raise Retry(delay=60)

    orders.send(1)

    assert len(drain("orders", later)) == 1
    assert orders.metrics().delayed == 1


@pytest.mark.parametrize("again", ["reject", "raise", "return"])
def test_the_first_outcome_counts_as_in_a_consumer(orders, again):
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


def test_a_body_becomes_the_type_that_the_handler_names(orders):
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


def test_a_batch_handler_gets_whole_batches(orders, own_handlers):
    @consumer("orders", batch=True, batch_size=2)
    def judge(messages: list[Message]) -> list[Any]:
        sizes.append(len(messages))
        return [Nack(60) if message.body == "later" else None for message in messages]

    sizes: list[int] = []
    orders.send_batch(["now", "later", "now"])

    drain("orders")

    assert sizes == [2, 1]
    assert (orders.metrics().archived, orders.metrics().delayed) == (2, 1)


def test_a_batch_handler_does_not_get_bodies_that_do_not_fit(orders, own_handlers):
    @dataclass
    class Line:
        sku: str

    def pack(lines: Any) -> None:
        seen.append(lines)

    pack.__annotations__["lines"] = list[Line]
    consumer("orders", batch=True)(pack)
    seen: list[Any] = []
    orders.send_batch([{"sku": "a"}, {"colour": "red"}])

    drain("orders")

    assert seen == [[Line("a")]]
    assert sorted(done.state for done in ArchivedMessage.objects.all()) == ["COMPLETED", "FAILED"]


def test_a_handler_gets_a_context(orders):
    def charge(message: Message, context: Any) -> None:
        seen.append((context.queue, context.attempt, context.deliveries, context.remaining))
        context.logger.info("charging")

    seen: list[Any] = []
    orders.send(1)

    drain("orders", charge)

    assert seen == [("orders", 1, 1, float("inf"))]


def test_middleware_surrounds_the_handler(orders, own_handlers):
    def noting(call: Any) -> Any:
        def run(given: Any, context: Any) -> Any:
            seen.append(context.queue)
            return call(given, context)

        return run

    @consumer("orders", middleware=[noting])
    def charge(message: Message) -> None:
        seen.append(message.body)

    seen: list[Any] = []
    orders.send(7)

    drain("orders")

    assert seen == ["orders", 7]


def test_a_transactional_handler_is_rolled_back_with_its_error(orders, own_handlers):
    @consumer("orders", ack_policy="TRANSACTIONAL", retry=NoRetry())
    def charge(message: Message) -> None:
        place(message)
        raise RuntimeError("after the order was saved")

    orders.send({"order": 1})

    drain("orders", policies=True)

    assert not Order.objects.exists()
    assert ArchivedMessage.objects.get().state == "FAILED"


# Policies


def test_retries_are_run_without_a_wait_until_the_handler_succeeds(orders, own_handlers):
    @consumer("orders", retry=Constant(seconds=3600, max_attempts=5))
    def charge(message: Message) -> None:
        attempts.append(message.attempts)
        if len(attempts) < 3:
            raise OSError("the bank is closed")

    attempts: list[int] = []
    orders.send({"order": 1})

    handled = drain("orders", policies=True)

    assert attempts == [0, 1, 2]
    assert len(handled) == 3
    assert ArchivedMessage.objects.get().state == "COMPLETED"


@pytest.mark.parametrize(
    ("options", "runs"),
    [
        ({"retry": Constant(seconds=3600, max_attempts=3)}, 3),
        # The time that was moved on counts.
        ({"retry": Constant(seconds=60, max_total_delay=150)}, 3),
        ({"retry": Constant(seconds=60), "max_deliveries": 2}, 2),
    ],
)
def test_the_strategy_or_max_deliveries_end_the_retries_in_the_dead_letter_queue(
    orders, dead_letters, own_handlers, options, runs
):
    @consumer("orders", **options)
    def charge(message: Message) -> None:
        raise OSError("the bank is closed")

    orders.send({"order": 1})

    assert len(drain("orders", policies=True)) == runs
    [dead] = dead_letters.peek()
    assert dead.headers["x-dead-letter"]["source"] == "orders"


def test_retries_come_in_the_order_of_their_times(orders, own_handlers):
    @consumer("orders")
    def charge(message: Message) -> None:
        runs.append((message.body, message.attempts))
        if message.body == "slow" and message.attempts == 0:
            raise Retry(delay=100)
        if message.body == "quick" and message.attempts < 3:
            raise Retry(delay=40)

    runs: list[Any] = []
    orders.send_batch(["slow", "quick"])

    drain("orders", policies=True)

    assert runs == [
        ("slow", 0), ("quick", 0), ("quick", 1), ("quick", 2), ("slow", 1), ("quick", 3),
    ]  # fmt: skip


def test_a_retried_head_is_run_before_its_group_goes_on(orders, own_handlers):
    @consumer("orders", retry=Constant(seconds=60))
    def charge(message: Message) -> None:
        runs.append(message.body)
        if runs == ["first"]:
            raise OSError("the bank is closed")

    runs: list[Any] = []
    orders.send_batch(["first", "second"], group="customer-7")

    drain("orders", policies=True)

    assert runs == ["first", "first", "second"]


def test_a_handler_that_is_always_retried_is_stopped(orders, own_handlers):
    @consumer("orders", retry=Constant(seconds=60))
    def charge(message: Message) -> None:
        raise OSError("the bank is closed")

    orders.send(1)

    with pytest.raises(AssertionError, match="always ask for a retry"):
        drain("orders", policies=True, limit=5)


def test_an_async_handler_is_awaited(orders):
    async def place_async(message: Message) -> None:
        await Order.objects.acreate(number=message.body)

    orders.send("7")

    drain("orders", place_async)

    assert Order.objects.get().number == "7"


def test_a_handler_that_never_ends_is_stopped(orders):
    orders.send(1)

    with pytest.raises(AssertionError, match="not empty after 5 messages"):
        drain("orders", lambda message: orders.send(1), limit=5)


def test_the_consumer_of_the_queue_is_found(db):
    Message.objects.create_queue("github")
    Message.objects.create_queue("unknown")

    assert drain("github") == []
    with pytest.raises(InvalidArgument, match="unknown"):
        drain("unknown")


@pytest.mark.parametrize("given", [5, None, queue("orders"), Queue(name="orders")], ids=repr)
def test_a_queue_is_given_by_its_name(given):
    for function in (None, place):
        with pytest.raises(InvalidArgument, match=r"pass the queue's name"):
            drain(given, function)


@pytest.mark.parametrize("policies", [False, True])
def test_a_paused_queue_or_group_keeps_its_messages_as_with_a_consumer(
    orders, own_handlers, policies
):
    @consumer("orders", retry=Constant(seconds=60))
    def charge(message: Message) -> None:
        handled.append(message.body)

    handled: list[Any] = []
    orders.send(1)
    orders.group("customer-7").pause()
    orders.send(3, group="customer-7")
    Queue.objects.filter(name="orders").update(paused=True)

    assert drain("orders", policies=policies) == []
    with eager(policies=policies):
        orders.send(2)
    assert handled == []

    Queue.objects.filter(name="orders").update(paused=False)
    drain("orders", policies=policies)
    assert handled == [1, 2]

    orders.group("customer-7").resume()
    drain("orders", policies=policies)
    assert handled == [1, 2, 3]


# Eager mode


def test_in_eager_mode_a_message_is_handled_as_soon_as_it_is_sent(orders, own_handlers, pgqueue):
    queue("mails").create()
    queue("unheard").create()
    handled: list[Any] = []

    @consumer("mails")
    def mail(message: Message) -> None:
        handled.append(("mail", message.body))

    @consumer("orders")
    def charge(message: Message) -> None:
        queue("mails").send(message.body)
        handled.append(("charge", message.body))

    pgqueue(COPY_THRESHOLD=2)
    with eager():
        orders.send(1)
        assert handled == [("charge", 1), ("mail", 1)]
        orders.send_batch([2, 3])
        assert len(handled) == 6
        orders.send("later", delay=60)
        queue("unheard").send(1)
    orders.send("after")

    assert len(handled) == 6
    assert orders.metrics().length == 2
    assert queue("unheard").metrics().length == 1


def test_in_eager_mode_an_error_reaches_the_sender(orders, own_handlers):
    @consumer("orders", retry=NoRetry())
    def charge(message: Message) -> None:
        raise OSError("the bank is closed")

    with eager(), pytest.raises(OSError, match="the bank is closed"):
        orders.send(1)
    with eager(policies=True):
        orders.send(2)

    assert [row.body for row in Message.objects.filter(pk__in=failed())] == [2]


def failed() -> list[int]:
    return list(ArchivedMessage.objects.filter(state="FAILED").values_list("pk", flat=True))


@needs_tasks
def test_in_eager_mode_tasks_run_when_they_are_enqueued(db, own_handlers, settings):
    from django_pgqueue.tasks import consuming
    from tests.tasks.sample import add

    settings.TASKS = {"default": {"BACKEND": "django_pgqueue.tasks.PgQueueBackend"}}
    queue("default").create()
    consuming.register()

    with eager():
        result = add.enqueue(1, two=2)
    result.refresh()

    assert result.return_value == 3


# Factories


def test_factories_make_queues_messages_and_schedules(db):
    message = factories.MessageFactory(queue__name="orders", body={"order": 7})
    done = factories.MessageFactory(queue=message.queue, archived=True)
    nightly = factories.ScheduleFactory(queue=message.queue, cron="0 4 * * *")
    hourly = factories.ScheduleFactory(queue__name="orders")

    assert [each.body for each in queue("orders").peek(qty=10)] == [{"order": 7}]
    assert ArchivedMessage.objects.get().pk == done.pk
    assert (nightly.interval, hourly.cron) == (None, "")
    assert hourly.queue == message.queue
    assert len(factories.MessageFactory.sent(3, queue=message.queue)) == 3
    assert queue("orders").metrics().length == 4


def test_without_factory_boy_the_factories_say_what_to_install(monkeypatch):
    for name in ("factory", "factory.declarations"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "django_pgqueue.testing.factories")

    with pytest.raises(ImportError, match="pip install factory-boy"):
        importlib.import_module("django_pgqueue.testing.factories")


# Databases created without migrations


@pytest.fixture
def plain_tables(transactional_db: None, django_db_blocker: Any) -> Iterator[None]:
    """The second database, as created by Django with --no-migrations."""
    connection = connections["other"]
    models = [m for m in apps.get_app_config("django_pgqueue").get_models() if m._meta.managed]
    call_command("migrate", "django_pgqueue", "zero", database="other", verbosity=0)
    with connection.schema_editor() as editor:
        for model in models:
            editor.create_model(model)
    yield
    make_tables("other")
    Queue.objects.using("other").all().delete()


class DisableMigrations:
    """pytest-django's way to disable all migrations."""

    def __contains__(self, app_label: str) -> bool:
        return True

    def __getitem__(self, app_label: str) -> None:
        return None


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_tables_are_made_where_django_made_plain_ones(plain_tables, settings):
    settings.MIGRATION_MODULES = DisableMigrations()

    make_tables("other")

    Message.objects.using("other").create_queue("orders")
    assert queue("orders", using="other").send(1)
    assert len(queue("orders", using="other").read()) == 1


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_queues_of_migrations_are_made_with_the_tables(plain_tables, settings):
    settings.MIGRATION_MODULES = DisableMigrations()

    make_tables("other")

    assert Queue.objects.using("other").filter(name="github").exists()


@pytest.mark.django_db(databases=["default", "other"])
def test_tables_that_migrations_made_stay_with_what_is_in_them():
    Message.objects.using("other").create_queue("orders")
    queue("orders", using="other").send(1)

    make_tables("other")

    assert len(queue("orders", using="other").read()) == 1


@pytest.mark.django_db
def test_queues_of_migrations_can_be_made_for_a_test_that_lost_them(settings):
    settings.MIGRATION_MODULES = {"inbox": None}

    make_queues()
    make_queues()

    assert queue("github").send(1)
