"""The settle loop: outcomes, gathered for some milliseconds and written together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from django.db import DataError, IntegrityError

from django_pgqueue import signals
from django_pgqueue.acks import Ack, Discard, Nack, Outcome
from django_pgqueue.errors import QueueNotFound
from django_pgqueue.models import Message
from django_pgqueue.runtime.failures import Failures
from django_pgqueue.runtime.loop import Loop
from django_pgqueue.runtime.subscription import Subscription
from django_pgqueue.runtime.watchdog import Watchdog
from django_pgqueue.types import Settled

__all__ = ["Settler", "announce"]

#: At most so many outcomes in one statement.
_BATCH = 1000


@dataclass(eq=False)
class Settlement:
    """What became of one message."""

    subscription: Subscription
    message: Message
    outcome: Outcome
    ran: bool


class Settler(Loop):
    """Takes outcomes from any thread. None is dropped while the process lives: what could not
    be written is tried again."""

    def __init__(self, flush_interval: float, watchdog: Watchdog) -> None:
        super().__init__("settle", watchdog)
        self._interval = flush_interval
        self._pending: deque[Settlement] = deque()
        self._under_way = 0
        self._one_at_a_time = threading.Lock()

    def put(
        self, subscription: Subscription, message: Message, outcome: Outcome, *, ran: bool = True
    ) -> None:
        """Have an outcome written soon."""
        self._pending.append(Settlement(subscription, message, outcome, ran))
        if not self._awake.is_set():
            self.wake()

    @property
    def pending(self) -> int:
        """How many outcomes are not written yet, those under way included."""
        return len(self._pending) + self._under_way

    def tick(self) -> float:
        if self._pending and len(self._pending) < _BATCH:
            self.stopping.wait(self._interval)
        self.flush()
        # Whoever brought an outcome since then has called wake().
        return 1.0

    def flush(self) -> None:
        """Write everything that is pending now. Raises DatabaseError; what could not be written
        still is pending then, and the others are not held up by a database that is down."""
        failures = Failures()
        unwritten: list[Settlement] = []
        with self._one_at_a_time:
            try:
                while self._pending:
                    together = self._gather(len(unwritten))
                    try:
                        for key in list(together):
                            subscription, ran, _kind = key
                            alias = subscription.queue.alias
                            if alias not in failures:
                                with failures.of(alias):
                                    self._write(subscription, together[key], ran)
                                    del together[key]
                    finally:
                        for batch in together.values():
                            unwritten += batch
            finally:
                self._pending.extendleft(reversed(unwritten))
                self._under_way = 0
        failures.end()

    def _gather(
        self, unwritten: int
    ) -> dict[tuple[Subscription, bool, type[Outcome]], list[Settlement]]:
        """The next batch. Kind by kind: when one fails, what the others wrote is not written
        again."""
        together: dict[tuple[Subscription, bool, type[Outcome]], list[Settlement]] = {}
        number = min(len(self._pending), _BATCH)
        self._under_way = unwritten + number
        for _ in range(number):
            settlement = self._pending.popleft()
            key = settlement.subscription, settlement.ran, type(settlement.outcome)
            together.setdefault(key, []).append(settlement)
        return together

    def _write(self, subscription: Subscription, batch: list[Settlement], ran: bool) -> None:
        outcomes = {s.message.receipt: s.outcome for s in batch}
        try:
            settled = Message.objects.settle(
                subscription.queue, outcomes, process_id=subscription.process_id(), ran=ran
            )
        except QueueNotFound:
            # Dropped meanwhile: there is nothing left to settle.
            settled = Settled(lost=outcomes)
        except (DataError, IntegrityError, TypeError, ValueError) as error:
            if len(batch) == 1:
                # PostgreSQL will never take it. The lease runs out, and max_deliveries ends it.
                subscription.count(lost=1)
                signals.database_failed.send_robust(
                    self.name, operation="settle", error=error, wait=subscription.vt
                )
                return
            while batch:
                self._write(subscription, batch[:1], ran)
                del batch[0]
            return
        announce(subscription, [(s.message, s.outcome) for s in batch], settled.lost)


def announce(
    subscription: Subscription, outcomes: list[tuple[Message, Outcome]], lost: Sequence[object]
) -> None:
    """Count and signal what was written."""
    gone = set(lost)
    done, again, discarded, failed, late = [], [], [], [], []
    for message, outcome in outcomes:
        if message.receipt in gone:
            late.append(message)
        elif isinstance(outcome, Ack):
            done.append(message)
        elif isinstance(outcome, Nack):
            again.append((message, outcome))
        elif isinstance(outcome, Discard):
            discarded.append(message)
        else:
            failed.append((message, outcome))
    subscription.count(
        completed=len(done) + len(discarded),
        retried=len(again),
        failed=len(failed),
        lost=len(late),
    )
    name = subscription.name
    if done:
        signals.messages_completed.send_robust(name, messages=done)
    if again:
        signals.messages_retried.send_robust(
            name, messages=[m for m, _ in again], outcomes=[o for _, o in again]
        )
    if failed:
        signals.messages_failed.send_robust(
            name, messages=[m for m, _ in failed], outcomes=[o for _, o in failed]
        )
    if discarded:
        signals.messages_discarded.send_robust(name, messages=discarded)
    if late:
        signals.leases_lost.send_robust(name, messages=late)
