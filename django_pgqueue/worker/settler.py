"""The settle loop: collects outcomes for some milliseconds, and writes them together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.db import DataError, IntegrityError

from django_pgqueue import signals
from django_pgqueue.acks import Nack
from django_pgqueue.engine.settle.outcomes import note
from django_pgqueue.errors import QueueNotFound
from django_pgqueue.models import Message
from django_pgqueue.models.bound import bound_to
from django_pgqueue.types import Receipt, Settled
from django_pgqueue.worker.endings import Ending, Late, Lost, Release, announce, why_gone
from django_pgqueue.worker.loop import Loop
from django_pgqueue.worker.subscription import Subscription

#: The most outcomes in one statement.
_MOST = 1000


@dataclass(eq=False)
class Settlement:
    """The outcome of one message. ``ran``: whether a handler ran, so that an attempt counts."""

    subscription: Subscription
    message: Message
    outcome: Ending
    ran: bool


class Settler(Loop):
    """Takes outcomes from any thread and writes them. After a failed write, it tries again."""

    def __init__(self, flush_interval: float) -> None:
        super().__init__("settle", limited=True)
        self._interval = flush_interval
        self.pending: deque[Settlement] = deque()
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
        self.pending.append(Settlement(subscription, message, outcome, ran))
        if not self._awake.is_set():
            self._awake.set()

    def keep_order(self, subscription: Subscription, message: Message, outcome: Ending) -> None:
        """If a message will be delivered again, release its followers: they may not overtake it."""
        if isinstance(outcome, (Nack, Release)):
            for follower in subscription.buffer.groups.take_followers(message):
                self.pending.append(Settlement(subscription, follower, Release(), ran=False))

    def tick(self) -> float:
        if self.pending and len(self.pending) < _MOST and not self._at_once:
            self.stopping.wait(self._interval)
        self._at_once = False
        self.flush()
        # put() wakes the loop.
        return 1.0

    def flush(self) -> None:
        """Write everything that is pending now. Outcomes for a database that fails stay pending.

        Raises the first error, after the other databases' outcomes were written.
        """
        failed: dict[str, Exception] = {}
        unwritten: list[Settlement] = []
        with self._one_at_a_time:
            while self.pending:
                # One statement for each kind: after an error, written kinds are not repeated.
                together: dict[tuple[Subscription, bool, type[Ending]], list[Settlement]] = {}
                for _ in range(min(len(self.pending), _MOST)):
                    each = self.pending.popleft()
                    kind = each.subscription, each.ran, type(each.outcome)
                    together.setdefault(kind, []).append(each)
                for (subscription, ran, _), settlements in together.items():
                    alias = subscription.queue.alias
                    if alias not in failed:
                        try:
                            self._write(subscription, settlements, ran)
                            continue
                        except Exception as error:
                            failed[alias] = error
                    unwritten += settlements
            self.pending.extendleft(reversed(unwritten))
        for raised in failed.values():
            raise raised

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
                signals.database_failed.send_robust(
                    self.name, operation="settle", error=error, wait=subscription.vt
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
