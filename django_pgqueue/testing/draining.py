"""Test helpers that handle messages without a consumer process.

Many tests do not need them: ``Message.objects.create_queue("orders")`` makes a queue until the
test's rollback, and a handler is a plain function that takes a message.
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
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState
from django.test import override_settings
from django.utils import timezone

from django_pgqueue import signals
from django_pgqueue.acks import Discard, Reject, Retry
from django_pgqueue.handlers import Handler, autodiscover, handler_of, handlers
from django_pgqueue.models import LiveMessage, Message, Queue
from django_pgqueue.operations import operations_in
from django_pgqueue.types import State
from django_pgqueue.worker.connections import limited
from django_pgqueue.worker.execution import Execution
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.running import Result, Running
from django_pgqueue.worker.settler import Settler
from django_pgqueue.worker.subscription import Subscription


def drain(
    queue: str,
    function: Callable[..., Any] | None = None,
    *,
    policies: bool = False,
    limit: int = 1000,
    using: str | None = None,
) -> list[Message]:
    """Handle the readable messages of a queue until none is left, new ones included.

    Runs ``function`` or the queue's ``@consumer`` in the thread and transaction of the test, so it
    works in a TestCase and in a TransactionTestCase. Middleware, batches, conversion of bodies and
    the context work as in a consumer; ``timeout`` is not applied. Returns the handled messages, one
    for each run of the handler. Delayed messages stay in the queue.

    By default an exception of the handler reaches the test. Its message stays leased, as after a
    crash, and planned retries stay in the queue. With ``policies=True`` the ack policy and the
    retry strategy decide, as in a consumer: planned retries run in the order of their times,
    without waiting, and messages that fail for good go to the dead-letter queue or the archive.

    After ``limit`` runs it raises AssertionError, since a handler that always sends another message
    or is always retried would never end.

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
    """Handle each message as soon as it is sent, in the sender's thread and transaction.

    Applies to queues with a ``@consumer`` and to tasks; other queues keep their messages. Messages
    that a handler sends are handled right after it. As in :func:`drain`, a handler's exception
    reaches the sender unless ``policies=True``, and delayed messages stay. Messages sent by the ORM
    or plain SQL are not noticed: use :func:`drain` for these.

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


class _Run(Execution):
    """Runs the handler of a subscription in this thread, and settles at once."""

    def __init__(self, subscription: Subscription, policies: bool) -> None:
        super().__init__(subscription, Settler(0))
        self._policies = policies
        self._raised: BaseException | None = None

    def lease(self) -> list[Message]:
        """The next message, or batch of messages."""
        return self._subscription.lease(self._handler.run_size)

    def handle(self, messages: list[Message]) -> None:
        """Run the handler and settle the messages. Raises the handler's error, unless policies are
        to decide."""
        if self._handler.locked:
            with limited() as limit:
                outcomes = self.run_locked(messages[0], None, limit)
            for message, outcome in outcomes if self._raised is None else ():
                self._settler.put(self._subscription, message, outcome)
        elif self._handler.is_async:
            async_to_sync(self.arun)(messages)
        else:
            self.run(messages)
        self._settler.flush()
        if self._raised is not None:
            raise self._raised

    def _conclude(self, running: Running, result: Result) -> None:
        error = result.error
        decided = Exception if self._policies else (Discard, Reject, Retry)
        if error is None or isinstance(error, decided):
            super()._conclude(running, result)
        else:
            self._subscription.end(running)
            self._raised = error


class _Clock:
    """Advances time to the next planned retry, so that a test need not wait."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._ahead = dt.timedelta(0)
        #: By message id: how far the clock had advanced at its first and its last run.
        self._first: dict[int, dt.timedelta] = {}
        self._last: dict[int, dt.timedelta] = {}
        self._tried: set[int] = set()

    def stamp(self, messages: list[Message]) -> None:
        """Add the skipped time to messages that were just leased."""
        self._tried.clear()
        for message in messages:
            first = self._first.setdefault(message.id, self._ahead)
            self._last[message.id] = self._ahead
            if message._first_read_at is not None:
                # Limits of total time, such as max_total_delay, count from the first read.
                skipped = (self._ahead - first) // dt.timedelta(microseconds=1)
                message._first_read_at -= skipped

    def advance(self) -> bool:
        """Make the earliest planned retry readable. Returns False if there is none.

        A retry that waits behind another message of its FIFO group is tried only once.
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
    """Make the queues and their partitioned tables in a test database without migrations.

    With ``pytest --no-migrations`` or ``TEST["MIGRATE"] = False`` Django makes plain tables from
    the models. This function replaces them by partitioned ones, and calls :func:`make_queues`. It
    leaves tables made by migrations unchanged. The pytest plugin calls it; with Django's own test
    runner, call it in ``setup_databases``.
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
    """Make the queues that the project's migrations make with ``CreateQueue`` and the like.

    For test databases without migrations (:func:`make_tables` calls it), and for a
    TransactionTestCase, which deletes all rows after each test, queues included::

        class Shipping(TransactionTestCase):
            def setUp(self):
                make_queues()

    Existing queues and bindings are not changed. Queues that a migration makes in another way,
    such as with RunPython, are not made.
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
            # Skip databases that no test uses: their connections still point to the real ones.
            and connection.settings_dict["NAME"] == creation._get_test_db_name()
            and _kind_of_table(connection.alias) == "r"
        ):
            make_tables(connection.alias)


def _kind_of_table(alias: str) -> str | None:
    """The kind of the message table: ``p`` is partitioned (by migrations), ``r`` is plain."""
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT relkind::text FROM pg_class WHERE oid = to_regclass(%s)",
            [Message._meta.db_table],
        )
        row = cursor.fetchone()
    return None if row is None else str(row[0])


def _migration_modules() -> dict[str, str]:
    """MIGRATION_MODULES without the entries that switch migrations off."""
    modules: Any = django_settings.MIGRATION_MODULES
    if not isinstance(modules, dict):
        # With --no-migrations pytest-django puts an object here that switches off migrations.
        return {}
    return {label: module for label, module in modules.items() if module is not None}
