"""Helpers for the tests of projects that use the queue.

Most tests need little of it: ``Message.objects.create_queue("orders")`` is one line, and is gone
with the test's transaction; a handler is a plain function of a message.
"""

from __future__ import annotations

import datetime as dt
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from asgiref.sync import async_to_sync
from django.apps import apps
from django.conf import settings as django_settings
from django.core.management import call_command
from django.db import connections, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState
from django.test import override_settings
from django.utils import timezone

from django_pgqueue import signals
from django_pgqueue.acks import Ack, AckPolicy, Discard, Outcome, Reject, Retry
from django_pgqueue.handlers import Handler, autodiscover, handler_of, handlers
from django_pgqueue.models import LiveMessage, Message, Queue
from django_pgqueue.operations import operations_in
from django_pgqueue.types import State
from django_pgqueue.worker.context import Context
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.outcomes import outcome_of, outcomes_of
from django_pgqueue.worker.running import Running
from django_pgqueue.worker.subscription import Subscription

__all__ = ["drain", "eager", "make_queues", "make_tables", "replace_plain_tables"]


def drain(
    queue: str,
    function: Callable[..., Any] | None = None,
    *,
    policies: bool = False,
    limit: int = 1000,
    using: str | None = None,
) -> list[Message]:
    """Handle what is readable in a queue, and what that sends to it, until nothing is left.

    Runs in the thread and the transaction of the test, so that it works in a TestCase and in a
    TransactionTestCase; with ``function``, or else with the queue's ``@consumer``. Middleware,
    batches, conversion of bodies and the context are as in a consumer; ``timeout`` is not applied.
    Returns the messages handled, once for each run of the handler. Messages sent with a delay stay.

    By default an error of the handler reaches the test, its message stays leased, as after a crash,
    and planned retries stay. With ``policies=True`` an error is dealt with as in a consumer: the
    ack policy and the retry strategy decide, planned retries are run in the order of their times
    without waiting for them, and what fails for good goes to the dead-letter queue or the archive.

    After ``limit`` runs it stops with an AssertionError: a handler that always sends another
    message, or is always retried, would never end.

    >>> queue("orders").send({"order": 7})
    1
    >>> [message.body for message in drain("orders", charge)]
    [{'order': 7}]

    Raises QueueNotFound, and InvalidArgument when the queue has no ``@consumer``.
    """
    handler = _handler(queue, function)
    found = Queue.objects.resolve(queue, using or handler.using)
    run = _Run(Subscription(handler, found, Options()), policies)
    clock = _Clock(found)
    handled: list[Message] = []
    while messages := run.lease() or (policies and clock.advance() and run.lease()):
        assert len(handled) + len(messages) <= limit, (
            f"queue {queue!r} is not empty after {limit} messages: does its handler always send "
            f"another, or always ask for a retry? If not, pass a higher limit to drain()"
        )
        clock.stamp(messages)
        run.handle(messages)
        handled += messages
    return handled


@contextmanager
def eager(*, policies: bool = False, using: str | None = None) -> Iterator[None]:
    """Have each message handled as soon as it is sent, in the sender's thread and transaction.

    For queues that have a ``@consumer``, or tasks; the others keep their messages. What a handler
    sends is handled right after it. As in :func:`drain` an error of a handler reaches the sender,
    unless ``policies`` are to decide; messages with a delay stay. Sends by the ORM and plain SQL
    are not seen: :func:`drain` handles those.

    >>> with eager():
    ...     place_order(7)
    """
    autodiscover()
    alias = Queue.objects.database(using)
    pending: deque[str] = deque()
    handling = False

    def handle(sender: str, **kwargs: Any) -> None:
        nonlocal handling
        pending.append(sender)
        if handling:
            return
        handling = True
        try:
            while pending:
                name = pending.popleft()
                if any(handler.queue.lower() == name.lower() for handler in handlers()):
                    drain(name, policies=policies, using=alias)
        finally:
            handling = False
            pending.clear()

    signals.messages_sent.connect(handle)
    try:
        yield
    finally:
        signals.messages_sent.disconnect(handle)


def _handler(queue: str, function: Callable[..., Any] | None) -> Handler:
    if function is None:
        autodiscover()
        return handlers([queue])[0]
    try:
        return handler_of(function)
    except LookupError:
        return Handler(queue, function)


class _Run:
    """Runs the handler of a subscription, in this thread."""

    def __init__(self, subscription: Subscription, policies: bool) -> None:
        handler = subscription.handler
        self._subscription = subscription
        self._handler = handler
        self._policies = policies
        self._in_transaction = handler.locked or handler.ack_policy is AckPolicy.TRANSACTIONAL
        self._call = handler.wrapped()

    def lease(self) -> list[Message]:
        """The next message, or batch of messages."""
        return Message.objects.lease(
            self._subscription.queue,
            vt=self._subscription.vt,
            qty=self._handler.run_size,
            max_deliveries=self._handler.max_deliveries,
        )

    def handle(self, messages: list[Message]) -> None:
        """Run the handler and settle the messages."""
        messages = self._fitting(messages)
        if not messages:
            return
        if self._handler.ack_policy is AckPolicy.ACK_FIRST:
            self._settle([(message, Ack()) for message in messages])
        running = self._subscription.begin(messages)
        said: list[tuple[Message, Outcome]] = []

        def on_said(running: Running, message: Message, outcome: Outcome) -> None:
            decided = outcome_of(self._subscription, running, message, None, outcome)
            if decided is not None:
                said.append((message, decided))

        for message in messages:
            message.on_outcome = running.say
        if not self._in_transaction:
            running.on_said = on_said
        error: Exception | None = None
        returned: Any = None
        try:
            try:
                if self._in_transaction:
                    with transaction.atomic(using=self._subscription.queue.alias):
                        returned = self._run(running)
                else:
                    returned = self._run(running)
            except (Discard, Reject, Retry) as outcome:
                error = outcome
            except Exception as raised:
                if not self._policies:
                    raise
                error = raised
            if error is not None and self._in_transaction:
                # The rollback undid what the handler said, too.
                running.said.clear()
            said += outcomes_of(self._subscription, running, error, returned)
        finally:
            self._subscription.end(running)
            self._settle(said)

    def _run(self, running: Running) -> Any:
        given = running.messages if self._handler.batch else running.messages[0]
        context = Context(self._subscription, running)
        if self._handler.is_async:
            return async_to_sync(self._awaited)(given, context)
        return self._call(given, context)

    async def _awaited(self, given: Any, context: Context) -> Any:
        return await self._call(given, context)

    def _fitting(self, messages: list[Message]) -> list[Message]:
        """The messages whose bodies fit; the others of a batch are rejected."""
        if not self._handler.batch:
            return messages
        misfits = [(message, self._handler.call.misfit(message)) for message in messages]
        self._settle([(message, misfit) for message, misfit in misfits if misfit is not None])
        return [message for message, misfit in misfits if misfit is None]

    def _settle(self, outcomes: list[tuple[Message, Outcome]]) -> None:
        if outcomes:
            Message.objects.settle(
                self._subscription.queue,
                {message.receipt: outcome for message, outcome in outcomes},
            )


class _Clock:
    """Moves time on to the next planned retry, so that a test need not wait for it."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._ahead = dt.timedelta(0)
        #: How far ahead the clock was when a message was first, and when it was last handled.
        self._first: dict[int, dt.timedelta] = {}
        self._last: dict[int, dt.timedelta] = {}
        self._tried: set[int] = set()

    def stamp(self, messages: list[Message]) -> None:
        """Have messages that were just leased see the time that was moved on."""
        self._tried.clear()
        for message in messages:
            first = self._first.setdefault(message.id, self._ahead)
            self._last[message.id] = self._ahead
            if message._first_read_at is not None:
                # A limit in total time, such as max_total_delay, is counted from there.
                skipped = (self._ahead - first) // dt.timedelta(microseconds=1)
                message._first_read_at -= skipped

    def advance(self) -> bool:
        """Make the retry that is planned for the earliest time readable; False without one.

        One that stays behind another message of its FIFO group is not tried a second time.
        """
        planned = [
            (vt + self._last.get(pk, dt.timedelta(0)), pk)
            for pk, vt in LiveMessage.objects.using(self._queue.alias)
            .filter(queue_id=self._queue.pk, state=State.RETRYABLE.value)
            .exclude(pk__in=self._tried)
            .values_list("pk", "vt")
        ]
        if not planned:
            return False
        due, pk = min(planned)
        self._ahead = max(self._ahead, due - timezone.now())
        self._tried.add(pk)
        Message.objects.set_vt(self._queue, [pk], 0)
        return True


def make_tables(using: str | None = None) -> None:
    """Make the queues' tables, and the queues, in a test database made without migrations.

    For ``pytest --no-migrations`` and ``TEST["MIGRATE"] = False``: Django makes plain tables from
    the models then, and the queues' are partitioned. It replaces those and calls
    :func:`make_queues`. Tables that migrations made are left as they are, with what is in them.
    The pytest plugin calls it; with Django's own runner, a runner's ``setup_databases`` does.
    """
    alias = Queue.objects.database(using)
    if _kind_of_table(alias) == "p":
        return
    models = [m for m in apps.get_app_config("django_pgqueue").get_models() if m._meta.managed]
    tables = ", ".join(connections[alias].ops.quote_name(m._meta.db_table) for m in models)
    with connections[alias].cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {tables} CASCADE")
    with override_settings(MIGRATION_MODULES=_migration_modules()):
        call_command("migrate", "django_pgqueue", database=alias, verbosity=0)
    make_queues(alias)


def make_queues(using: str | None = None) -> None:
    """Make the queues that the project's migrations make with ``CreateQueue`` and its siblings.

    For test databases made without migrations, where :func:`make_tables` calls it, and for a
    TransactionTestCase, which deletes all rows after each test, those of queues too::

        class Shipping(TransactionTestCase):
            def setUp(self):
                make_queues()

    Queues and bindings that exist stay as they are. A queue that a migration makes in another way,
    as with RunPython, is not found.
    """
    alias = Queue.objects.database(using)
    with override_settings(MIGRATION_MODULES=_migration_modules()):
        operations = list(operations_in(MigrationLoader(None).graph))
    state = ProjectState.from_apps(apps)
    with connections[alias].schema_editor(atomic=False) as editor:
        for (app_label, _), operation in operations:
            operation.database_forwards(app_label, editor, state, state)
    Queue.objects.forget_all()


def replace_plain_tables() -> None:
    """Call :func:`make_tables` for each test database in which Django made plain tables."""
    for connection in connections.all():
        creation: Any = connection.creation
        if (
            connection.vendor == "postgresql"
            # Not the databases that no test uses: those are the real ones still.
            and connection.settings_dict["NAME"] == creation._get_test_db_name()
            and _kind_of_table(connection.alias) == "r"
        ):
            make_tables(connection.alias)


def _kind_of_table(alias: str) -> str | None:
    """``p`` for the partitioned table of messages that migrations make, ``r`` for a plain one."""
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT relkind::text FROM pg_class WHERE oid = to_regclass(%s)",
            [Message._meta.db_table],
        )
        row = cursor.fetchone()
    return None if row is None else str(row[0])


def _migration_modules() -> dict[str, str]:
    """The modules of migrations that exist, for a run in which they are switched off."""
    modules: Any = django_settings.MIGRATION_MODULES
    if not isinstance(modules, dict):
        # pytest-django's stand-in, which knows no module at all.
        return {}
    return {label: module for label, module in modules.items() if module is not None}
