"""The fetch loop: leases messages for each subscription in turn, up to its buffer's capacity."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from django.db import Error, connections

from django_pgqueue import signals
from django_pgqueue.acks import AckPolicy
from django_pgqueue.errors import QueueNotFound
from django_pgqueue.models import Message
from django_pgqueue.models.bound import bound_to
from django_pgqueue.worker.buffer import FetchPlan
from django_pgqueue.worker.loop import Loop, after_failures
from django_pgqueue.worker.quarantine import Quarantine, is_suspect
from django_pgqueue.worker.subscription import Subscription
from django_pgqueue.worker.waits import NOW, longer

__all__ = ["Fetcher"]

_WAIT_FOR_QUEUE = 1.0


class Fetcher(Loop):
    """Fetches for all subscriptions in turn, in one thread. A busy one delays no other."""

    def __init__(
        self,
        subscriptions: list[Subscription],
        quarantine: Quarantine,
        *,
        allowance: Callable[[], int] | None = None,
        awake: threading.Event | None = None,
    ) -> None:
        """``allowance``: how many more messages the process may fetch. ``awake``: wakes the loop;
        the subscriptions' buffers have it too."""
        super().__init__("fetch", limited=True, awake=awake)
        # Immutable, since other threads iterate over them.
        self._all = tuple(subscriptions)
        self._subscriptions = tuple(s for s in subscriptions if not s.handler.locked)
        self._turns = 0
        self._quarantine = quarantine
        self._allowance = allowance
        #: The databases that send no notifications: their queues are looked at more often.
        self._deaf = {s.queue.alias for s in subscriptions}

    def notified(self, name: str | None) -> None:
        """A queue got messages; None: any of them may have."""
        for subscription in self._all:
            if name is None or subscription.name == name:
                if subscription.handler.locked:
                    subscription.buffer.notice()
                else:
                    subscription.buffer.plan.hurry()

    def heard(self, alias: str, heard: bool) -> None:
        """Record whether notifications of a database arrive."""
        self._deaf = self._deaf - {alias} if heard else self._deaf | {alias}

    def tick(self) -> float:
        # Each tick starts with the next subscription.
        first = self._turns % max(len(self._subscriptions), 1)
        self._turns += 1
        for subscription in self._subscriptions[first:] + self._subscriptions[:first]:
            plan = subscription.buffer.plan
            if plan.at <= time.monotonic() and not self.stopping.is_set():
                try:
                    self._fetch(subscription)
                    plan.failures = 0
                except QueueNotFound as error:
                    self._put_off(plan, error, _WAIT_FOR_QUEUE)
                except Error as error:
                    # Other subscriptions may use another database, which works.
                    connections[subscription.queue.alias].close()
                    plan.failures += 1
                    self._put_off(plan, error, after_failures(plan.failures))
        soonest = min((s.buffer.plan.at for s in self._subscriptions), default=float("inf"))
        return min(max(soonest - time.monotonic(), 0.0), 1.0)

    def _put_off(self, plan: FetchPlan, error: Exception, wait: float) -> None:
        plan.at = time.monotonic() + wait
        signals.database_failed.send_robust(self.name, operation="fetch", error=error, wait=wait)

    def _fetch(self, subscription: Subscription) -> None:
        """Lease as many messages as the buffer has capacity for, and put them there."""
        buffer, handler = subscription.buffer, subscription.handler
        plan, size = buffer.plan, subscription.fetch_batch_size
        subscription.refresh()
        wanted = 1 if plan.suspicious else buffer.room(size)
        allowed = None if self._allowance is None else self._allowance()
        if allowed is not None:
            wanted = min(wanted, allowed)
        if subscription.is_held or wanted == 0:
            plan.at = time.monotonic() + handler.max_fetch_interval
            # Messages notified meanwhile are fetched as soon as there is room.
            plan.more = not subscription.is_held
            if plan.more and allowed != 0 and buffer.room(size):
                # A worker freed capacity before ``more`` was set, so it will not wake this loop.
                plan.at = 0.0
            return
        plan.notified = False
        started = time.monotonic()
        plan.fetching = True
        try:
            messages = subscription.lease(
                wanted,
                process_id=subscription.process_id,
                # A transactional ack would lock the lease of its whole batch until its commit.
                batched=handler.ack_policy is not AckPolicy.TRANSACTIONAL,
            )
            got = len(messages)
            limit = subscription.max_deliveries
            suspect = next((each for each in messages if is_suspect(each, limit)), None)
            heads = [] if suspect else [each for each in messages if each.group_key is not None]
            most = size if allowed is None else allowed - got
            followers = self._follow(subscription, heads, most) if heads else []
            if messages:
                signals.messages_fetched.send_robust(
                    subscription.name,
                    count=got + len(followers),
                    seconds=time.monotonic() - started,
                )
                lost = 0 if suspect else buffer.put(messages, followers)
                subscription.counts.add(fetched=got + len(followers), lost=lost)
            if suspect is not None:
                messages.remove(suspect)
                self._quarantine.isolate(subscription, suspect, messages)
            plan.suspicious = suspect is not None
        finally:
            plan.fetching = False
        self._plan(subscription, wanted, got)

    @staticmethod
    def _follow(subscription: Subscription, heads: list[Message], most: int) -> list[Message]:
        """Lease messages behind the heads of FIFO groups. Groups with a suspect go back."""
        size = subscription.fetch_batch_size
        room = min(most, subscription.buffer.room_for_followers(size))
        if room < 1:
            return []
        followers = subscription.lease(room, behind=heads, process_id=subscription.process_id)
        limit = subscription.max_deliveries
        suspected = {each.group_key for each in followers if is_suspect(each, limit)}
        if suspected:
            back = [each.receipt for each in followers if each.group_key in suspected]
            bound_to(subscription.queue).release(back)
        return [each for each in followers if each.group_key not in suspected]

    def _plan(self, subscription: Subscription, wanted: int, got: int) -> None:
        plan, handler, now = subscription.buffer.plan, subscription.handler, time.monotonic()
        plan.more = got == wanted or plan.suspicious
        if plan.more:
            plan.wait = 0.0
            plan.at = now + handler.min_fetch_interval
            return
        before = 0.0 if got else plan.wait
        plan.wait = longer(before, handler.max_fetch_interval, listening=not self._deaf)
        due = bound_to(subscription.queue).next_due()
        if due <= NOW:
            # Overdue but not read: another transaction has locked the row, perhaps for long.
            due = plan.wait
        plan.at = now + min(plan.wait * random.uniform(0.9, 1), due)
        if plan.notified:
            # Messages came since the fetch: the wait that was just planned does not count.
            plan.at = 0.0
