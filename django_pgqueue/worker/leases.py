"""The lease loop: extends the leases of messages that run, or whose outcome is not written yet,
releases messages that wait too long in the buffer, and ends overdue handlers."""

from __future__ import annotations

import time
from collections.abc import Callable

from django.db import OperationalError, connections, transaction

from django_pgqueue import signals
from django_pgqueue.acks import AckPolicy
from django_pgqueue.database.locks import milliseconds, set_locally
from django_pgqueue.engine.sqlstates import LOCK_NOT_AVAILABLE, sqlstate
from django_pgqueue.models import Message
from django_pgqueue.types import Receipt
from django_pgqueue.worker.announcer import send
from django_pgqueue.worker.connections import cut
from django_pgqueue.worker.endings import Cancelled, Lost, announce_gone, why_gone
from django_pgqueue.worker.execution import Execution
from django_pgqueue.worker.loop import Loop, for_each
from django_pgqueue.worker.running import Clock, interrupt
from django_pgqueue.worker.subscription import Subscription

#: An overdue handler is abandoned if it still runs after this many seconds.
_GRACE = 2.0
_TICK = 0.2
#: The longest wait for a row that another transaction has locked, in seconds.
_PATIENCE = 0.02


class LeaseKeeper(Loop):
    """The lease loop of one database. Checks each lease several times before it can expire."""

    operation = "leases"

    def __init__(
        self,
        executions: dict[Subscription, Execution],
        replace_worker: Callable[[Subscription, int | None], None],
        alias: str = "",
    ) -> None:
        super().__init__(f"leases-{alias}", limited=True)
        self._executions = executions
        # A queue that fails must not delay the leases of the others.
        self.failures.longest = min((s.vt / 6 for s in executions), default=1.0)
        self._replace_worker = replace_worker
        self._checked = 0.0

    def tick(self) -> float:
        for subscription in self._executions:
            if subscription.handler.has_timeouts:
                self._end_overdue(subscription)
        shortest = min((s.vt for s in self._executions), default=10.0)
        if time.monotonic() - self._checked >= min(shortest / 6, 2.0):
            self._checked = time.monotonic()
            for_each(self._executions, self._check)
        return min(_TICK, shortest / 6)

    def _check(self, subscription: Subscription) -> None:
        """When half a lease is over, extend it if the message runs, or release a buffered one.

        A message whose outcome is not written yet keeps its lease, too.
        """
        half = time.monotonic() + subscription.vt / 2
        # With ACK_FIRST a message is archived before its handler starts: it has no lease.
        if subscription.handler.ack_policy is not AckPolicy.ACK_FIRST:
            ending: dict[Receipt, Message] = {
                message.receipt: message
                for running in list(subscription.running.values())
                if not running.abandoned
                for message in running.unsettled
                if message.lease_until < half
            }
            # The rows of those that are being written are locked: they come last, and together.
            locked: dict[Receipt, Message] = {}
            writing = subscription.writing
            for number, each in enumerate(subscription.unwritten.copy()):
                if each.message.lease_until < half:
                    group = locked if number < writing else ending
                    group[each.message.receipt] = each.message
            for group, until in ((ending, time.monotonic() + subscription.vt / 4), (locked, 0.0)):
                if group:
                    self._extend(subscription, group, until)
        stale = subscription.buffer.take_stale(lambda message: message.lease_until < half)
        subscription.release(stale)

    def _extend(
        self, subscription: Subscription, ending: dict[Receipt, Message], until: float
    ) -> None:
        lost = _extended(subscription, list(ending.values()), until)
        if len(lost) < len(ending):
            count = len(ending) - len(lost)
            send(signals.leases_extended, subscription.name, count=count)
        if not lost:
            return
        gone = [message for receipt, message in ending.items() if receipt in lost]
        found = why_gone(subscription, gone)
        why = {message.receipt: found.get(message.receipt, Lost()) for message in gone}
        for message in gone:
            message.lease_until = float("inf")  # do not extend again
            message.cancelled = isinstance(why[message.receipt], Cancelled)
        # A handler that ended during these queries may have settled its message.
        runs = list(subscription.running.values())
        running = {message.id for run in runs for message in run.unsettled}
        announce_gone(subscription, [(m, why[m.receipt]) for m in gone if m.id in running])
        for run in runs:
            messages = run.messages  # none once the run has ended
            if messages and not run.cancelled and all(each.cancelled for each in messages):
                run.cancelled = True
                if run.cancel is not None:
                    run.cancel()

    def _end_overdue(self, subscription: Subscription) -> None:
        now = time.monotonic()
        for running in list(subscription.running.values()):
            messages = running.messages
            # Without messages the run has just ended.
            timeout = subscription.handler.timeout_of(messages[0]) if messages else None
            overdue = 0 if timeout is None else now - running.started - timeout
            if overdue <= 0:
                continue
            if running.cancel is not None:
                if not running.overdue or overdue > _GRACE:
                    # Cancel again after the grace: the handler may have caught CancelledError.
                    running.clock = Clock.OVERDUE
                    running.cancel()
            elif not running.overdue:
                interrupt(running)
            elif overdue > _GRACE:
                # With locked=True only the transaction that locked the row can settle it.
                if not subscription.handler.locked and running.abandon():
                    self._executions[subscription].give_up(running)
                    self._replace_worker(subscription, running.thread)
                # A query of the handler may never end, and its transaction may hold locks.
                for connection in running.connections:
                    cut(connection)
                running.connections = ()


def _extended(
    subscription: Subscription, messages: list[Message], until: float
) -> set[Receipt | int]:
    """Extend leases without waiting for locked rows. Returns the receipts of lost leases.

    A handler's transaction, or a write that waits for a standby, may lock a message's row for long.
    No reader can take such a message, so its lease can be extended later. Until a time, by
    time.monotonic(), the messages are tried in ever smaller parts.
    """
    alias, now = subscription.queue.alias, time.monotonic()
    try:
        with transaction.atomic(using=alias):
            with connections[alias].cursor() as cursor:
                # Without a flush, like every lease.
                set_locally(cursor, synchronous_commit="off", lock_timeout=milliseconds(_PATIENCE))
            receipts = [message.receipt for message in messages]
            lost = set(Message.objects.set_vt(subscription.queue, receipts, subscription.vt).lost)
    except OperationalError as error:
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
        if len(messages) > 1 and time.monotonic() < until:
            middle = len(messages) // 2
            parts = messages[:middle], messages[middle:]
            return set().union(*(_extended(subscription, part, until) for part in parts))
        for message in messages:
            message.lease_until = now + subscription.vt * 2 / 3  # try again after a sixth
        return set()
    for message in messages:
        if message.receipt not in lost:
            message.lease_until = now + subscription.vt
    return lost
