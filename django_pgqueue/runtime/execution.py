"""One run of a handler: from a leased message, or a batch, to an outcome for each."""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from django.db import transaction

from django_pgqueue import signals
from django_pgqueue.acks import Ack, AckPolicy, Discard, Nack, Outcome, Reject, decide
from django_pgqueue.errors import HandlerTimeout, LeaseLost
from django_pgqueue.models import Message
from django_pgqueue.runtime.context import Context
from django_pgqueue.runtime.settler import Settler, announce
from django_pgqueue.runtime.subscription import Running, Subscription

__all__ = ["Execution", "interrupt"]


class Execution:
    """How a subscription's handler is run. One object serves all its workers."""

    def __init__(self, subscription: Subscription, settler: Settler) -> None:
        self._subscription = subscription
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
        running = self._prepare(messages, thread)
        if running is None:
            return None
        error: BaseException | None = None
        returned: Any = None
        try:
            if self._policy is AckPolicy.TRANSACTIONAL:
                self._run_in_transaction(running)
            else:
                returned = self._call(self._given(running), Context(self._subscription, running))
        except BaseException as raised:
            # SystemExit and MemoryError too: a handler ends its message, not its consumer.
            error = raised
        disarm(running)
        self._conclude(running, error, returned)
        return running

    def run_locked(self, message: Message) -> tuple[Message, Outcome] | None:
        """Run a handler in the transaction that holds its message, and settle in it too.

        Returns what to announce once the transaction has committed. The work of a handler that
        raised is rolled back; the outcome it has is not.
        """
        queue = self._subscription.queue
        [running] = filter(None, [self._prepare([message], None)])
        running.on_said = None
        error: BaseException | None = None
        returned: Any = None
        try:
            with transaction.atomic(using=queue.alias):
                returned = self._call(message, Context(self._subscription, running))
        except BaseException as raised:
            error = raised
        running.settled = True
        self._conclude(running, error, returned)
        outcomes = self._outcomes(running, error, returned)
        Message.objects.settle(queue, {m.receipt: outcome for m, outcome in outcomes})
        return outcomes[0] if outcomes else None

    async def arun(self, messages: list[Message]) -> None:
        """Run an async handler in a task of its own, and hand the outcomes on."""
        running = self._prepare(messages, None)
        if running is None:
            return
        running.cancel = _canceller()
        error: BaseException | None = None
        returned: Any = None
        try:
            context = Context(self._subscription, running)
            returned = await self._call(self._given(running), context)
        except BaseException as raised:
            error = HandlerTimeout() if running.timed_out else raised
        running.finished = True
        self._conclude(running, error, returned)

    def _prepare(self, messages: list[Message], thread: int | None) -> Running | None:
        """Sort out what does not fit, ack what is to be acked first, and announce the start."""
        call = self._handler.call
        if self._handler.batch and call.convert is not None:
            misfits = {message.id: call.misfit(message) for message in messages}
            for message in messages:
                if (misfit := misfits[message.id]) is not None:
                    self._settler.put(self._subscription, message, misfit, ran=False)
            messages = [message for message in messages if misfits[message.id] is None]
        if self._policy is AckPolicy.ACK_FIRST and messages:
            settled = Message.objects.complete(
                self._subscription.queue, [message.receipt for message in messages]
            )
            announce(self._subscription, [(m, Ack()) for m in messages], settled.lost)
            messages = [message for message in messages if message.id in set(settled)]
        if not messages:
            return None
        running = self._subscription.begin(messages, thread)
        for message in messages:
            message.on_outcome = running.say
        for message in messages if signals.message_started.receivers else ():
            signals.message_started.send_robust(self._subscription.name, message=message)
        if self._policy is not AckPolicy.TRANSACTIONAL:
            running.on_said = self._settle_what_was_said
        return running

    def _given(self, running: Running) -> Any:
        return running.messages if self._handler.batch else running.messages[0]

    def _run_in_transaction(self, running: Running) -> None:
        """Handler and ack in one transaction. Raises LeaseLost, and everything is rolled back."""
        queue = self._subscription.queue
        with transaction.atomic(using=queue.alias):
            returned = self._call(self._given(running), Context(self._subscription, running))
            outcomes = self._outcomes(running, None, returned)
            settled = Message.objects.settle(queue, {m.receipt: o for m, o in outcomes})
            if settled.lost:
                raise LeaseLost(settled.lost[0])
        running.settled = True
        announce(self._subscription, outcomes, [])

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
        if isinstance(error, LeaseLost) and self._policy is AckPolicy.TRANSACTIONAL:
            announce(
                self._subscription,
                [(m, Ack()) for m in running.messages],
                [m.receipt for m in running.messages],
            )
        elif not running.settled:
            if self._policy is AckPolicy.TRANSACTIONAL:
                # What was said before the rollback was rolled back too.
                running.said.clear()
            try:
                outcomes = self._outcomes(running, error, returned)
            except Exception as bad_return:
                outcomes = self._outcomes(running, bad_return, None)
            for message, outcome in outcomes:
                self._settler.put(self._subscription, message, outcome)

    def _outcomes(
        self, running: Running, error: BaseException | None, returned: Any
    ) -> list[tuple[Message, Outcome]]:
        """What becomes of each message that has not been settled by its own word."""
        answers = _answers(returned, len(running.messages)) if self._handler.batch else [returned]
        outcomes = []
        for message, answer in zip(running.messages, answers, strict=False):
            said = running.said.get(message.id)
            if said is not None and running.on_said is not None:
                continue
            outcome = self.decide(running, message, error, said or _as_outcome(answer))
            if outcome is not None:
                outcomes.append((message, outcome))
        return outcomes

    def decide(
        self,
        running: Running,
        message: Message,
        error: BaseException | None,
        said: Outcome | BaseException | None = None,
    ) -> Outcome | None:
        """The outcome of one message, by policy and strategy."""
        if isinstance(said, BaseException) and not isinstance(said, (Reject, Discard)):
            said, error = None, said
        # By the server's clock alone: vt says when the lease began there.
        first = message.first_read_at or message.vt
        before = (message.vt - first).total_seconds() - self._subscription.vt
        return decide(
            self._policy,
            self._handler.retry,
            error=error,
            attempt=message.attempts + 1,
            elapsed=max(0.0, before) + time.monotonic() - running.started,
            said=said,
        )

    def _settle_what_was_said(self, running: Running, message: Message, outcome: Outcome) -> None:
        decided = self.decide(running, message, None, outcome)
        if decided is not None and self._policy is not AckPolicy.ACK_FIRST:
            self._settler.put(self._subscription, message, decided)

    def give_up(self, running: Running, error: BaseException) -> None:
        """Settle a run that cannot be ended; whatever it still does comes too late."""
        self._subscription.end(running)
        for message in running.messages:
            signals.message_finished.send_robust(
                self._subscription.name,
                message=message,
                seconds=time.monotonic() - running.started,
                error=error,
            )
        for message, outcome in self._outcomes(running, error, None):
            self._settler.put(self._subscription, message, outcome)


def _canceller() -> Callable[[], None]:
    """What cancels the present task from another thread."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def cancel() -> None:
        if task is not None:
            loop.call_soon_threadsafe(task.cancel)

    return cancel


def interrupt(running: Running) -> None:
    """Have HandlerTimeout raised in the thread of a run, at its next step in Python."""
    running.timed_out = True
    if not running.finished:
        _raise_in(running.thread, HandlerTimeout)
    running.interrupted = True


def disarm(running: Running) -> None:
    """From here on no interrupt hits this thread: one that is on its way is taken back.

    The flags are read and written crosswise: either this thread sees that it timed out, or
    :func:`interrupt` sees that it finished.
    """
    while True:
        try:
            running.finished = True
            if running.timed_out:
                while not running.interrupted:
                    time.sleep(0)
                _raise_in(running.thread, None)
            return
        except HandlerTimeout:
            continue


def _raise_in(thread: int | None, error: type[BaseException] | None) -> None:
    if thread is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread), ctypes.py_object(error) if error else None
        )


def _answers(returned: Any, count: int) -> Sequence[Any]:
    """What a batch handler returned, one answer for each message."""
    if returned is None:
        return [None] * count
    answers = list(returned)
    if len(answers) != count:
        raise TypeError(
            f"a batch handler must return None or one outcome for each message: "
            f"it returned {len(answers)} for {count}"
        )
    return answers


def _as_outcome(answer: Any) -> Any:
    """An outcome a handler returned; anything else it returns says nothing."""
    return answer if isinstance(answer, (Ack, Nack, BaseException)) else None
