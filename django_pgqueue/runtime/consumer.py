"""One consumer process: its loops put together, started, and stopped without losing anything."""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.db import Error, connections

from django_pgqueue import signals
from django_pgqueue.handlers import Handler
from django_pgqueue.models import Message, Queue
from django_pgqueue.runtime.execution import Execution
from django_pgqueue.runtime.failures import Failures
from django_pgqueue.runtime.fetcher import Fetcher
from django_pgqueue.runtime.health import HealthServer
from django_pgqueue.runtime.leases import LeaseKeeper
from django_pgqueue.runtime.listener import Listener
from django_pgqueue.runtime.loop import Loop
from django_pgqueue.runtime.maintenance import Maintenance
from django_pgqueue.runtime.options import Options
from django_pgqueue.runtime.pools import give_back_pooled
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
        # Plain flags: a signal handler sets them, and it must not wait for a lock that the
        # thread it interrupts may hold.
        self.stopping = False
        self.aborting = False
        self._watchdog = Watchdog(options.database_timeout)
        self.settler = Settler(options.flush_interval, self._watchdog)
        self._executions = {
            s: Execution(s, self.settler, self._watchdog) for s in self.subscriptions
        }
        self.presence = Presence(
            self.subscriptions,
            self._watchdog,
            heartbeat=options.heartbeat,
            dead_after=options.dead_after,
        )
        for subscription in self.subscriptions:
            subscription.process_id = partial(self.presence.worker, subscription.queue.alias)
        self._quarantine = Quarantine(self.subscriptions, self.settler)
        self.fetcher = Fetcher(
            self.subscriptions,
            self._quarantine,
            self._watchdog,
            worker=self.presence.worker,
            allowance=self._allowance,
        )
        self._leases = LeaseKeeper(self._executions, self._watchdog, self._replace_worker)
        self.maintenance = Maintenance({s.queue.alias for s in self.subscriptions})
        self._workers: list[threading.Thread] = []
        self._listeners: list[Listener] = []
        self._deaf: set[str] = {s.queue.alias for s in self.subscriptions}
        self._reserving = threading.Lock()
        self._health: HealthServer | None = None

    @property
    def loops(self) -> list[Loop]:
        """The loops that must live for this process to do its work."""
        return [self.settler, self.presence, self._leases, self.fetcher]

    def stop(self, reason: str = "asked to") -> None:
        """Fetch no more, let what runs finish, give back the rest; safe in a signal handler."""
        self.reason = self.reason or reason
        self.stopping = True

    def abort(self, reason: str = "asked twice") -> None:
        """Stop without waiting for handlers; what they were at is delivered again."""
        self.stop(reason)
        self.aborting = True

    def report(self) -> dict[str, Any]:
        """How the process fares, as plain values for a health check."""
        patience = max(self.options.heartbeat * 3, self.options.database_timeout)
        silence = time.monotonic() - self.presence.last_success
        return {
            # Whoever stops ends one after the other, and is not to be killed for it.
            "loops": self.stopping or all(loop.is_alive() for loop in self.loops),
            "database": silence < patience,
            "stopping": self.stopping,
            "uptime": round(self.uptime, 1),
            "queues": {s.name: s.counts() for s in self.subscriptions},
        }

    def run(self, every_second: Callable[[], None] = lambda: None) -> None:
        """Work until stopped; ``every_second`` is called in this thread meanwhile."""
        if self.options.health_port is not None:
            # First of all: a port that is taken must be known before anything is leased.
            self._health = HealthServer(self.report, self.options.health_port)
        try:
            self.presence.register()
        except BaseException:
            if self._health is not None:
                self._health.stop()
            raise
        try:
            self._start()
            following = time.monotonic()
            while not self.stopping:
                time.sleep(0.05)
                with self._watchdog.over():
                    self._stop_if_done()
                    if time.monotonic() >= following:
                        following = time.monotonic() + 1.0
                        every_second()
                        give_back_pooled()
        finally:
            self._shut_down()

    def _start(self) -> None:
        self._watchdog.start()
        for subscription in self.subscriptions:
            if subscription.handler.is_async:
                workers = AsyncWorkers(subscription, self._executions[subscription], self._watchdog)
                self._workers.append(workers)
                workers.start()
                continue
            for _ in range(subscription.workers):
                self._start_worker(subscription)
        for loop in self.loops:
            loop.start()
        if not self.options.drain:
            self.maintenance.start()
        if self.options.listen:
            for alias in {s.queue.alias for s in self.subscriptions}:
                listener = Listener(
                    alias,
                    self._watchdog,
                    self._notified,
                    self._heard,
                    probe=self.options.database_timeout,
                )
                listener.start()
                self._listeners.append(listener)
        if self._health is not None:
            self._health.start()
        signals.consumer_started.send_robust(self, consumer=self)

    def _start_worker(self, subscription: Subscription) -> None:
        execution = self._executions[subscription]
        worker: threading.Thread
        if subscription.handler.locked:
            worker = LockedWorker(subscription, execution, self._watchdog, self._reserve)
        else:
            worker = Worker(subscription, execution, self._watchdog)
        self._workers.append(worker)
        worker.start()

    def _replace_worker(self, subscription: Subscription, thread: int | None) -> None:
        """One hangs for good: another takes its place, and nobody waits for it."""
        self._workers = [worker for worker in self._workers if worker.ident != thread]
        self._start_worker(subscription)

    def _notified(self, name: str | None) -> None:
        self.fetcher.notified(name)
        for subscription in self.subscriptions:
            if subscription.handler.locked and name in (None, subscription.name):
                with subscription.available:
                    subscription.wakes += 1
                    subscription.available.notify_all()

    def _heard(self, alias: str, heard: bool) -> None:
        self._deaf = self._deaf - {alias} if heard else self._deaf | {alias}
        self.fetcher.listening = not self._deaf

    def _allowance(self) -> int | None:
        if self.options.max_messages is None:
            return None
        return max(0, self.options.max_messages - sum(s.fetched for s in self.subscriptions))

    def _reserve(self, subscription: Subscription) -> bool:
        """Count a message that is about to be read, if it may be."""
        with self._reserving:
            if self._allowance() == 0:
                return False
            subscription.count(fetched=1)
        return True

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
        return sum(s.settled for s in self.subscriptions)

    def _is_drained(self) -> bool:
        if self._holds_anything():
            return False
        time.sleep(_DRAIN_CHECK)
        try:
            return (
                all(Message.objects.drained(s.queue) for s in self.subscriptions)
                and not self._holds_anything()
            )
        except Error:
            connections.close_all()
            return False
        finally:
            give_back_pooled()

    def _holds_anything(self) -> bool:
        return bool(self.settler.pending or any(s.held for s in self.subscriptions))

    def _shut_down(self) -> None:
        signals.consumer_stopping.send_robust(self, consumer=self, reason=self.reason)
        deadline = time.monotonic() + self.options.graceful_timeout
        self.presence.leaving = True
        self._quarantine.stopping = True
        self.fetcher.stop()
        self.maintenance.stop()
        for listener in self._listeners:
            listener.stop()
        for subscription in self.subscriptions:
            subscription.close()
        # A fetch under way may still bring messages; they must be given back too.
        _end(self.fetcher)
        self._wait(deadline, lambda: not self.fetcher.is_alive())
        self._persist("release", self._give_back_buffers, deadline)
        self._wait(deadline, lambda: not any(worker.is_alive() for worker in self._workers))
        self._persist("settle", self.settler.flush, deadline)
        self._persist("release", self._give_back_running, deadline)
        self._leases.stop()
        _end(self._leases)
        self.settler.stop()
        _end(self.settler)
        # What ended just now, at the last moment.
        self._persist("settle", self.settler.flush, deadline)
        self.presence.stop()
        _end(self.presence)
        self._persist("leave", self.presence.leave, deadline)
        _end(self.maintenance)
        self._persist("leave", self.maintenance.leave, deadline)
        if self._health is not None:
            self._health.stop()
        self._watchdog.stop()
        connections.close_all()
        signals.consumer_stopped.send_robust(self, consumer=self)

    def _wait(self, deadline: float, until: Callable[[], bool]) -> None:
        while not until() and time.monotonic() < deadline and not self.aborting:
            time.sleep(0.005)

    def _persist(self, operation: str, duty: Callable[[], None], deadline: float) -> None:
        """Do a last duty, again and again until the time is over or somebody aborts.

        What is not done by then is not lost: the leases run out, and others go on.
        """
        wait = 0.05
        while True:
            try:
                with self._watchdog.over():
                    return duty()
            except Exception as error:
                connections.close_all()
                signals.database_failed.send_robust(
                    self, operation=operation, error=error, wait=wait
                )
                if time.monotonic() > deadline or self.aborting:
                    return None
                time.sleep(wait)
                wait = min(wait * 2, 1.0)

    def _give_back_buffers(self) -> None:
        failures = Failures()
        for subscription in self.subscriptions:
            buffered = subscription.take_all()
            with failures.of(subscription):
                try:
                    subscription.give_back(buffered)
                except Error:
                    # Nobody starts on them any more, so another try can only be right.
                    subscription.count(fetched=len(buffered))
                    subscription.buffer.extend(buffered)
                    raise
        failures.end()

    def _give_back_running(self) -> None:
        """Handlers that did not end in time: their messages are due at once, and counted."""
        failures = Failures()
        for subscription in self.subscriptions:
            if not subscription.handler.locked:
                with failures.of(subscription):
                    for running in list(subscription.running.values()):
                        receipts = [m.receipt for m in running.messages]
                        Message.objects.set_vt(subscription.queue, receipts, 0)
        failures.end()


def _end(loop: Loop) -> None:
    """Give a loop a moment to end, if it ever began."""
    if loop.is_alive():
        loop.join(1.0)


def memory() -> int:
    """The resident set size of this process, in bytes."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        # Elsewhere only the highest so far is known: in bytes on macOS, else in kilobytes.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
