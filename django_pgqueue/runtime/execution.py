"""One run of a handler: from a leased message, or a batch, to an outcome for each."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any

from asgiref.sync import sync_to_async
from django.db import Error, connections, transaction

from django_pgqueue import signals
from django_pgqueue.acks import Ack, AckPolicy, Nack, Outcome
from django_pgqueue.errors import HandlerTimeout, LeaseLost
from django_pgqueue.models import Message
from django_pgqueue.runtime.context import Context
from django_pgqueue.runtime.outcomes import outcome_of, outcomes_of
from django_pgqueue.runtime.settler import Settler, announce
from django_pgqueue.runtime.subscription import Running, Subscription
from django_pgqueue.runtime.timeouts import canceller, guarded
from django_pgqueue.runtime.watchdog import Watch, Watchdog

__all__ = ["Execution"]


class Execution:
    """How a subscription's handler is run. One object serves all its workers."""

    def __init__(self, subscription: Subscription, settler: Settler, watchdog: Watchdog) -> None:
        self._subscription = subscription
        self._watchdog = watchdog
        self._handler = subscription.handler
        self._policy = subscription.handler.ack_policy
        self._settler = settler
        self._call: Callable[[Any, Context], Any] = reduce(
            lambda inner, middleware: middleware(inner),
            reversed(subscription.handler.middleware),
            subscription.handler.call,
        )

    def run(self, messages: list[Message], thread: int | None = None) -> Running | None:
        """Run a plain handler, and hand the outcomes on. Never raises."""
        messages = self._sort_out(messages)
        if self._policy is AckPolicy.ACK_FIRST:
            messages = self._ack_first(messages)
        if not messages:
            return None
        running = self._begin(messages, thread)
        if self._policy is AckPolicy.TRANSACTIONAL:
            returned, error = self._run_and_settle(running)
        else:
            returned, error = guarded(running, self._run_handler)
        self._conclude(running, error, returned)
        return running

    def run_locked(
        self, message: Message, thread: int, watch: Watch
    ) -> list[tuple[Message, Outcome]]:
        """Run a handler in the transaction that holds its message, and that ``watch`` is over.

        Returns what is to be settled in that transaction too. The work of a handler that raised
        is rolled back; the outcome it has is not.
        """
        running = self._begin([message], thread)
        running.on_said = None
        returned, error = self._run_in_transaction(running, watch)
        if error is not None:
            # What was said before the rollback was rolled back too.
            running.said.clear()
        running.settled = True
        self._conclude(running, error, returned)
        return outcomes_of(self._subscription, running, error, returned)

    def _run_handler(self, running: Running) -> Any:
        return self._call(self._given(running), Context(self._subscription, running))

    def _run_and_settle(self, running: Running) -> tuple[Any, BaseException | None]:
        """Handler and ack in one transaction; if either fails, everything is rolled back."""
        outcomes: list[tuple[Message, Outcome]] = []

        def settle(returned: Any) -> None:
            outcomes.extend(outcomes_of(self._subscription, running, None, returned))
            settled = Message.objects.settle(
                self._subscription.queue,
                {m.receipt: o for m, o in outcomes},
                process_id=self._subscription.process_id(),
            )
            if settled.lost:
                running.lost = settled.lost
                raise LeaseLost(settled.lost[0])

        with self._watchdog.over() as watch:
            returned, error = self._run_in_transaction(running, watch, settle)
        running.settled = error is None
        if running.settled:
            announce(self._subscription, outcomes, [])
        return returned, error

    def _run_in_transaction(
        self, running: Running, watch: Watch, then: Callable[[Any], None] = lambda returned: None
    ) -> tuple[Any, BaseException | None]:
        """Run a handler, and ``then`` what follows, in a transaction, or a savepoint of the one
        there is. Returns what the handler returned, or the error that all was rolled back for.

        The handler's time ends with its code. An interrupt that hit the commit, or the release
        of the savepoint, would leave nobody sure of what became of the work.
        """
        connection = connections[self._subscription.queue.alias]
        try:
            with transaction.atomic(using=connection.alias):
                blocks, savepoints = len(connection.atomic_blocks), len(connection.savepoint_ids)
                with watch.suspended():
                    returned, error = guarded(running, self._run_handler)
                # An interrupt may have hit the end of a block of the handler's own.
                del connection.atomic_blocks[blocks:], connection.savepoint_ids[savepoints:]
                if error is not None:
                    raise error
                then(returned)
        except BaseException as raised:
            return None, raised
        return returned, None

    async def arun(self, messages: list[Message]) -> Running | None:
        """Run an async handler in a task of its own, and hand the outcomes on."""
        messages = self._sort_out(messages)
        if self._policy is AckPolicy.ACK_FIRST and messages:
            messages = await sync_to_async(self._ack_first)(messages)
        if not messages:
            return None
        running = self._begin(messages, None)
        running.cancel = canceller()
        error: BaseException | None = None
        returned: Any = None
        try:
            context = Context(self._subscription, running)
            returned = await self._call(self._given(running), context)
        except BaseException as raised:
            error = HandlerTimeout() if running.timed_out else raised
        running.finished = True
        self._conclude(running, error, returned)
        return running

    def _sort_out(self, messages: list[Message]) -> list[Message]:
        """Those to run: not what does not fit, and not what we hold no more.

        The latter happens to a process that was stopped for longer than the visibility timeout.
        """
        now = time.monotonic()
        expired = [message for message in messages if message.lease_until <= now]
        if expired:
            announce(
                self._subscription,
                [(message, Ack()) for message in expired],
                [message.receipt for message in expired],
            )
            messages = [message for message in messages if message.lease_until > now]
        call = self._handler.call
        if self._handler.batch and call.convert is not None:
            misfits = {message.id: call.misfit(message) for message in messages}
            for message in messages:
                if (misfit := misfits[message.id]) is not None:
                    self._settler.put(self._subscription, message, misfit, ran=False)
            messages = [message for message in messages if misfits[message.id] is None]
        return messages

    def _ack_first(self, messages: list[Message]) -> list[Message]:
        """Ack before the handler runs; returns those that it may run on."""
        receipts = [message.receipt for message in messages]
        try:
            with self._watchdog.over():
                settled = Message.objects.complete(self._subscription.queue, receipts)
        except Error as error:
            # Written or not, nobody knows: to run them could be a second time.
            connections.close_all()
            self._subscription.count(lost=len(messages))
            signals.database_failed.send_robust(
                self._subscription.name, operation="ack", error=error, wait=self._subscription.vt
            )
            return []
        announce(self._subscription, [(m, Ack()) for m in messages], settled.lost)
        acked = set(settled)
        return [message for message in messages if message.id in acked]

    def _begin(self, messages: list[Message], thread: int | None) -> Running:
        """Announce the start, and listen to what the handler says of its messages."""
        running = self._subscription.begin(messages, thread)
        if thread is not None and self._handler.has_timeouts:
            running.connections = connections.all()
        for message in messages:
            message.on_outcome = running.say
            message.on_extend = self._extend
        for message in messages if signals.message_started.receivers else ():
            signals.message_started.send_robust(self._subscription.name, message=message)
        if self._policy is not AckPolicy.TRANSACTIONAL:
            running.on_said = self._settle_what_was_said
        return running

    def _given(self, running: Running) -> Any:
        return running.messages if self._handler.batch else running.messages[0]

    def _conclude(self, running: Running, error: BaseException | None, returned: Any) -> None:
        with running.lock:
            if running.abandoned:
                return
            running.concluded = True
        running.failed = error is not None
        seconds = self._subscription.end(running)
        # Asked first: a signal costs more than the handler of many a message.
        for message in running.messages if signals.message_finished.receivers else ():
            signals.message_finished.send_robust(
                self._subscription.name, message=message, seconds=seconds, error=error
            )
        if running.lost:
            self._after_lost_lease(running)
        elif not running.settled:
            if self._policy is AckPolicy.TRANSACTIONAL:
                # What was said before the rollback was rolled back too.
                running.said.clear()
            try:
                outcomes = outcomes_of(self._subscription, running, error, returned)
            except Exception as bad_return:
                outcomes = outcomes_of(self._subscription, running, bad_return, None)
            for message, outcome in outcomes:
                self._settler.put(self._subscription, message, outcome)

    def _settle_what_was_said(self, running: Running, message: Message, outcome: Outcome) -> None:
        decided = outcome_of(self._subscription, running, message, None, outcome)
        if decided is not None and self._policy is not AckPolicy.ACK_FIRST:
            self._settler.put(self._subscription, message, decided)

    def _after_lost_lease(self, running: Running) -> None:
        """One message of a transactional run was lost: the others go back, and count."""
        gone = set(running.lost)
        late = [message for message in running.messages if message.receipt in gone]
        announce(self._subscription, [(message, Ack()) for message in late], running.lost)
        for message in running.messages:
            if message.receipt not in gone:
                outcome = Nack(0.0, "the lease of another message of the batch was lost")
                self._settler.put(self._subscription, message, outcome)

    def _extend(self, message: Message, seconds: float) -> bool:
        """Prolong a lease outside of whatever transaction the handler is in.

        Inside, the row would stay locked until the commit, and the lease loop would wait for it.
        """
        queue, now = self._subscription.queue, time.monotonic()

        def extend() -> bool:
            try:
                return not Message.objects.set_vt(queue, message.receipt, seconds).lost
            finally:
                if in_transaction:
                    connections.close_all()

        in_transaction = connections[queue.alias].in_atomic_block
        if self._handler.locked:
            # No lease to prolong: the row is locked.
            return True
        if in_transaction:
            with ThreadPoolExecutor(1) as elsewhere:
                held = elsewhere.submit(extend).result()
        else:
            held = extend()
        if held:
            message.lease_until = now + seconds
        return held

    def give_up(self, running: Running, error: BaseException) -> None:
        """Settle a run that cannot be ended; whatever it still does comes too late."""
        self._subscription.end(running)
        if self._policy is AckPolicy.TRANSACTIONAL:
            # Said in a transaction that will never commit.
            running.said.clear()
        for message in running.messages:
            signals.message_finished.send_robust(
                self._subscription.name,
                message=message,
                seconds=time.monotonic() - running.started,
                error=error,
            )
        for message, outcome in outcomes_of(self._subscription, running, error, None):
            self._settler.put(self._subscription, message, outcome)
