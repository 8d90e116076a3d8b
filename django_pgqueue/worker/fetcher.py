"""The fetch loop: leases messages for each subscription in turn, as many as it has room for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from django.db import Error, connections

from django_pgqueue import signals
from django_pgqueue.acks import AckPolicy
from django_pgqueue.errors import QueueNotFound
from django_pgqueue.models import Message, Queue
from django_pgqueue.worker.loop import Loop, after_failures
from django_pgqueue.worker.quarantine import Quarantine, is_suspect
from django_pgqueue.worker.subscription import Subscription
from django_pgqueue.worker.waits import NOW, longer

__all__ = ["Fetcher"]

_WAIT_FOR_QUEUE = 1.0


class Schedule:
    """When a subscription is fetched for next."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.at = 0.0
        self.wait = 0.0
        #: There was a notification since the last fetch began.
        self.notified = False
        #: The last fetch brought a suspect: more may follow, and each runs alone.
        self.suspicious = False
        #: The last fetch came back full, so the next one will find messages too.
        self.more = False
        #: Failed fetches in a row.
        self.failures = 0


class Fetcher(Loop):
    """One thread for all subscriptions: each gets its turn, and none waits behind a busy one."""

    def __init__(
        self,
        subscriptions: list[Subscription],
        quarantine: Quarantine,
        *,
        allowance: Callable[[], int | None],
    ) -> None:
        super().__init__("fetch", limited=True)
        # Other threads go through it: it never changes.
        self._schedules = tuple(Schedule(s) for s in subscriptions if not s.handler.locked)
        self._turns = 0
        self._by_name: dict[str, list[Schedule]] = {}
        for schedule in self._schedules:
            self._by_name.setdefault(schedule.subscription.name, []).append(schedule)
            schedule.subscription.on_low = self._when_low(schedule)
            schedule.subscription.on_group = self._at_once(schedule)
        self._quarantine = quarantine
        self._allowance = allowance
        #: While notifications come, the queues need not be looked at as often.
        self.listening = False

    def notified(self, name: str | None) -> None:
        """A queue got messages; None: any of them may have."""
        schedules = self._schedules if name is None else self._by_name.get(name, ())
        for schedule in schedules:
            self._hurry(schedule)
        if schedules:
            self.wake()

    @staticmethod
    def _hurry(schedule: Schedule) -> None:
        # In this order: the fetch thread, when it plans at this moment, looks at the flag last.
        schedule.notified = True
        schedule.at = schedule.wait = 0.0

    def tick(self) -> float:
        # Each tick begins with another one.
        first = self._turns % max(len(self._schedules), 1)
        self._turns += 1
        for schedule in self._schedules[first:] + self._schedules[:first]:
            if schedule.at <= time.monotonic() and not self.stopping.is_set():
                try:
                    self._fetch(schedule)
                    schedule.failures = 0
                except QueueNotFound as error:
                    self._put_off(schedule, error, _WAIT_FOR_QUEUE)
                except Error as error:
                    # The others may be in another database, which is there.
                    connections[schedule.subscription.queue.alias].close()
                    schedule.failures += 1
                    self._put_off(schedule, error, after_failures(schedule.failures))
        soonest = min((schedule.at for schedule in self._schedules), default=float("inf"))
        return min(max(soonest - time.monotonic(), 0.0), 1.0)

    def _put_off(self, schedule: Schedule, error: Exception, wait: float) -> None:
        schedule.at = time.monotonic() + wait
        signals.database_failed.send_robust(self.name, operation="fetch", error=error, wait=wait)

    def _fetch(self, schedule: Schedule) -> None:
        subscription, handler = schedule.subscription, schedule.subscription.handler
        queue = Queue.objects.resolve(subscription.name, subscription.queue.alias)
        subscription.queue = queue
        wanted = 1 if schedule.suspicious else subscription.room()
        allowed = self._allowance()
        if allowed is not None:
            wanted = min(wanted, allowed)
        if queue.paused or wanted == 0:
            schedule.at = time.monotonic() + handler.max_fetch_interval
            # Messages notified meanwhile are fetched as soon as there is room.
            schedule.more = not queue.paused
            if schedule.more and allowed != 0 and subscription.room():
                # The last worker may have made room just now, and will not say so again.
                schedule.at = 0.0
            return
        schedule.notified = False
        started = time.monotonic()
        subscription.fetching = True
        try:
            messages = subscription.lease(
                wanted,
                process_id=subscription.process_id(),
                # A transactional ack would lock the lease of its whole batch until its commit.
                batched=handler.ack_policy is not AckPolicy.TRANSACTIONAL,
            )
            got = len(messages)
            suspect = next(filter(is_suspect, messages), None)
            followers = [] if suspect else self._follow(subscription, messages, allowed)
            if messages:
                signals.messages_fetched.send_robust(
                    subscription.name,
                    count=got + len(followers),
                    seconds=time.monotonic() - started,
                )
                self._hand_on(subscription, messages, followers, suspect)
            schedule.suspicious = suspect is not None
        finally:
            subscription.fetching = False
        self._plan(schedule, wanted, got)

    @staticmethod
    def _follow(
        subscription: Subscription, heads: list[Message], allowed: int | None
    ) -> list[Message]:
        """Lease messages behind the heads of FIFO groups. Lines with a suspect go back."""
        room = subscription.room_in_lines()
        if allowed is not None:
            room = min(room, allowed - len(heads))
        followers = subscription.follow(heads, room)
        suspected = {each.group_key for each in followers if is_suspect(each)}
        if suspected:
            back = [each.receipt for each in followers if each.group_key in suspected]
            Message.objects.release(subscription.queue, back)
        return [each for each in followers if each.group_key not in suspected]

    def _hand_on(
        self,
        subscription: Subscription,
        messages: list[Message],
        followers: list[Message],
        suspect: Message | None,
    ) -> None:
        """Give messages to the workers; a suspect runs alone, and the others go back."""
        subscription.count(fetched=len(messages) + len(followers))
        if suspect is None:
            subscription.fill(messages, followers)
        else:
            messages.remove(suspect)
            self._quarantine.isolate(subscription, suspect, messages)

    def _plan(self, schedule: Schedule, wanted: int, got: int) -> None:
        handler, now = schedule.subscription.handler, time.monotonic()
        schedule.more = got == wanted or schedule.suspicious
        if schedule.more:
            schedule.wait = 0.0
            schedule.at = now + handler.min_fetch_interval
            return
        before = 0.0 if got else schedule.wait
        schedule.wait = longer(before, handler.max_fetch_interval, listening=self.listening)
        due = Message.objects.next_due(schedule.subscription.queue)
        if due <= NOW:
            # Overdue and not to be had: another transaction has locked the row, perhaps for long.
            due = schedule.wait
        schedule.at = now + min(schedule.wait * random.uniform(0.9, 1), due)
        if schedule.notified:
            # Messages came since the fetch: the wait that was just planned does not count.
            schedule.at = 0.0

    def _at_once(self, schedule: Schedule) -> Callable[[], None]:
        def fetch() -> None:
            if 2 * len(schedule.subscription.buffer) < schedule.subscription.target:
                self._hurry(schedule)
                self.wake()

        return fetch

    def _when_low(self, schedule: Schedule) -> Callable[[], None]:
        def low() -> None:
            if schedule.more:
                schedule.at = 0.0
                if not self._awake.is_set():
                    self.wake()

        return low
