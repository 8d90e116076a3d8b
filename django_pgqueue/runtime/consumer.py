"""One consumer process: its loops put together, started, and stopped without losing anything."""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from django.db import DatabaseError, connections

from django_pgqueue import signals
from django_pgqueue.handlers import Handler
from django_pgqueue.models import Message, Queue
from django_pgqueue.runtime.execution import Execution
from django_pgqueue.runtime.fetcher import Fetcher
from django_pgqueue.runtime.health import HealthServer
from django_pgqueue.runtime.leases import LeaseKeeper
from django_pgqueue.runtime.listener import Listener
from django_pgqueue.runtime.loop import Loop
from django_pgqueue.runtime.options import Options
from django_pgqueue.runtime.presence import Presence
from django_pgqueue.runtime.quarantine import Quarantine
from django_pgqueue.runtime.settler import Settler
from django_pgqueue.runtime.subscription import Subscription
from django_pgqueue.runtime.supervisor import is_orphaned
from django_pgqueue.runtime.watchdog import Watchdog
from django_pgqueue.runtime.workers import AsyncWorkers, LockedWorker, Worker

__all__ = ["Consumer"]

_DRAIN_CHECK = 0.1


class Consumer:
    """Runs handlers until it is told to stop, or an option says so.

    ::

        Consumer(handlers(["orders"]), Options(drain=True)).run()

    Raises QueueNotFound at the start when a handler's queue does not exist.
    """

    def __init__(self, handlers: Sequence[Handler], options: Options) -> None:
        self.options = options
        self.subscriptions = [
            Subscription(handler, Queue.objects.resolve(handler.queue, handler.using), options)
            for handler in handlers
        ]
        self.started = time.monotonic()
        self.reason = ""
        self._stop = threading.Event()
        self._abort = threading.Event()
        self._watchdog = Watchdog(options.database_timeout)
        self.settler = Settler(options.flush_interval, self._watchdog)
        self._executions = {s: Execution(s, self.settler) for s in self.subscriptions}
        self.presence = Presence(
            self.subscriptions,
            self._watchdog,
            heartbeat=options.heartbeat,
            dead_after=options.dead_after,
        )
        self.fetcher = Fetcher(
            self.subscriptions,
            Quarantine(self.subscriptions, self.settler),
            self._watchdog,
            worker=self.presence.worker,
            allowance=self._allowance,
        )
        self._leases = LeaseKeeper(self._executions, self._watchdog, self._start_worker)
        self._listeners: list[Listener] = []
        self._health: HealthServer | None = None

    @property
    def loops(self) -> list[Loop]:
        """The loops that must live for this process to do its work."""
        return [self.settler, self.presence, self._leases, self.fetcher]

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def stop(self, reason: str = "asked to") -> None:
        """Fetch no more, let what runs finish, give back the rest; safe in a signal handler."""
        self.reason = self.reason or reason
        self._stop.set()

    def abort(self, reason: str = "asked twice") -> None:
        """Stop without waiting for handlers; what they were at is delivered again."""
        self.stop(reason)
        self._abort.set()

    def report(self) -> dict[str, Any]:
        """How the process fares, as plain values for a health check."""
        patience = max(self.options.heartbeat * 3, self.options.database_timeout)
        silence = time.monotonic() - self.presence.last_success
        return {
            "loops": all(loop.is_alive() for loop in self.loops),
            "database": silence < patience,
            "stopping": self.stopping,
            "uptime": round(self.uptime, 1),
            "queues": {s.name: s.counts() for s in self.subscriptions},
        }

    def run(self, every_second: Callable[[], None] = lambda: None) -> None:
        """Work until stopped; ``every_second`` is called in this thread meanwhile."""
        self._start()
        try:
            following = time.monotonic()
            while not self._stop.wait(0.05):
                self._stop_if_done()
                if time.monotonic() >= following:
                    following = time.monotonic() + 1.0
                    every_second()
        finally:
            self._shut_down()

    def _start(self) -> None:
        self.presence.register()
        self._watchdog.start()
        for subscription in self.subscriptions:
            if subscription.handler.is_async:
                AsyncWorkers(subscription, self._executions[subscription]).start()
                continue
            for _ in range(subscription.workers):
                self._start_worker(subscription)
        for loop in self.loops:
            loop.start()
        if self.options.listen:
            for alias in {s.queue.alias for s in self.subscriptions}:
                listener = Listener(alias, self._watchdog, self._notified, self._heard)
                listener.start()
                self._listeners.append(listener)
        if self.options.health_port is not None:
            self._health = HealthServer(self.report, self.options.health_port)
            self._health.start()
        signals.consumer_started.send_robust(self, consumer=self)

    def _start_worker(self, subscription: Subscription) -> None:
        execution = self._executions[subscription]
        if subscription.handler.locked:
            LockedWorker(subscription, execution, self._stop).start()
        else:
            Worker(subscription, execution).start()

    def _notified(self, name: str | None) -> None:
        self.fetcher.notified(name)
        for subscription in self.subscriptions:
            if subscription.handler.locked and name in (None, subscription.name):
                with subscription.available:
                    subscription.available.notify_all()

    def _heard(self, heard: bool) -> None:
        self.fetcher.listening = heard

    def _allowance(self) -> int | None:
        if self.options.max_messages is None:
            return None
        return max(0, self.options.max_messages - sum(s.fetched for s in self.subscriptions))

    def _stop_if_done(self) -> None:
        options = self.options
        if options.max_messages is not None and self._finished() >= options.max_messages:
            self.stop(f"handled {options.max_messages} messages")
        elif options.max_runtime is not None and self.uptime > options.max_runtime:
            self.stop(f"ran for {options.max_runtime:g} seconds")
        elif options.max_memory is not None and memory() > options.max_memory:
            self.stop(f"uses more than {options.max_memory} bytes of memory")
        elif is_orphaned():
            self.stop("its supervisor is gone")
        elif options.drain and self._is_drained():
            self.stop("the queues are empty")

    @property
    def uptime(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def _finished(self) -> int:
        return sum(s.completed + s.retried + s.failed + s.lost for s in self.subscriptions)

    def _is_drained(self) -> bool:
        if self._holds_anything():
            return False
        time.sleep(_DRAIN_CHECK)
        try:
            return (
                all(Message.objects.drained(s.queue) for s in self.subscriptions)
                and not self._holds_anything()
            )
        except DatabaseError:
            connections.close_all()
            return False

    def _holds_anything(self) -> bool:
        return bool(self.settler.pending or any(s.held for s in self.subscriptions))

    def _shut_down(self) -> None:
        signals.consumer_stopping.send_robust(self, consumer=self, reason=self.reason)
        deadline = time.monotonic() + self.options.graceful_timeout
        self.presence.leaving = True
        self.fetcher.stop()
        for listener in self._listeners:
            listener.stop()
        # A fetch under way may still bring messages; they must be given back too.
        self.fetcher.join(self.options.graceful_timeout)
        self._persist("release", self._give_back_buffers, deadline)
        for subscription in self.subscriptions:
            subscription.close()
        while any(s.running for s in self.subscriptions):
            if time.monotonic() > deadline or self._abort.wait(0.01):
                break
        self._persist("settle", self.settler.flush, deadline)
        self._persist("release", self._give_back_running, deadline)
        self.settler.stop()
        self._leases.stop()
        self.presence.stop()
        self.presence.join(1.0)
        self._persist("leave", self.presence.leave, deadline)
        if self._health is not None:
            self._health.stop()
        self._watchdog.stop()
        signals.consumer_stopped.send_robust(self, consumer=self)

    def _persist(self, operation: str, duty: Callable[[], None], deadline: float) -> None:
        """Do a last duty, again and again until the time is over or somebody aborts.

        What is not done by then is not lost: the leases run out, and others go on.
        """
        wait = 0.05
        while True:
            try:
                with self._watchdog.over(duty):
                    return duty()
            except DatabaseError as error:
                connections.close_all()
                if time.monotonic() > deadline or self._abort.is_set():
                    return None
                signals.database_failed.send_robust(
                    self, operation=operation, error=error, wait=wait
                )
                time.sleep(wait)
                wait = min(wait * 2, 1.0)

    def _give_back_buffers(self) -> None:
        for subscription in self.subscriptions:
            buffered = subscription.take_all()
            try:
                Message.objects.release(subscription.queue, [m.receipt for m in buffered])
            except DatabaseError:
                subscription.buffer.extend(buffered)
                raise
            if buffered:
                signals.messages_released.send_robust(subscription.name, count=len(buffered))

    def _give_back_running(self) -> None:
        """Handlers that did not end in time: their messages are due at once, and counted."""
        for subscription in self.subscriptions:
            if not subscription.handler.locked:
                for running in list(subscription.running.values()):
                    receipts = [m.receipt for m in running.messages]
                    Message.objects.set_vt(subscription.queue, receipts, 0)


def memory() -> int:
    """The resident set size of this process, in bytes."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        # Elsewhere only the highest so far is known: in bytes on macOS, else in kilobytes.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
