"""The fetch loop: leases messages for every subscription in turn, as many as it has room for."""

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
from django_pgqueue.worker.watchdog import Watchdog

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
        #: The last fetch brought a suspect: there may be more of them, and each runs alone.
        self.suspicious = False
        #: The last fetch came back full: there is more where that came from.
        self.more = False
        #: How many fetches have failed in a row.
        self.failures = 0


class Fetcher(Loop):
    """One thread for all subscriptions: each gets its turn, none waits behind a busy one."""

    def __init__(
        self,
        subscriptions: list[Subscription],
        quarantine: Quarantine,
        watchdog: Watchdog,
        *,
        worker: Callable[[str], int | None],
        allowance: Callable[[], int | None],
    ) -> None:
        super().__init__("fetch", watchdog)
        self._schedules = [Schedule(s) for s in subscriptions if not s.handler.locked]
        self._by_name: dict[str, list[Schedule]] = {}
        for schedule in self._schedules:
            self._by_name.setdefault(schedule.subscription.name, []).append(schedule)
            schedule.subscription.on_low = self._when_low(schedule)
        self._quarantine = quarantine
        self._worker = worker
        self._allowance = allowance
        #: While somebody tells us of new messages, there is less need to look for them.
        self.listening = False

    def notified(self, name: str | None) -> None:
        """A queue got messages; None: perhaps any of them did."""
        schedules = self._schedules if name is None else self._by_name.get(name, ())
        for schedule in schedules:
            # Said first: whoever plans the next fetch at this moment looks at it last.
            schedule.notified = True
            schedule.at = schedule.wait = 0.0
        if schedules:
            self.wake()

    def tick(self) -> float:
        # Whoever came first this time comes last the next.
        self._schedules.append(self._schedules.pop(0)) if self._schedules else None
        for schedule in self._schedules:
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
            # Whoever was notified meanwhile was not heard: ask as soon as there is room.
            schedule.more = not queue.paused
            if schedule.more and allowed != 0 and subscription.room():
                # Made since we looked; nobody may be left to say so.
                schedule.at = 0.0
            return
        schedule.notified = False
        started = time.monotonic()
        messages = Message.objects.lease(
            queue,
            vt=subscription.vt,
            qty=wanted,
            max_deliveries=handler.max_deliveries,
            worker=self._worker(queue.alias),
            # Who settles each message in its own transaction would have others wait for that.
            batched=handler.ack_policy is not AckPolicy.TRANSACTIONAL,
        )
        took = time.monotonic() - started
        # Counted from before the read, so that we never think to hold it longer than we do.
        for message in messages:
            message.lease_until = started + subscription.vt
        if messages:
            signals.messages_fetched.send_robust(
                subscription.name, count=len(messages), seconds=took
            )
            schedule.suspicious = self._hand_on(subscription, messages)
        self._plan(schedule, wanted, len(messages))

    def _hand_on(self, subscription: Subscription, messages: list[Message]) -> bool:
        """Give messages to the workers; a suspect runs alone, and the others go back.

        Returns whether there was one.
        """
        subscription.count(fetched=len(messages))
        suspect = next(filter(is_suspect, messages), None)
        if suspect is None:
            subscription.fill(messages)
        else:
            messages.remove(suspect)
            self._quarantine.isolate(subscription, suspect, messages)
        return suspect is not None

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
            # Overdue and not to be had: somebody has the row locked, perhaps for long.
            due = schedule.wait
        schedule.at = now + min(schedule.wait * random.uniform(0.9, 1), due)
        if schedule.notified:
            # Since we looked; the wait that was just planned does not count.
            schedule.at = 0.0

    def _when_low(self, schedule: Schedule) -> Callable[[], None]:
        def low() -> None:
            if schedule.more:
                schedule.at = 0.0
                if not self._awake.is_set():
                    self.wake()

        return low
