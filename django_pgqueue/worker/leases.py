"""The lease loop: extends what runs, gives back what waits too long, ends what is overdue."""

from __future__ import annotations

import time
from collections.abc import Callable

from django_pgqueue import signals
from django_pgqueue.acks import AckPolicy
from django_pgqueue.errors import HandlerTimeout
from django_pgqueue.models import Message
from django_pgqueue.types import Receipt
from django_pgqueue.worker.connections import cut
from django_pgqueue.worker.endings import Cancelled, Lost, announce_gone, why_gone
from django_pgqueue.worker.execution import Execution
from django_pgqueue.worker.failures import Failures
from django_pgqueue.worker.loop import Loop
from django_pgqueue.worker.running import Clock, Running, interrupt
from django_pgqueue.worker.subscription import Subscription

__all__ = ["LeaseKeeper"]

#: A handler that neither an interrupt nor a cancellation ends is given up after this many seconds.
_GRACE = 2.0
_TICK = 0.2


class LeaseKeeper(Loop):
    """Looks at every lease a few times in its life."""

    def __init__(
        self,
        executions: dict[Subscription, Execution],
        replace_worker: Callable[[Subscription, int | None], None],
    ) -> None:
        super().__init__("leases", limited=True)
        self._executions = executions
        self._replace_worker = replace_worker
        self._checked = 0.0

    def tick(self) -> float:
        for subscription in self._executions:
            if subscription.handler.has_timeouts:
                self._end_overdue(subscription)
        shortest = min((s.vt for s in self._executions), default=10.0)
        if time.monotonic() - self._checked >= min(shortest / 6, 2.0):
            self._checked = time.monotonic()
            failures = Failures()
            for subscription in self._executions:
                with failures.of(subscription):
                    self._extend(subscription)
                    self._let_go(subscription)
            failures.end()
        return min(_TICK, shortest / 6)

    def _extend(self, subscription: Subscription) -> None:
        if subscription.handler.ack_policy is AckPolicy.ACK_FIRST:
            # A message is archived before its handler starts, so there is no lease to extend.
            return
        now = time.monotonic()
        ending: dict[Receipt, Message] = {}
        for running in list(subscription.running.values()):
            if not running.abandoned:
                for message in running.unsettled:
                    if message.lease_until - now < subscription.vt / 2:
                        ending[message.receipt] = message
        if not ending:
            return
        settled = Message.objects.set_vt(subscription.queue, list(ending), subscription.vt)
        extended = set(settled)
        for message in ending.values():
            if message.id in extended:
                message.lease_until = now + subscription.vt
        if extended:
            signals.leases_extended.send_robust(subscription.name, count=len(extended))
        if gone := set(settled.lost):
            self._report_gone(
                subscription, [each for receipt, each in ending.items() if receipt in gone]
            )

    @staticmethod
    def _report_gone(subscription: Subscription, gone: list[Message]) -> None:
        """Announce leases that are gone, and tell handlers whose messages were cancelled."""
        found = why_gone(subscription, gone)
        why = {message.receipt: found.get(message.receipt, Lost()) for message in gone}
        for message in gone:
            # Asking again would be in vain.
            message.lease_until = float("inf")
            message.cancelled = isinstance(why[message.receipt], Cancelled)
        # A handler that has ended meanwhile may have settled its message.
        runs = list(subscription.running.values())
        running = {message.id for run in runs for message in run.unsettled}
        announce_gone(subscription, [(m, why[m.receipt]) for m in gone if m.id in running])
        for run in runs:
            if not run.cancelled and all(message.cancelled for message in run.messages):
                run.cancelled = True
                if run.cancel is not None:
                    run.cancel()

    def _let_go(self, subscription: Subscription) -> None:
        """Give back messages that have waited for half their lease."""
        now = time.monotonic()

        def is_stale(message: Message) -> bool:
            return message.lease_until - now < subscription.vt / 2

        subscription.give_back(subscription.buffer.take_stale(is_stale))

    def _end_overdue(self, subscription: Subscription) -> None:
        now = time.monotonic()
        for running in list(subscription.running.values()):
            timeout = subscription.handler.timeout_of(running.messages[0])
            if timeout is None:
                continue
            overdue = now - running.started - timeout
            if overdue <= 0:
                continue
            if not running.overdue:
                self._interrupt(running)
            elif overdue > _GRACE and running.cancel is not None:
                # It caught the cancellation: once more.
                running.cancel()
            elif overdue > _GRACE:
                if not subscription.handler.locked:
                    # A locked row can only be settled by the transaction that locked it.
                    self._abandon(subscription, running)
                # The handler's query may wait for ever, and hold locks meanwhile.
                for connection in running.connections:
                    cut(connection)
                running.connections = ()

    @staticmethod
    def _interrupt(running: Running) -> None:
        if running.cancel is None:
            interrupt(running)
        else:
            running.clock = Clock.OVERDUE
            running.cancel()

    def _abandon(self, subscription: Subscription, running: Running) -> None:
        if not running.abandon():
            return
        self._executions[subscription].give_up(running, HandlerTimeout())
        self._replace_worker(subscription, running.thread)
