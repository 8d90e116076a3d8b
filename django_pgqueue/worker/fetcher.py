"""The fetch loop: leases messages for each subscription in turn, as many as its buffer may hold."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from django.db import Error, connections

from django_pgqueue import signals
from django_pgqueue.acks import AckPolicy
from django_pgqueue.errors import InvalidArgument, PositionLost, QueueNotFound
from django_pgqueue.models import Message
from django_pgqueue.queues.bound import bound_to
from django_pgqueue.worker.announcer import send
from django_pgqueue.worker.loop import Failures, Loop, for_each
from django_pgqueue.worker.quarantine import is_suspect
from django_pgqueue.worker.settler import Settler
from django_pgqueue.worker.subscription import PAUSE_BEHIND, Subscription

_WAIT_FOR_QUEUE = 1.0
#: The longest wait for running handlers before a suspect starts, in seconds.
_PATIENCE = 5.0
#: The longest time that a suspect runs alone before the next fetch, in seconds.
_PROBATION = 2.0
_PAUSE = 0.001


class Fetcher(Loop):
    """Fetches for all subscriptions in one thread: in each tick, at most once for each."""

    def __init__(
        self,
        subscriptions: list[Subscription],
        settlers: Collection[Settler],
        *,
        allowance: Callable[[], int] | None = None,
        awake: threading.Event | None = None,
    ) -> None:
        """``allowance`` returns how many more messages may be fetched. Buffers set ``awake``."""
        super().__init__("fetch", limited=True, awake=awake)
        # Tuples, because other threads iterate over them.
        self._all = tuple(subscriptions)
        self._subscriptions = tuple(s for s in subscriptions if not s.handler.locked)
        self._failures_of = {s: Failures(self.name, "fetch", queue=s.name) for s in subscriptions}
        self._ticks = 0
        self._settlers = settlers
        self._allowance = allowance

    def notified(self, name: str | None, session: int | None) -> None:
        """Fetch from the queue with this name, which has new messages. None: from every queue.

        ``session``: the process id of the one that notified. None: some may have been missed.
        """
        for subscription in self._all:
            if name is None or name in subscription.heard:
                if subscription.handler.locked:
                    subscription.buffer.notice(session)
                else:
                    subscription.buffer.plan.sleep.hear(session)
                    subscription.buffer.plan.fetch_now(is_notice=True)

    def set_listening(self, alias: str, listening: bool) -> None:
        """Record whether notifications from a database arrive."""
        for subscription in self._all:
            if subscription.queue.alias == alias:
                subscription.buffer.plan.listening = listening

    def tick(self) -> float:
        # Each tick starts with the next subscription.
        first = self._ticks % max(len(self._subscriptions), 1)
        self._ticks += 1
        for subscription in self._subscriptions[first:] + self._subscriptions[:first]:
            plan = subscription.buffer.plan
            if plan.at > time.monotonic() or self.stopping.is_set():
                continue
            unannounced = self.announcer.unannounced[subscription.name] if self.announcer else 0
            if len(subscription.unwritten) + unannounced >= subscription.most_ended:
                plan.at = time.monotonic() + PAUSE_BEHIND
                continue
            failures = self._failures_of[subscription]
            try:
                self._fetch(subscription)
                if failures.count:
                    failures.end()
            except (QueueNotFound, InvalidArgument, PositionLost) as error:
                failures.add(error, _WAIT_FOR_QUEUE)
                plan.at = failures.due
            except Error as error:
                # Keep going: other subscriptions may be on another database that works.
                connections[subscription.queue.alias].close()
                failures.add(error)
                plan.at = failures.due
        soonest = min((s.buffer.plan.at for s in self._subscriptions), default=float("inf"))
        return min(max(soonest - time.monotonic(), 0.0), 1.0)

    def _fetch(self, subscription: Subscription) -> None:
        """Lease as many messages as the buffer may hold, and put them into the buffer."""
        buffer, handler = subscription.buffer, subscription.handler
        plan, size = buffer.plan, subscription.fetch_batch_size
        is_held = subscription.refresh().paused or subscription.quiet
        wanted = 1 if plan.suspicious else buffer.free(size)
        if subscription.is_limited:
            wanted = min(wanted, subscription.idle)
        allowed = None if self._allowance is None else self._allowance()
        if allowed is not None:
            wanted = min(wanted, allowed)
        if is_held or wanted == 0:
            plan.at = time.monotonic() + handler.max_fetch_interval
            # With ``more``, the workers wake this loop earlier, when the buffer has capacity.
            plan.more = not is_held
            may_fetch = subscription.idle if subscription.is_limited else buffer.free(size)
            if plan.more and allowed != 0 and may_fetch:
                # A worker that took messages before ``more`` was set did not wake this loop.
                plan.at = 0.0
            return
        plan.woken = plan.woken or plan.notified
        plan.notified = False
        if plan.asleep and self._rest(subscription, 0):
            return  # nothing is there: a look costs less than a read
        plan.asleep = False
        started = time.monotonic()
        plan.fetching = True
        try:
            # Transactional handlers get no batch lease: each ack would lock the whole batch's
            # lease until its commit.
            transactional = handler.ack_policy is AckPolicy.TRANSACTIONAL
            messages = subscription.lease(wanted, batched=not transactional)
            got = len(messages)
            limit = subscription.max_deliveries
            suspect = next((each for each in messages if is_suspect(each, limit)), None)
            alone = suspect is not None or subscription.is_limited
            heads = [] if alone else [each for each in messages if each.group_key is not None]
            most = size if allowed is None else allowed - got
            followers = self._follow(subscription, heads, most) if heads else []
            if messages:
                count, seconds = got + len(followers), time.monotonic() - started
                lost = 0 if suspect else buffer.put(messages, followers)
                subscription.counts.add(fetched=count, lost=lost)
                send(signals.messages_fetched, subscription.name, count=count, seconds=seconds)
            if suspect is not None:
                messages.remove(suspect)
                self._isolate(subscription, suspect, messages)
            plan.suspicious = suspect is not None
        finally:
            plan.fetching = False
        self._plan(subscription, wanted, got)

    def _isolate(self, subscription: Subscription, suspect: Message, others: list[Message]) -> None:
        """Run a suspect alone. Releases the ``others`` of its fetch and all buffered messages."""
        held = False
        try:
            subscription.release(others)
            for each in self._all:
                each.release(each.buffer.take_all())
            self._wait(_PATIENCE, lambda: not any(each.running for each in self._all))
            self._flush()
            # The wait may have used up the lease.
            held = not subscription.extend([suspect], subscription.vt)
        finally:
            if not held:  # the suspect's lease is lost, or will expire
                subscription.counts.add(fetched=-1)
        if not held:
            return
        if self.stopping.is_set():
            subscription.release([suspect])
            return
        before = subscription.counts.started
        subscription.counts.add(lost=subscription.buffer.put([suspect]))
        self._wait(_PATIENCE, lambda: subscription.counts.started > before)
        self._wait(_PROBATION, lambda: not subscription.running)
        self._flush()

    def _flush(self) -> None:
        for_each(self._settlers, Settler.flush)

    def _wait(self, seconds: float, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while not until() and not self.stopping.is_set() and time.monotonic() < deadline:
            time.sleep(_PAUSE)

    @staticmethod
    def _follow(subscription: Subscription, heads: list[Message], most: int) -> list[Message]:
        """Lease followers of FIFO heads. Releases all of a group if one is a suspect."""
        most = min(most, subscription.buffer.free_for_followers(subscription.fetch_batch_size))
        if most < 1:
            return []
        followers = subscription.lease(most, behind=heads)
        limit = subscription.max_deliveries
        suspected = {each.group_key for each in followers if is_suspect(each, limit)}
        if suspected:
            released = [each.receipt for each in followers if each.group_key in suspected]
            bound_to(subscription.queue).release(released)
        return [each for each in followers if each.group_key not in suspected]

    def _plan(self, subscription: Subscription, wanted: int, got: int) -> None:
        """Plan the next fetch, after one that asked for ``wanted`` messages and got ``got``."""
        plan = subscription.buffer.plan
        plan.more = got == wanted or plan.suspicious
        if plan.more:
            plan.sleep.wait, plan.vain = 0.0, 0
            plan.at = time.monotonic() + subscription.handler.min_fetch_interval
        else:
            self._rest(subscription, got)

    @staticmethod
    def _rest(subscription: Subscription, got: int) -> bool:
        """Fall asleep, and plan the next fetch. Returns whether no message is due now."""
        plan = subscription.buffer.plan
        woken, plan.woken = plan.woken, False
        if got:
            plan.sleep.wait, plan.vain = 0.0, 0
        elif woken:
            plan.vain += 1
        seconds, due = subscription.fall_asleep(plan.sleep)
        plan.at = time.monotonic() + seconds
        # A message came since the read. If others are often faster, look again first.
        plan.asleep = plan.listening and (due > 0 or plan.vain > 1)
        if plan.notified:
            # Messages came meanwhile: fetch again soon.
            plan.fetch_now(is_notice=True)
        return due > 0
