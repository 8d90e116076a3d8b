"""Helpers for the tests of projects that use the queue.

Queues need no helper: ``Message.objects.create_queue("orders")`` in a test is one line, and is
gone with the test's transaction. Nor do handlers: they are plain functions of a message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import async_to_sync
from django.apps import apps
from django.core.management import call_command
from django.db import connections
from django.test import override_settings

from django_pgqueue.acks import Ack, Discard, Nack, Outcome, Reject, Retry, decide
from django_pgqueue.handlers import Handler, autodiscover, handler_of, handlers
from django_pgqueue.models import Message, Queue

__all__ = ["drain", "make_tables"]


def drain(
    queue: str,
    function: Callable[[Message], Any] | None = None,
    *,
    limit: int = 1000,
    using: str | None = None,
) -> list[Message]:
    """Handle what is readable in a queue, and what that sends to it, until nothing is left.

    Runs in this thread and in the transaction around the test, so that it works in a TestCase;
    with ``function``, or else with the queue's ``@consumer``. Returns the messages handled.
    Delayed messages and planned retries stay where they are.

    An error of the handler reaches the test, and the message stays leased, as after a crash;
    ``Retry``, ``Reject`` and ``Discard`` do what they do in a consumer. After ``limit`` messages
    it stops with an AssertionError: a handler that always sends another would never end.

    >>> queue("orders").send({"order": 7})
    1
    >>> [message.body for message in drain("orders", charge)]
    [{'order': 7}]
    """
    handler = _handler(queue, function)
    using = using or handler.using
    handled: list[Message] = []
    while messages := Message.objects.read(queue, using=using):
        [message] = messages
        assert len(handled) < limit, f"queue {queue!r} is not empty after {limit} messages"
        Message.objects.settle(message.queue, {message.receipt: _handle(handler, message)})
        handled.append(message)
    return handled


def _handler(queue: str, function: Callable[..., Any] | None) -> Handler:
    if function is None:
        autodiscover()
        return handlers([queue])[0]
    try:
        return handler_of(function)
    except LookupError:
        return Handler(queue, function)


def _handle(handler: Handler, message: Message) -> Outcome:
    said: list[Outcome] = []
    message.on_outcome = lambda _, outcome: said.append(outcome)
    call = async_to_sync(_awaited) if handler.is_async else _called
    result = call(handler, [message] if handler.batch else message)
    if handler.batch and isinstance(result, list):
        [result] = result
    if isinstance(result, (Ack, Nack)):
        said.append(result)
    raised = isinstance(result, (Discard, Reject, Retry))
    outcome = decide(
        handler.ack_policy,
        handler.retry_of(message),
        error=result if raised and not said else None,
        attempt=message.attempts + 1,
        elapsed=0.0,
        said=said[0] if said else None,
    )
    if outcome == Ack() and not said and not raised:
        return Ack(handler.result_of(result))
    return outcome or Ack()


def _called(handler: Handler, given: Any) -> Any:
    """What the function returned, or said by an exception that is no error."""
    try:
        return handler.call(given, None)
    except (Discard, Reject, Retry) as outcome:
        return outcome


async def _awaited(handler: Handler, given: Any) -> Any:
    try:
        return await handler.call(given, None)
    except (Discard, Reject, Retry) as outcome:
        return outcome


def make_tables(using: str | None = None) -> None:
    """Make the queues' tables by their migrations, in a test database made without any.

    For ``pytest --no-migrations`` and the like: Django makes plain tables from the models then,
    and the queues' are partitioned. It drops those first, with whatever is in them::

        @pytest.fixture(scope="session")
        def django_db_setup(django_db_setup, django_db_blocker):
            with django_db_blocker.unblock():
                make_tables()
    """
    alias = Queue.objects.database(using)
    models = [m for m in apps.get_app_config("django_pgqueue").get_models() if m._meta.managed]
    tables = ", ".join(connections[alias].ops.quote_name(m._meta.db_table) for m in models)
    with connections[alias].cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {tables} CASCADE")
    with override_settings(MIGRATION_MODULES={}):
        call_command("migrate", "django_pgqueue", database=alias, verbosity=0)
