"""One run of a handler: from a leased message, or a batch, to an outcome for each."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgiref.sync import sync_to_async
from django.db import Error, connections, transaction

from django_pgqueue import signals
from django_pgqueue.acks import Ack, AckPolicy, Nack, Outcome
from django_pgqueue.errors import HandlerTimeout, LeaseLost
from django_pgqueue.models import Message
from django_pgqueue.models.bound import bound_to
from django_pgqueue.sqlstates import DEADLOCK, SERIALIZATION_FAILURE, sqlstate
from django_pgqueue.worker.connections import Limit, limited
from django_pgqueue.worker.context import Context
from django_pgqueue.worker.endings import Lost, Release, announce
from django_pgqueue.worker.outcomes import outcome_of, outcomes_of
from django_pgqueue.worker.running import Result, Running, Stage, canceller, guarded
from django_pgqueue.worker.settler import Settler
from django_pgqueue.worker.subscription import Subscription

__all__ = ["Execution"]

#: How often a transactional handler is run before a conflict with another transaction counts.
_TRIES = 5


class Execution:
    """Runs a subscription's handler. One object serves all its workers."""

    def __init__(self, subscription: Subscription, settler: Settler) -> None:
        self._subscription = subscription
        self._handler = subscription.handler
        self._policy = subscription.handler.ack_policy
        self._settler = settler
        self._call = subscription.handler.wrapped()

    def run(self, messages: list[Message], thread: int | None = None) -> Running | None:
        """Run a plain handler, and pass its outcomes to the settler. Never raises."""
        messages = self._sort_out(messages)
        if self._policy is AckPolicy.ACK_FIRST:
            messages = self._ack_first(messages)
        if not messages:
            return None
        running = self._begin(messages, thread)
        if self._policy is AckPolicy.TRANSACTIONAL:
            result = self._run_and_settle(running)
        else:
            returned, error = guarded(running, self._call)
            result = Result(returned, error)
        self._conclude(running, result)
        return running

    def run_locked(
        self, message: Message, thread: int | None, limit: Limit
    ) -> list[tuple[Message, Outcome]]:
        """Run a handler in the transaction that holds its message, and that ``limit`` is for.

        Returns the outcomes, which are to be written in that transaction too. The work of a
        handler that raised is rolled back; its outcome is not.
        """
        running = self._begin([message], thread)
        running.on_said = None
        returned, error = self._run_in_transaction(running, limit)
        if error is not None:
            # Calls like message.ack() were rolled back with the handler's work.
            running.said.clear()
        self._conclude(running, Result(returned, error, settled=True))
        return outcomes_of(self._subscription, running, error, returned)

    def _run_and_settle(self, running: Running) -> Result:
        """Run the handler and write its acks in one transaction.

        After a serialization failure or a deadlock the transaction is rolled back and tried again
        at once. The attempt does not count.
        """
        result = self._try_to_settle(running)
        for _try in range(1, _TRIES):
            if running.overdue or not _is_conflict(result.error):
                break
            running.said.clear()
            running.stage = Stage.BEGUN
            result = self._try_to_settle(running)
        return result

    def _try_to_settle(self, running: Running) -> Result:
        outcomes: list[tuple[Message, Outcome]] = []
        lost: list[Any] = []

        def settle(returned: Any) -> None:
            outcomes.extend(outcomes_of(self._subscription, running, None, returned))
            settled = bound_to(self._subscription.queue).settle(
                {m.receipt: o for m, o in outcomes},
                process_id=self._subscription.process_id,
            )
            if settled.lost:
                lost.extend(settled.lost)
                raise LeaseLost(settled.lost[0])

        with limited() as limit:
            returned, error = self._run_in_transaction(running, limit, settle)
        if error is None:
            for message, outcome in outcomes:
                self._settler.keep_order(self._subscription, message, outcome)
            announce(self._subscription, outcomes)
        ran = running.stage is not Stage.BEGUN
        return Result(returned, error, ran=ran, settled=error is None, lost=lost)

    def _run_in_transaction(
        self, running: Running, limit: Limit, then: Callable[[Any], None] = lambda returned: None
    ) -> tuple[Any, BaseException | None]:
        """Run a handler, and ``then`` what follows, in a transaction or in a savepoint.

        Returns what the handler returned, or the error that all was rolled back for. The handler's
        time ends with its code: after an interrupt of the commit, or of the savepoint's release, it
        would be unknown whether its work was kept.
        """
        connection = connections[self._subscription.queue.alias]
        try:
            with transaction.atomic(using=connection.alias):
                blocks, savepoints = len(connection.atomic_blocks), len(connection.savepoint_ids)
                with limit.suspended():
                    returned, error = guarded(running, self._call)
                # An interrupt may have hit the end of a block of the handler's own.
                del connection.atomic_blocks[blocks:], connection.savepoint_ids[savepoints:]
                if error is not None:
                    raise error
                then(returned)
        except BaseException as raised:
            return None, raised
        return returned, None

    async def arun(self, messages: list[Message]) -> Running | None:
        """Run an async handler in its own task, and pass its outcomes to the settler."""
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
            running.stage = Stage.RUNNING
            returned = await self._call(*running.arguments)
        except BaseException as raised:
            error = HandlerTimeout() if running.overdue else raised
        running.stage = Stage.ENDED
        self._conclude(running, Result(returned, error))
        return running

    def _sort_out(self, messages: list[Message]) -> list[Message]:
        """Leave out messages whose body does not fit, and those whose lease has ended.

        The latter happens to a process that was stopped for longer than the visibility timeout.
        """
        now = time.monotonic()
        expired = [message for message in messages if message.lease_until <= now]
        if expired:
            announce(self._subscription, [(message, Lost()) for message in expired])
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
        """Ack before the handler runs; returns the messages that it may run on."""
        receipts = [message.receipt for message in messages]
        try:
            with limited():
                settled = bound_to(self._subscription.queue).complete(receipts)
        except Error as error:
            # The acks may have been written: running the handler now could be a second run.
            connections.close_all()
            signals.database_failed.send_robust(
                self._subscription.name, operation="ack", error=error, wait=self._subscription.vt
            )
            announce(self._subscription, [(message, Lost()) for message in messages])
            return []
        gone, acked = set(settled.lost), set(settled)
        announce(self._subscription, [(m, Ack()) for m in messages if m.receipt not in gone])
        for message in messages:
            if message.receipt in gone:
                self._settler.put(self._subscription, message, Lost())
        return [message for message in messages if message.id in acked]

    def _begin(self, messages: list[Message], thread: int | None) -> Running:
        """Count the run and announce its start; from now on it can settle its own messages."""
        self._handler.name(messages)
        running = Running(messages, thread)
        given = messages if self._handler.batch else messages[0]
        running.arguments = given, Context(self._subscription, running)
        self._subscription.counts.started += len(messages)
        self._subscription.running[id(running)] = running
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

    def _conclude(self, running: Running, result: Result) -> None:
        if not running.conclude(result):
            return
        seconds = self._subscription.end(running)
        # Skipped without receivers: sending a signal can cost more than the handler.
        for message in running.messages if signals.message_finished.receivers else ():
            signals.message_finished.send_robust(
                self._subscription.name, message=message, seconds=seconds, error=result.error
            )
        if not result.ran:
            self._give_back(running, result)
        elif result.lost:
            self._after_lost_lease(running, result)
        elif not result.settled:
            if self._policy is AckPolicy.TRANSACTIONAL:
                # Calls like message.ack() were rolled back with the handler's work.
                running.said.clear()
            try:
                outcomes = outcomes_of(self._subscription, running, result.error, result.returned)
            except Exception as bad_return:
                outcomes = outcomes_of(self._subscription, running, bad_return, None)
            for message, outcome in outcomes:
                self._settler.put(self._subscription, message, outcome)

    def _give_back(self, running: Running, result: Result) -> None:
        """Release messages whose handler got no connection: no delivery or attempt counts."""
        signals.database_failed.send_robust(
            self._subscription.name, operation="begin", error=result.error, wait=0.0
        )
        for message in running.messages:
            self._settler.put(self._subscription, message, Release())

    def _settle_what_was_said(self, running: Running, message: Message, outcome: Outcome) -> None:
        decided = outcome_of(self._subscription, running, message, None, outcome)
        if decided is not None and self._policy is not AckPolicy.ACK_FIRST:
            self._settler.put(self._subscription, message, decided)

    def _after_lost_lease(self, running: Running, result: Result) -> None:
        """Retry the other messages of a transactional run that lost one. The attempt counts."""
        gone = set(result.lost)
        again = Nack(0.0, "another message of the batch was cancelled, or its lease was lost")
        for message in running.messages:
            outcome = Lost() if message.receipt in gone else again
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
        """Settle a run that was abandoned; its handler's later outcome comes too late."""
        self._subscription.end(running)
        if self._policy is AckPolicy.TRANSACTIONAL:
            # These outcomes belong to a transaction that never commits.
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


def _is_conflict(error: BaseException | None) -> bool:
    """Whether the server rolled a transaction back for the sake of another one."""
    return error is not None and sqlstate(error) in (DEADLOCK, SERIALIZATION_FAILURE)
