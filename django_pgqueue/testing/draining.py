"""Test helpers that handle messages without a consumer process."""

from __future__ import annotations

import datetime as dt
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from copy import copy
from dataclasses import replace
from typing import Any

from asgiref.sync import async_to_sync
from django.utils import timezone

from django_pgqueue import signals
from django_pgqueue.acks import Discard, Reject, Retry, Waiting
from django_pgqueue.database.runner import DjangoRunner
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.flows.durable import open_in_thread
from django_pgqueue.handlers import Handler, autodiscover, handler_of, handlers
from django_pgqueue.models import Batch, LiveMessage, Message, Queue
from django_pgqueue.queues.bound import bound_to
from django_pgqueue.testing.rates import FrozenRates
from django_pgqueue.types import State
from django_pgqueue.worker.announcer import send_here
from django_pgqueue.worker.connections import limited
from django_pgqueue.worker.endings import announce
from django_pgqueue.worker.execution import Execution, committing
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
    """Handle the readable messages of a queue, including new ones, until none is left.

    Runs ``function``, or the queue's ``@consumer``, in the thread and transaction of the test. So
    it works in a TestCase and in a TransactionTestCase. Middleware, batches, conversion of bodies
    and the context work as in a consumer; ``timeout`` is not applied. Returns the handled messages;
    a message that ran twice is listed twice. Delayed messages stay in the queue, and so do messages
    beyond its limits and rates, and all messages of a queue that is paused at the call.

    By default an exception of the handler reaches the test. Its message stays leased, as after a
    crash, and planned retries stay in the queue. With ``policies=True`` the ack policy and the
    retry strategy decide, as in a consumer: planned retries run in the order of their times,
    without waiting, and messages that fail for good go to the dead-letter queue or the archive.

    >>> queue("orders").send({"order": 7})
    1
    >>> [message.body for message in drain("orders", charge)]
    [{'order': 7}]

    Raises QueueNotFound, InvalidArgument when the queue has no ``@consumer``, and AssertionError
    after ``limit`` messages, since some handlers would never finish.
    """
    if not isinstance(queue, str):
        raise InvalidArgument(f"drain() got {queue!r}: pass the queue's name, a string")
    handler = _handler(queue, function)
    found = Queue.objects.resolve(queue, using or handler.using)
    # A copy, so that only this function leases in the caller's transaction, whatever the limits.
    leased = copy(found)
    leased.opened = replace(found.opened, runner=_Runner(found.alias))
    rates = FrozenRates(found)
    run = _Run(Subscription(handler, leased, Options()), policies, rates)
    if found.paused:
        return []
    clock = _Clock(found, rates)
    handled: list[Message] = []
    try:
        while messages := (
            run.lease()
            or (policies and clock.advance() and run.lease())
            or (run.counts_batches() and run.lease())
        ):
            assert len(handled) + len(messages) <= limit, (
                f"queue {queue!r} is not empty after {limit} messages: does its handler always "
                f"send another, or always ask for a retry? If not, pass a higher limit to drain()"
            )
            clock.stamp(messages)
            copy_context().run(run.handle, messages)
            handled += messages
    finally:
        rates.thaw()
    return handled


@contextmanager
def eager(*, policies: bool = False, using: str | None = None) -> Iterator[None]:
    """Handle each message as soon as it is sent, in the sender's thread and transaction.

    Applies to tasks, to queues with a ``@consumer``, and to a queue's subscriptions that have one;
    other queues keep their messages. Messages that a handler sends are handled right after it. As
    in :func:`drain`, a handler's exception reaches the sender unless ``policies=True``, and delayed
    messages stay, as do those beyond the queue's limits and rates, and those of a paused queue.
    Messages sent by the ORM or by plain SQL are not noticed: use :func:`drain` for them.

    >>> with eager():
    ...     place_order(7)
    """
    autodiscover()
    alias = Queue.objects.database(using)
    pending: deque[str] = deque()

    def handle(sender: str, **kwargs: Any) -> None:
        pending.append(sender)
        if len(pending) > 1:
            return  # sent by a handler: the loop that runs the handler handles it next
        try:
            while pending:
                for name in _handled(pending[0], alias):
                    drain(name, policies=policies, using=alias)
                pending.popleft()
        finally:
            pending.clear()

    signals.messages_sent.connect(handle)
    try:
        yield
    finally:
        signals.messages_sent.disconnect(handle)


def _handled(sent_to: str, alias: str) -> list[str]:
    """Return the queues with a handler that got a message: this one, and its subscriptions."""
    known = {handler.queue.lower() for handler in handlers()}
    found = [sent_to] if sent_to.lower() in known else []
    if known - {sent_to.lower()}:
        readers = Queue.objects.using(alias).filter(source__name__iexact=sent_to).order_by("pk")
        found += [name for name in readers.values_list("name", flat=True) if name.lower() in known]
    return found


def _handler(queue: str, function: Callable[..., Any] | None) -> Handler:
    if function is None:
        autodiscover()
        return handlers([queue])[0]
    try:
        return handler_of(function)
    except LookupError:
        return Handler(queue, function)


class _Runner(DjangoRunner):
    """Leases messages of queues with limits in any transaction: the test's is rolled back."""

    __slots__ = ()

    may_lease = True


class _Run(Execution):
    """Runs the handler of a subscription in this thread, and settles its messages at once."""

    def __init__(self, subscription: Subscription, policies: bool, rates: FrozenRates) -> None:
        super().__init__(subscription, Settler(0))
        self._policies = policies
        self._rates = rates
        self._raised: BaseException | None = None

    def counts_batches(self) -> bool:
        """Count the batches whose members have ended here. Returns whether there are some."""
        alias = self._subscription.queue.alias
        ids, queues = self._subscription.batches.take().get(alias, (set(), set()))
        ids |= Batch.objects.open_of(queues, using=alias)
        Batch.objects.count_out(ids, using=alias)
        return bool(ids)

    def lease(self) -> list[Message]:
        """Lease the next message, or the next batch of messages."""
        return self._rates.leased(lambda: self._subscription.lease(self._handler.run_size))

    def handle(self, messages: list[Message]) -> None:
        """Run the handler and settle the messages. Without policies, raises the handler's error."""
        before = open_in_thread()
        for message in messages:
            message._open_before = before  # steps are refused in the handler's transactions only
        if self._handler.locked:
            self._handle_locked(messages[0])
        elif self._handler.is_async:
            async_to_sync(self.arun)(messages)
        else:
            self.run(messages)
        self._settler.flush()
        if self._raised is not None:
            raise self._raised

    def _handle_locked(self, message: Message) -> None:
        """Run a handler and settle its message in one transaction, as a LockedWorker does."""
        queue = self._subscription.queue
        with limited() as limit, committing(queue.alias) as commit:
            outcomes = self.run_locked(message, None, limit)
            if self._raised is None:
                bound_to(queue).settle({m.receipt: o for m, o in outcomes})
        if self._raised is None:
            announce(self._subscription, outcomes)
        if commit.hook_error is not None:
            self.hook_failed([message], commit.hook_error)

    def hook_failed(self, messages: Sequence[Message], error: BaseException) -> None:
        super().hook_failed(messages, error)
        if not self._policies:
            self._raised = error

    def _conclude(
        self, running: Running, result: Result, tell: Callable[..., None] = send_here
    ) -> None:
        error = result.error
        decided = Exception if self._policies else (Discard, Reject, Retry)
        if error is None or isinstance(error, (decided, Waiting)):
            super()._conclude(running, result, tell)
        else:
            self._subscription.end(running)
            self._raised = error


class _Clock:
    """A simulated clock, which skips the time until the next planned retry."""

    def __init__(self, queue: Queue, rates: FrozenRates) -> None:
        self._queue = queue
        self._rates = rates
        self._ahead = dt.timedelta(0)
        #: How far the clock was ahead at each message's first run, and at its last run.
        self._first: dict[int, dt.timedelta] = {}
        self._last: dict[int, dt.timedelta] = {}
        self._tried: set[int] = set()

    def stamp(self, messages: list[Message]) -> None:
        """Subtract the time skipped since a message's first run from its first delivery time."""
        self._tried.clear()
        for message in messages:
            first = self._first.setdefault(message.id, self._ahead)
            self._last[message.id] = self._ahead
            if message._first_read_at is not None:
                # Limits such as max_total_delay count the time since the first delivery.
                skipped = (self._ahead - first) // dt.timedelta(microseconds=1)
                message._first_read_at -= skipped

    def advance(self) -> bool:
        """Make the earliest planned retry readable. Returns False if there is none.

        Until a message is leased, each retry is made readable only once: it may have to wait behind
        another message of its FIFO group.
        """
        planned = [
            (vt + self._last.get(pk, dt.timedelta(0)), pk, group)
            for pk, vt, group in LiveMessage.objects.using(self._queue.alias)
            .filter(queue_id=self._queue.pk, state=State.RETRYABLE.value)
            .exclude(pk__in=self._tried)
            .values_list("pk", "vt", "group_key")
        ]
        if not planned:
            return False
        due, pk, group = min(planned, key=lambda retry: retry[:2])
        self._tried.add(pk)
        Message.objects.set_vt(self._queue, [pk], 0)
        self._skip(due - timezone.now() - self._ahead)
        self._skip(self._rates.wait(group))
        return True

    def _skip(self, span: dt.timedelta) -> None:
        if span > dt.timedelta(0):
            self._ahead += span
            self._rates.skip(span)
