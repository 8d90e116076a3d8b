"""The settle loop: collects outcomes for some milliseconds, and writes them together."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from django.db import DataError, Error, IntegrityError, OperationalError, connections

from django_pgqueue import signals
from django_pgqueue.acks import Nack
from django_pgqueue.engine.settle.outcomes import note
from django_pgqueue.errors import QueueNotFound
from django_pgqueue.models import Message
from django_pgqueue.queues.bound import bound_to
from django_pgqueue.types import Receipt, Settled
from django_pgqueue.worker.announcer import send
from django_pgqueue.worker.connections import is_open
from django_pgqueue.worker.endings import Ending, Late, Lost, Release, announce, why_gone
from django_pgqueue.worker.loop import Failures, Loop
from django_pgqueue.worker.subscription import Settlement, Subscription

#: The most outcomes in one statement.
_MOST = 1000


class Settler(Loop):
    """Takes outcomes from any thread and writes them. After a failed write, it tries again.

    A consumer has one for each database, so that a silent database delays no other one's outcomes.
    """

    operation = "settle"

    def __init__(self, flush_interval: float, alias: str = "") -> None:
        super().__init__(f"settle-{alias}", limited=True)
        self._interval = flush_interval
        #: The subscriptions that had outcomes.
        self._subscriptions: dict[Subscription, None] = {}
        #: The subscriptions whose last write failed.
        self._failed: dict[Subscription, Failures] = {}
        self._one_at_a_time = threading.Lock()
        #: Whether to write at once: workers may be waiting for a message behind a pending one.
        self._at_once = False

    def put(
        self, subscription: Subscription, message: Message, outcome: Ending, *, ran: bool = True
    ) -> None:
        """Queue an outcome for the next write. ``ran``: whether a handler ran, as an attempt."""
        if message.group_key is not None:
            self.keep_order(subscription, message, outcome)
            self._at_once = self._at_once or not subscription.buffer.messages
        subscription.unwritten.append(Settlement(message, outcome, ran))
        if subscription not in self._subscriptions:
            self._subscriptions[subscription] = None
        if not self._awake.is_set():
            self._awake.set()

    def keep_order(self, subscription: Subscription, message: Message, outcome: Ending) -> None:
        """If a message will be delivered again, release its followers: they may not overtake it."""
        if isinstance(outcome, (Nack, Release)):
            for follower in subscription.buffer.groups.take_followers(message):
                self.put(subscription, follower, Release(), ran=False)

    def tick(self) -> float:
        count = sum(len(each.unwritten) for each in tuple(self._subscriptions))
        if 0 < count < _MOST and not self._at_once:
            self.stopping.wait(self._interval)
        self._at_once = False
        try:
            self.flush(again=False)
        except Exception as error:
            # flush() has announced it.
            if isinstance(error, Error):
                connections.close_all()
        # put() wakes the loop, too.
        due = min((each.due for each in self._failed.values()), default=float("inf"))
        return min(max(due - time.monotonic(), 0.0), 1.0)

    def flush(self, *, again: bool = True, timeout: float = -1.0) -> None:
        """Write everything that is unwritten now. What cannot be written stays unwritten.

        Arguments:
            again: whether to write at once what failed just now.
            timeout: the longest wait for another thread that writes, in seconds.

        Raises the first error, after the other queues' outcomes were written; OperationalError
        after the timeout.
        """
        if not self._one_at_a_time.acquire(timeout=timeout):
            raise OperationalError("another write of outcomes has not ended")
        errors: list[Exception] = []
        try:
            skipped: set[Subscription] = set()
            if not again:
                skipped = {s for s, each in self._failed.items() if each.due > time.monotonic()}
            while found := [
                s for s in tuple(self._subscriptions) if s.unwritten and s not in skipped
            ]:
                for subscription in found:
                    try:
                        self._write_some(subscription)
                        if failures := self._failed.pop(subscription, None):
                            failures.end()
                    except Exception as error:
                        errors.append(error)
                        # Without a connection each of the other queues would wait as long.
                        alone = is_open(subscription.queue.alias)
                        for each in [subscription] if alone else found:
                            skipped.add(each)
                            new = Failures(self.name, self.operation, queue=each.name)
                            self._failed.setdefault(each, new).add(error)
                        if not alone:
                            break
        finally:
            self._one_at_a_time.release()
        if errors:
            raise errors[0]

    def _write_some(self, subscription: Subscription) -> None:
        """Write up to 1,000 outcomes. Until they are written the lease loop keeps their leases."""
        some = list(islice(subscription.unwritten, _MOST))
        # One statement for each kind: after an error, written kinds are not repeated. Releases come
        # first: once a retry is written, another process may lease the message, and the releases of
        # its followers would be lost.
        together: dict[tuple[bool, type[Ending]], list[Settlement]] = {}
        for ran in (False, True):
            together[ran, Release] = []
        for each in some:
            together.setdefault((each.ran, type(each.outcome)), []).append(each)
        subscription.writing = len(some)
        try:
            for (ran, _), settlements in together.items():
                if settlements:
                    self._write(subscription, settlements, ran)
                settlements.clear()
        finally:
            subscription.writing = 0
            for _ in some:
                subscription.unwritten.popleft()
            left = [each for settlements in together.values() for each in settlements]
            subscription.unwritten.extendleft(reversed(left))

    def _write(self, subscription: Subscription, settlements: list[Settlement], ran: bool) -> None:
        """Write settlements of one kind, and announce them."""
        outcomes = [(each.message, each.outcome) for each in settlements]
        if isinstance(settlements[0].outcome, Late):
            self._note(subscription, outcomes)
            return
        try:
            settled = self._settle(subscription, outcomes, ran)
        except QueueNotFound:
            # The queue was dropped: there is nothing left to settle.
            settled = Settled(lost=[message.receipt for message, _ in outcomes])
        except (DataError, IntegrityError, TypeError, ValueError) as error:
            if len(settlements) == 1:
                # This outcome can never be written. The lease expires, and the message is delivered
                # again, up to max_deliveries times.
                send(
                    signals.database_failed,
                    self.name,
                    operation="settle",
                    error=error,
                    wait=subscription.vt,
                    queue=subscription.name,
                )
                announce(subscription, [(settlements[0].message, Lost())])
                return
            # Write one at a time, so that only the invalid settlements fail.
            while settlements:
                self._write(subscription, settlements[:1], ran)
                del settlements[0]
            return
        if gone := set(settled.lost):
            why = why_gone(subscription, [m for m, _ in outcomes if m.receipt in gone])
            outcomes = [(m, why.get(m.receipt, outcome)) for m, outcome in outcomes]
        announce(subscription, outcomes)

    @staticmethod
    def _note(subscription: Subscription, late: Sequence[tuple[Message, Ending]]) -> None:
        """Store the errors of handlers whose messages are settled. Nothing waits for them."""
        failures = {m.id: ending.failure for m, ending in late if isinstance(ending, Late)}
        with suppress(QueueNotFound, DataError, IntegrityError):
            opened = subscription.queue.opened
            with opened.transaction():
                note(opened, failures, subscription.process_id)

    @staticmethod
    def _settle(
        subscription: Subscription, outcomes: Sequence[tuple[Message, Ending]], ran: bool
    ) -> Settled:
        queue, kind = bound_to(subscription.queue), outcomes[0][1]
        if isinstance(kind, (Lost, Release)):
            receipts = [message.receipt for message, _ in outcomes]
            if isinstance(kind, Lost):
                return Settled(lost=receipts)
            # A lease that was lost meanwhile needs no release, and is not reported as lost.
            return Settled(queue.release(receipts))
        given: dict[Receipt, Any] = {message.receipt: outcome for message, outcome in outcomes}
        return queue.settle(given, ran=ran, process_id=subscription.process_id)
