"""One run of a handler: from a leased message, or a batch, to an outcome for each message."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from django.db import Error, connections, transaction
from psycopg.pq import TransactionStatus

from django_pgqueue import signals
from django_pgqueue.acks import (
    Ack,
    AckPolicy,
    Discard,
    Failure,
    Nack,
    Outcome,
    Reject,
    Waiting,
    decide,
    describe,
)
from django_pgqueue.engine.sqlstates import is_conflict
from django_pgqueue.errors import HandlerTimeout, InvalidArgument, LeaseLost
from django_pgqueue.models import Message
from django_pgqueue.queues.bound import bound_to
from django_pgqueue.worker.announcer import send, send_here
from django_pgqueue.worker.connections import Limit, left_open, limited
from django_pgqueue.worker.context import Context
from django_pgqueue.worker.endings import Ending, Late, Lost, Parked, Release, announce
from django_pgqueue.worker.running import Result, Running, Stage, guarded, refuse_unfinished
from django_pgqueue.worker.settler import Settler
from django_pgqueue.worker.subscription import Subscription

#: Types of return values that set an outcome. A batch handler returns a list of them.
_EXPLICIT = (Ack, Nack, BaseException)
#: Maximum runs of a transactional handler while its transaction conflicts with others.
_TRIES = 5
_LEFT_OPEN = (
    "the handler left a transaction open, which is rolled back: commit it, or use "
    "transaction.atomic()"
)
#: The state of a transaction in which a statement has failed.
_BROKEN = TransactionStatus.INERROR


class Execution:
    """Runs a subscription's handler. All workers of the subscription share one Execution."""

    def __init__(self, subscription: Subscription, settler: Settler) -> None:
        self._subscription = subscription
        self._handler = subscription.handler
        self._policy = subscription.handler.ack_policy
        self._settler = settler
        self._call = subscription.handler.wrapped()

    def run(
        self, messages: list[Message], thread: int | None = None, theirs: Sequence[Any] = ()
    ) -> Running | None:
        """Run a plain handler and settle its outcomes. Returns None without a run. Never raises.

        ``theirs`` are the connections of the thread. A transaction that the handler has left open
        on one of them is an error, because the caller will close the connection.
        """
        messages = self._sort_out(messages)
        if self._policy is AckPolicy.ACK_FIRST:
            messages = self._ack_first(messages)
        if not messages:
            return None
        running = self._start(messages, thread)
        if self._policy is AckPolicy.TRANSACTIONAL:
            result = self._run_and_settle(running)
        else:
            returned, error = guarded(running, self._call)
            if error is None:
                for connection in theirs:
                    if connection.connection is not None and left_open(connection):
                        returned, error = None, transaction.TransactionManagementError(_LEFT_OPEN)
            result = Result(returned, error)
        if running.conclude(result):
            self._conclude(running, result)
            running.forget()
        return running

    def run_locked(
        self, message: Message, thread: int | None, limit: Limit
    ) -> list[tuple[Message, Outcome]]:
        """Run a handler in the transaction that has locked its message.

        Returns the outcomes, for the caller to write in the same transaction. If the handler
        raised, or its work violates a deferred constraint, its work is rolled back to a savepoint.
        ``limit`` is the time limit of the caller's block; it is suspended while the handler runs.
        """
        running = self._start([message], thread)
        result = self._run_in_transaction(running, limit, self._check_constraints)
        result = replace(result, settled=True)
        if running.conclude(result):
            self._conclude(running, result)
        return self._outcomes_of(running, result.error, result.returned)

    def _check_constraints(self, returned: Any) -> None:
        """Check deferred constraints now. At the commit a violation would roll the attempt back."""
        connections[self._subscription.queue.alias].check_constraints()

    def _run_and_settle(self, running: Running) -> Result:
        """Run the handler and write its outcomes in one transaction.

        After a serialization failure or a deadlock the transaction is rolled back, and the handler
        runs again at once. The attempt is not counted.
        """
        result = self._try_to_settle(running)
        for _try in range(1, _TRIES):
            if running.overdue or result.error is None or not is_conflict(result.error):
                break
            running.stage = Stage.CREATED
            result = self._try_to_settle(running)
        return result

    def _try_to_settle(self, running: Running) -> Result:
        outcomes: list[tuple[Message, Outcome]] = []
        lost: list[Any] = []

        def settle(returned: Any) -> None:
            outcomes.extend(self._outcomes_of(running, None, returned))
            settled = bound_to(self._subscription.queue).settle(
                {m.receipt: o for m, o in outcomes},
                process_id=self._subscription.process_id,
            )
            if settled.lost:
                lost.extend(settled.lost)
                raise LeaseLost(settled.lost[0])

        with limited() as limit:
            result = self._run_in_transaction(running, limit, settle)
        if result.error is None:
            for message, outcome in outcomes:
                self._settler.keep_order(self._subscription, message, outcome)
            announce(self._subscription, outcomes)
        ran = running.stage is not Stage.CREATED
        return replace(result, ran=ran, settled=result.error is None, lost=lost)

    def _run_in_transaction(
        self, running: Running, limit: Limit, then: Callable[[Any], None] = lambda returned: None
    ) -> Result:
        """Run a handler in a transaction or savepoint, then call ``then`` with its return value.

        The result has the return value, or the error that caused the rollback. The timeout covers
        the handler alone: after an interrupt during the commit, or during the release of the
        savepoint, it would be unknown whether the handler's work was kept.
        """
        connection: Any = connections[self._subscription.queue.alias]
        try:
            with committing(connection.alias) as commit:
                blocks, savepoints = len(connection.atomic_blocks), len(connection.savepoint_ids)
                before = _open_elsewhere(connection)
                # It may be an earlier handler's.
                connection.rollback_exc = None
                with limit.suspended():
                    returned, error = guarded(running, self._call)
                # An interrupt may have left an atomic block of the handler on these lists.
                del connection.atomic_blocks[blocks:], connection.savepoint_ids[savepoints:]
                if error is not None:
                    raise error
                _refuse_rollback(connection)
                if any(each not in before for each in _open_elsewhere(connection)):
                    # The worker will close these connections.
                    raise transaction.TransactionManagementError(_LEFT_OPEN)
                then(returned)
        except BaseException as raised:
            running.explicit.clear()  # calls like message.ack() were rolled back, too
            return Result(error=raised)
        return Result(returned, hook_error=commit.hook_error)

    async def arun(self, messages: list[Message]) -> Running | None:
        """Run an async handler in the current task, and pass its outcomes to the settler."""
        messages = self._sort_out(messages)
        if self._policy is AckPolicy.ACK_FIRST and messages:
            messages = await sync_to_async(self._ack_first)(messages)
        if not messages:
            return None
        running = self._start(messages, None)
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        running.cancel = partial(loop.call_soon_threadsafe, task.cancel)
        error: BaseException | None = None
        returned: Any = None
        try:
            running.stage = Stage.RUNNING
            returned = await self._call(*running.arguments)
            if returned is not None:
                refuse_unfinished(returned)
        except BaseException as raised:
            returned, error = None, HandlerTimeout() if running.overdue else raised
        running.stage = Stage.ENDED
        result = Result(returned, error)
        if running.conclude(result):
            self._conclude(running, result)
            running.forget()
        return running

    def _sort_out(self, messages: list[Message]) -> list[Message]:
        """Return the messages that the handler may run on. Settle or give up the others.

        Leases can have ended while the process was suspended: these messages are lost. Messages
        past their ``expires`` are released: the next read archives them, by the server's clock. In
        a batch, messages with an invalid body are rejected.
        """
        now = time.monotonic()
        expired = [message for message in messages if message.lease_until <= now]
        if expired:
            announce(self._subscription, [(message, Lost()) for message in expired])
            messages = [message for message in messages if message.lease_until > now]
        if late := [message for message in messages if message.start_until <= now]:
            self._put((message, Release()) for message in late)
            messages = [message for message in messages if message.start_until > now]
        call = self._handler.call
        if self._handler.batch and call.convert is not None:
            misfits = {message.id: call.misfit(message) for message in messages}
            for message in messages:
                if (misfit := misfits[message.id]) is not None:
                    self._settler.put(self._subscription, message, misfit, ran=False)
            messages = [message for message in messages if misfits[message.id] is None]
        return messages

    def _ack_first(self, messages: list[Message]) -> list[Message]:
        """Ack messages before the handler runs. Returns the messages that were acked."""
        receipts = [message.receipt for message in messages]
        try:
            with limited():
                settled = bound_to(self._subscription.queue).complete(receipts)
        except Error as error:
            # It is unknown whether the acks were written. If not, the messages are delivered again,
            # and a run now would be the first of two.
            connections.close_all()
            send(
                signals.database_failed,
                self._subscription.name,
                operation="ack",
                error=error,
                wait=self._subscription.vt,
            )
            announce(self._subscription, [(message, Lost()) for message in messages])
            return []
        gone, acked = set(settled.lost), set(settled)
        announce(self._subscription, [(m, Ack()) for m in messages if m.receipt not in gone])
        self._put((message, Lost()) for message in messages if message.receipt in gone)
        return [message for message in messages if message.id in acked]

    def _start(self, messages: list[Message], thread: int | None) -> Running:
        """Create, count and announce a run, and enable methods like ack() on its messages."""
        self._handler.set_tasks(messages)
        running = Running(messages, thread)
        given = messages if self._handler.batch else messages[0]
        running.arguments = given, Context(self._subscription, running, messages)
        self._subscription.counts.started += len(messages)
        self._subscription.running[id(running)] = running
        if thread is not None and self._handler.has_timeouts:
            running.connections = connections.all()
        for message in messages:
            message.on_outcome = running.set_outcome
            message.on_extend = self._extend
        for message in messages if signals.message_started.receivers else ():
            send_here(signals.message_started, self._subscription.name, message=message)
        if self._policy is not AckPolicy.TRANSACTIONAL and not self._handler.locked:
            running.on_explicit = self._settle_explicit
        return running

    def _conclude(
        self, running: Running, result: Result, tell: Callable[..., None] = send_here
    ) -> None:
        """Pass the outcomes of a run to the settler, and announce its end.

        Receivers may be slow, and the lease loop keeps the leases of outcomes that were passed on:
        so receivers come last. ``tell`` sends message_finished.
        """
        seconds = self._subscription.end(running)
        parked = _parked(running, result.error) if isinstance(result.error, Waiting) else None
        self._pass_on(running, result, parked)
        if result.hook_error is not None:
            self.hook_failed(running.messages, result.hook_error)
        # Without receivers nothing is sent: sending a signal can take longer than the handler.
        for message in running.messages if signals.message_finished.receivers else ():
            tell(
                signals.message_finished,
                self._subscription.name,
                message=message,
                seconds=seconds,
                error=result.error if parked is None else None,
            )

    def _pass_on(self, running: Running, result: Result, parked: Message | None) -> None:
        """Pass the outcomes of a run to the settler, unless they are written."""
        name = self._subscription.name
        if not result.ran:
            # No connection: neither a delivery nor an attempt is counted.
            send(signals.database_failed, name, operation="begin", error=result.error, wait=0.0)
            self._put((message, Release()) for message in running.messages)
        elif parked is not None:
            announce(self._subscription, [(parked, Parked())])
            self._put((m, Release()) for m in running.unsettled if m is not parked)
        elif result.lost:
            # A lost lease rolled the transaction back. The other messages are retried; this run
            # was one of their attempts.
            gone = set(result.lost)
            again = Nack(0.0, "another message of the batch was cancelled, or its lease was lost")
            self._put((m, Lost() if m.receipt in gone else again) for m in running.messages)
        elif not result.settled:
            try:
                outcomes = self._outcomes_of(running, result.error, result.returned)
            except BaseException as bad_return:
                outcomes = self._outcomes_of(running, bad_return, None)
            for message, outcome in outcomes:
                self._settler.put(self._subscription, message, outcome)

    def hook_failed(self, messages: Sequence[Message], error: BaseException) -> None:
        """Announce an error of an on_commit hook. The messages are settled already."""
        for message in messages:
            send(
                signals.error_ignored,
                self._subscription.name,
                message=message,
                error=error,
                why="committed",
            )

    def _outcomes_of(
        self, running: Running, error: BaseException | None, returned: Any
    ) -> list[tuple[Message, Outcome]]:
        """Return (message, outcome) for each message that the handler has not settled itself.

        Raises TypeError when a batch handler returned neither None nor one value for each message.
        """
        handler = self._handler
        answers = _answers(returned, len(running.messages)) if handler.batch else [returned]
        outcomes = []
        for message, answer in zip(running.messages, answers, strict=False):
            explicit = running.explicit.get(message.id)
            given = None if answer is None else _outcome_in(answer)
            if explicit is not None and running.on_explicit is not None:
                self._ignore(running, message, error or given, "settled")
                continue
            outcome = self._outcome_of(running, message, error, explicit or given)
            is_result = explicit is error is given is None
            if handler.keep_result and is_result and isinstance(outcome, Ack):
                try:
                    outcome = Ack(handler.result_of(answer))
                except InvalidArgument as unfit:  # a result that is not JSON
                    given, outcome = unfit, self._outcome_of(running, message, unfit)
            if outcome is None or (isinstance(outcome, Ack) and outcome.failure is not None):
                self._ignore(running, message, error or given, "policy", outcome)
            if outcome is not None:
                outcomes.append((message, outcome))
        return outcomes

    def _ignore(
        self,
        running: Running,
        message: Message,
        error: Outcome | BaseException | None,
        why: str,
        outcome: Outcome | None = None,
    ) -> None:
        """Announce an error that does not change the outcome. Store it unless ``outcome`` does."""
        if not isinstance(error, BaseException) or running.cancelled:
            return
        if outcome is None:
            late = Late(Failure.of(error, message.attempts + 1))
            self._settler.put(self._subscription, message, late)
        send(
            signals.error_ignored,
            self._subscription.name,
            message=message,
            error=error,
            why=why,
        )

    def _outcome_of(
        self,
        running: Running,
        message: Message,
        error: BaseException | None,
        explicit: Outcome | BaseException | None = None,
    ) -> Outcome | None:
        """The outcome of one message; None if it was settled before the handler ran."""
        if isinstance(explicit, BaseException) and not isinstance(explicit, (Reject, Discard)):
            explicit, error = None, explicit
        # Seconds from the first delivery to the start of this lease; leased_for counts to its end.
        # Computing them from datetimes would take a tenth of a process's time.
        before = message.leased_for - self._subscription.vt
        try:
            return decide(
                self._policy,
                self._handler.retry_of(message),
                error=error,
                attempt=message.attempts + 1,
                elapsed=max(0.0, before) + time.monotonic() - running.started,
                explicit=explicit,
            )
        except BaseException as broken:
            # The project's retry strategy raised an error: retry after the visibility timeout.
            failure = Failure.of(broken, message.attempts + 1)
            return Nack(self._subscription.vt, describe(broken), broken, failure)

    def _put(self, endings: Iterable[tuple[Message, Ending]]) -> None:
        for message, ending in endings:
            self._settler.put(self._subscription, message, ending)

    def _settle_explicit(self, running: Running, message: Message, outcome: Outcome) -> None:
        """Settle a message as soon as the handler has set its outcome."""
        if running.abandoned:  # settled by give_up
            return
        decided = self._outcome_of(running, message, None, outcome)
        if decided is not None and self._policy is not AckPolicy.ACK_FIRST:
            self._settler.put(self._subscription, message, decided)

    def _extend(self, message: Message, seconds: float) -> bool:
        """Extend a lease for a handler, outside its transaction. Returns False if it is lost.

        In the transaction the row would stay locked until the commit, and the lease loop would
        wait for it.
        """
        connection = connections[self._subscription.queue.alias]
        if self._handler.locked:
            return True  # no lease: the row is locked
        if not connection.in_atomic_block:
            return not self._subscription.extend([message], seconds)

        def extend() -> bool:
            try:
                return not self._subscription.extend([message], seconds)
            finally:
                connections.close_all()

        with ThreadPoolExecutor(1) as elsewhere:
            return elsewhere.submit(extend).result()

    def give_up(self, running: Running) -> None:
        """Settle an abandoned run as timed out. Its handler can no longer settle the messages."""
        if self._policy is AckPolicy.TRANSACTIONAL:
            running.explicit.clear()  # the handler's transaction never commits
        self._conclude(running, Result(error=HandlerTimeout()), tell=send)


@dataclass
class Commit:
    """How a transaction ended. ``hook_error``: what a hook of on_commit raised, if any."""

    hook_error: BaseException | None = None


@contextmanager
def committing(using: str) -> Iterator[Commit]:
    """Run the block in a transaction or savepoint. An error after the commit is not raised.

    Django runs the hooks of on_commit at the end of the transaction, and raises their errors as if
    the transaction had failed.
    """
    connection, commit, committed = connections[using], Commit(), []
    alone = not connection.in_atomic_block
    try:
        with transaction.atomic(using=using):
            if alone:
                connection.on_commit(lambda: committed.append(True))
            yield commit
    except BaseException as error:
        if not committed:
            raise
        commit.hook_error = error


def _parked(running: Running, error: Waiting) -> Message | None:
    """The message of a run that waits now, which ended the run; None if another one waits."""
    return next((message for message in running.messages if message is error.message), None)


def _refuse_rollback(connection: Any) -> None:
    """Raise TransactionManagementError if the end of the transaction would be a rollback.

    Django then rolls back a savepoint without an error, and the handler would look successful.
    """
    session = connection.connection
    is_broken = session is not None and session.info.transaction_status is _BROKEN
    if connection.needs_rollback or is_broken:
        raise transaction.TransactionManagementError(
            "the handler's transaction was marked for rollback, by a database error that the "
            "handler caught or by set_rollback(True), so its work is undone. Run a statement that "
            "may fail in a transaction.atomic() of its own. To roll back, raise an exception"
        ) from (connection.rollback_exc if connection.needs_rollback else None)


def _open_elsewhere(connection: Any) -> list[Any]:
    """This thread's connections to other databases with an open transaction."""
    return [
        each
        for each in connections.all(initialized_only=True)
        if each is not connection and each.connection is not None and left_open(each)
    ]


def _outcome_in(answer: Any) -> Outcome | BaseException | None:
    """Return the outcome or exception that a handler returned; None for any other value.

    A class means its instance without arguments, as in ``raise Reject``.
    """
    if isinstance(answer, type) and issubclass(answer, _EXPLICIT):
        try:
            answer = answer()
        except Exception as error:  # it needs arguments
            return error
    return answer if isinstance(answer, _EXPLICIT) else None


def _answers(returned: Any, count: int) -> Sequence[Any]:
    """A batch handler's return value for each message."""
    if returned is None:
        return [None] * count
    answers = list(returned)
    if len(answers) != count:
        raise TypeError(
            f"a batch handler must return None, or a list with one outcome for each message: "
            f"it returned a list of length {len(answers)} for a batch of length {count}"
        )
    return answers
