"""One consumer process: builds its loops and workers, starts them, and stops them safely."""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from django.db import Error, OperationalError, connections
from django.dispatch import Signal

from django_pgqueue import signals
from django_pgqueue.errors import InvalidArgument, QueueNotFound
from django_pgqueue.handlers import Handler
from django_pgqueue.models import Message, Queue
from django_pgqueue.queues.bound import bound_to
from django_pgqueue.worker.announcer import Announcer, send, use
from django_pgqueue.worker.batches import EndedBatches
from django_pgqueue.worker.connections import Limit, limited, return_pooled, small_pools
from django_pgqueue.worker.execution import Execution
from django_pgqueue.worker.fetcher import Fetcher
from django_pgqueue.worker.health_server import HealthServer
from django_pgqueue.worker.leases import LeaseKeeper
from django_pgqueue.worker.listener import Listener
from django_pgqueue.worker.loop import Loop, for_each
from django_pgqueue.worker.maintenance import Maintenance
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.presence import Presence
from django_pgqueue.worker.settler import Settler
from django_pgqueue.worker.subscription import Subscription
from django_pgqueue.worker.supervisor import is_orphaned
from django_pgqueue.worker.ticker import Ticker
from django_pgqueue.worker.workers import AsyncWorkers, LockedWorker, Worker

_DRAIN_CHECK = 0.1
#: How long a stop waits, after its deadline, for each thing that may be silent or slow, in seconds.
_MOMENT = 1.0
#: A receiver of a signal that takes longer makes the process unready, in seconds.
_SLOWEST_RECEIVER = 30.0


class Consumer:
    """Runs handlers until it is stopped, or an option ends it.

    ::

        Consumer(handlers(["orders"]), Options(drain=True)).run()

    Raises QueueNotFound when a handler's queue does not exist, and InvalidArgument when two
    handlers have the same queue, or one cannot keep its queue's limits.
    """

    def __init__(self, handlers: Sequence[Handler], options: Options) -> None:
        self.options = options
        #: Wakes the fetch loop when a buffer is low.
        low = threading.Event()
        self._batches = EndedBatches()
        self.subscriptions = _subscriptions(handlers, options, low, self._batches)
        self.started = time.monotonic()
        #: Why the process stops.
        self.reason = ""
        # Plain flags without a lock: a signal handler sets them, and the thread that it interrupts
        # could hold the lock.
        self.stopping = False
        self.aborting = False
        #: The time limit of a step of the stop.
        self._limit: Limit | None = None
        self._announcer = Announcer()
        self._executions: dict[Subscription, Execution] = {}
        self._settlers: list[Settler] = []
        self.presences: list[Presence] = []
        self.leases: list[LeaseKeeper] = []
        aliases = sorted({s.queue.alias for s in self.subscriptions})
        by_alias = {a: [s for s in self.subscriptions if s.queue.alias == a] for a in aliases}
        for alias, theirs in by_alias.items():
            settler = Settler(options.flush_interval, alias)
            executions = {s: Execution(s, settler) for s in theirs}
            self._executions |= executions
            self._settlers.append(settler)
            self.presences.append(Presence(alias, theirs, options))
            self.leases.append(LeaseKeeper(executions, self._replace_worker, alias))
        allowance = None if options.max_messages is None else self._allowance
        self.fetcher = Fetcher(self.subscriptions, self._settlers, allowance=allowance, awake=low)
        self.maintenance = Maintenance(aliases)
        self.ticker = Ticker(
            {alias: [s.queue.pk for s in theirs] for alias, theirs in by_alias.items()},
            lambda alias: by_alias[alias][0].process_id,
            self._batches,
        )
        self._listeners = [
            Listener(alias, self.fetcher, probe=options.database_timeout)
            for alias in (aliases if options.listen else ())
        ]
        self._workers: list[threading.Thread] = []
        #: The workers whose handlers were abandoned, while they run.
        self._abandoned: list[threading.Thread] = []
        self._reserving = threading.Lock()
        #: Whether the process stops because of ``max_memory``.
        self._grew_too_large = False
        self._health: HealthServer | None = None

    @property
    def loops(self) -> list[Loop]:
        """The loops that must run for this process to work."""
        return [*self._settlers, *self.presences, *self.leases, self.fetcher]

    @property
    def uptime(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def waits_for_receivers(self) -> bool:
        """Whether receivers of signals, or log handlers, are running: after the end, still."""
        return self._announcer.is_alive()

    @property
    def has_unfinished_threads(self) -> bool:
        """Whether handlers, or loops, are running: after the end, those that were given up."""
        threads = [*self._workers, *self._abandoned, *self.loops, *self._listeners]
        return any(each.is_alive() for each in [*threads, self.maintenance, self.ticker])

    def stop(self, reason: str = "stop() was called") -> None:
        """Stop fetching, let handlers finish, and release unstarted messages.

        Safe in a signal handler.
        """
        self.reason = self.reason or reason
        self.stopping = True

    def abort(self, reason: str = "abort() was called") -> None:
        """Stop without waiting for handlers. Releases their messages, which are due at once.

        Safe in a signal handler.
        """
        self.stop(reason)
        self.aborting = True
        if self._limit is not None:
            # A step of the stop is running: its database may be silent.
            self._limit.deadline = min(self._limit.deadline, time.monotonic() + _MOMENT)

    def report(self) -> dict[str, Any]:
        """The state of the process, as plain values for a health check."""
        patience = max(self.options.heartbeat * 3, self.options.database_timeout)
        silence = time.monotonic() - min(each.last_success for each in self.presences)
        since = self._announcer.since
        return {
            # During a stop the loops end one by one. That is no reason to kill the process.
            "loops": self.stopping or all(loop.is_alive() for loop in self.loops),
            "database": silence < patience,
            # A receiver of a signal, such as a log handler, that does not return.
            "receivers": since is None or time.monotonic() - since < _SLOWEST_RECEIVER,
            "stopping": self.stopping,
            "uptime": round(self.uptime, 1),
            "queues": {s.name: s.report() for s in self.subscriptions},
        }

    def run(self, every_second: Callable[[], None] = lambda: None) -> None:
        """Work until stopped. Calls ``every_second`` once a second, in a thread of its own."""
        with ExitStack() as at_end:
            if self.options.health_port is not None:
                # Open the port first, so that no message is leased if the port is taken.
                self._health = HealthServer(
                    self.report, self.options.health_host, self.options.health_port
                )
                at_end.callback(self._health.stop)
            # This thread must notice a stop, whatever receivers do.
            use(self._announcer)
            at_end.callback(use, None)
            for presence in self.presences:
                presence.register()
            at_end.callback(self._shut_down)
            self._start()
            connections.close_all()  # the thread below opens its own
            ticking = _EverySecond(every_second)
            ticking.start()
            at_end.callback(ticking.end)
            while not self.stopping:
                time.sleep(0.05)
                with limited():
                    self._stop_if_done()

    def _start(self) -> None:
        for alias, size, workers, wanted in small_pools(
            (s.queue.alias, s.handler, s.workers) for s in self.subscriptions
        ):
            send(signals.pool_too_small, alias, size=size, workers=workers, wanted=wanted)
        for subscription in self.subscriptions:
            for _ in range(1 if subscription.handler.is_async else subscription.workers):
                self._start_worker(subscription)
        self._announcer.start()
        for loop in [*self.loops, *self._listeners, self.maintenance, self.ticker]:
            loop.announcer = self._announcer
        for loop in self.loops:
            loop.start()
        if not self.options.drain:
            self.maintenance.start()
            # Otherwise the queues would not become empty.
            self.ticker.start()
        for listener in self._listeners:
            listener.start()
        if self._health is not None:
            self._health.start()
        self._tell(signals.consumer_started)

    def _start_worker(self, subscription: Subscription) -> None:
        execution = self._executions[subscription]
        worker: Worker | LockedWorker
        if subscription.handler.is_async:
            worker = AsyncWorkers(subscription, execution)
        elif subscription.handler.locked:
            worker = LockedWorker(subscription, execution, self._reserve)
        else:
            worker = Worker(subscription, execution)
        worker.announcer = self._announcer
        self._workers.append(worker)
        worker.start()

    def _replace_worker(self, subscription: Subscription, thread: int | None) -> None:
        """Start a worker in place of one whose handler was abandoned."""
        self._abandoned = [worker for worker in self._abandoned if worker.is_alive()]
        self._abandoned += [worker for worker in self._workers if worker.ident == thread]
        self._workers = [worker for worker in self._workers if worker.ident != thread]
        self._start_worker(subscription)

    def _allowance(self) -> int:
        """How many more messages may be fetched."""
        most = self.options.max_messages or 0
        return max(0, most - sum(s.counts.fetched for s in self.subscriptions))

    def _reserve(self, subscription: Subscription) -> bool:
        """Count a message that is about to be read. Returns False at ``max_messages``."""
        with self._reserving:
            if self.options.max_messages is not None and self._allowance() == 0:
                return False
            subscription.counts.add(fetched=1)
        return True

    def _stop_if_done(self) -> None:
        options, settled = self.options, sum(s.counts.settled for s in self.subscriptions)
        if options.max_messages is not None and settled >= options.max_messages:
            self.stop(f"handled {options.max_messages} messages")
        elif options.max_runtime is not None and self.uptime > options.max_runtime:
            self.stop(f"ran for {options.max_runtime:g} seconds")
        elif options.max_memory is not None and memory() > options.max_memory:
            self._grew_too_large = True
            self.stop(f"the process uses more than {options.max_memory} bytes of memory")
        elif is_orphaned():
            self.stop("the supervisor process has ended")
        elif options.drain and self._is_drained():
            self.stop("the queues are empty")

    def _is_drained(self) -> bool:
        if self._busy():
            return False
        if self._batches.count(self.ticker.name):  # whose callbacks may be in these queues
            return False
        time.sleep(_DRAIN_CHECK)
        leased = self._leased()
        try:
            return (
                not self._busy()
                and all(bound_to(s.queue).drained() for s in self.subscriptions)
                and not self._busy()
                # No message was leased and settled during these queries.
                and self._leased() == leased
            )
        except Error:
            connections.close_all()
            return False
        finally:
            return_pooled()

    def _busy(self) -> bool:
        return any(s.busy for s in self.subscriptions)

    def _leased(self) -> int:
        return sum(s.counts.leased for s in self.subscriptions)

    def _shut_down(self) -> None:
        deadline = time.monotonic() + self.options.graceful_timeout
        self._tell(signals.consumer_stopping, reason=self.reason)
        for presence in self.presences:
            presence.leaving = True
        self.fetcher.stop()
        self.maintenance.stop()
        self.ticker.stop()
        for listener in self._listeners:
            listener.stop()
        for subscription in self.subscriptions:
            subscription.buffer.close()
        # A fetch that is running may still bring messages, which must be released too.
        self.fetcher.end()
        self._wait(deadline, lambda: not self.fetcher.is_alive())
        self._persist("release", self._release_buffered, deadline)
        self._wait(deadline, lambda: not any(worker.is_alive() for worker in self._workers))
        self._persist("settle", self._settle, deadline)
        self._persist("release", self._release_running, deadline)
        _end(self._settlers)
        # Write the outcomes of handlers that ended in the meantime.
        self._persist("settle", self._settle, deadline)
        _end(self.leases)
        _end(self.presences)
        for presence in self.presences:
            self._persist("leave", presence.leave, deadline)
        _end([self.maintenance, self.ticker])
        self._persist("leave", self.maintenance.leave, deadline)
        connections.close_all()
        # Outcomes are written. What waits for receivers is lines of a log, for example.
        self._announcer.stop()
        self._wait(deadline, lambda: not self._announcer.is_alive())
        if dropped := self._announcer.end(_MOMENT):
            self._tell(signals.announcements_dropped, count=dropped)
        self._tell(signals.consumer_stopped)

    def _tell(self, signal: Signal, **arguments: Any) -> None:
        """Send a signal of the process's life, after a moment without waiting for its receivers."""

        def tell() -> None:
            try:
                signal.send_robust(self, consumer=self, **arguments)
            finally:
                connections.close_all()

        thread = threading.Thread(target=tell, name="pgqueue-tell", daemon=True)
        thread.start()
        thread.join(_MOMENT)

    def _settle(self) -> None:
        # A settle loop may be waiting for a silent database.
        for_each(self._settlers, lambda settler: settler.flush(timeout=_MOMENT))

    def _patience(self, deadline: float) -> float:
        """How long a step of the stop may wait for a silent database, in seconds."""
        return _MOMENT if self.aborting else max(deadline - time.monotonic(), _MOMENT)

    def _wait(self, deadline: float, until: Callable[[], bool]) -> None:
        while not until() and time.monotonic() < deadline and not self.aborting:
            time.sleep(0.005)

    def _persist(self, operation: str, step: Callable[[], None], deadline: float) -> None:
        """Repeat a step of the shutdown until it succeeds, the deadline passes, or ``abort()``.

        Even if the step never succeeds no message is lost: leases expire, and other consumers get
        the messages.
        """
        wait = 0.05
        while True:
            try:
                return self._attempt(step, deadline)
            except Exception as error:
                send(signals.database_failed, self, operation=operation, error=error, wait=wait)
                if time.monotonic() > deadline or self.aborting:
                    return None
                time.sleep(wait)
                wait = min(wait * 2, 1.0)

    def _attempt(self, step: Callable[[], None], deadline: float) -> None:
        """Run a step of the shutdown in a thread of its own, and wait for it while it may take.

        Only an open connection can be cut: an attempt to connect waits for ``connect_timeout``.
        """
        errors: list[Exception] = []

        def run() -> None:
            use(self._announcer)
            try:
                with limited(seconds=self._patience(deadline)) as self._limit:
                    step()
            except Exception as error:
                errors.append(error)
            finally:
                connections.close_all()

        thread = threading.Thread(target=run, name="pgqueue-stop", daemon=True)
        end = time.monotonic() + self._patience(deadline) + _MOMENT
        thread.start()
        while thread.is_alive() and time.monotonic() < end:
            thread.join(0.02)
            if self.aborting:
                end = min(end, time.monotonic() + 2 * _MOMENT)
        if errors:
            raise errors[0]
        if thread.is_alive():
            raise OperationalError("the database does not answer")

    def _release_buffered(self) -> None:
        """Release the messages that no handler has started on."""

        def release(subscription: Subscription) -> None:
            buffered = subscription.buffer.take_all()
            try:
                subscription.release(buffered)
            except Error:
                # Keep the messages for the next try: the buffer is closed, so no handler starts.
                subscription.counts.add(fetched=len(buffered))
                subscription.buffer.messages.extend(buffered)
                raise

        for_each(self.subscriptions, release)

    def _release_running(self) -> None:
        """Give up handlers that did not end in time. Their messages are due at once."""
        for_each(self.subscriptions, self._interrupt)

    def _interrupt(self, subscription: Subscription) -> None:
        """Give up the runs of a handler, and release their messages.

        These deliveries are not counted, unless the process stops because of ``max_memory``: one of
        the messages may be the cause, and ``max_deliveries`` must end that message.
        """
        for running in list(subscription.running.values()):
            if subscription.handler.locked or not running.abandon():
                continue
            messages = running.unsettled
            receipts = [message.receipt for message in messages]
            if self._grew_too_large:
                lost = Message.objects.set_vt(subscription.queue, receipts, 0).lost
            else:
                lost = bound_to(subscription.queue).release(receipts).lost
            seconds = subscription.end(running)
            if released := [message for message in messages if message.receipt not in lost]:
                send(
                    signals.messages_interrupted,
                    subscription.name,
                    messages=released,
                    seconds=seconds,
                )


def _subscriptions(
    handlers: Sequence[Handler], options: Options, low: threading.Event, batches: EndedBatches
) -> list[Subscription]:
    """Return a subscription for each handler. Raises QueueNotFound and InvalidArgument."""
    found: dict[tuple[str, int], Subscription] = {}
    for handler in handlers:
        try:
            queue = Queue.objects.resolve(handler.queue, handler.using)
        except QueueNotFound:
            alias = Queue.objects.database(handler.using)
            raise QueueNotFound(handler.queue, alias, handler.queue_made_by) from None
        if other := found.get((queue.alias, queue.pk)):
            raise InvalidArgument(
                f"queue {queue.name!r} of database {queue.alias!r} has two handlers, "
                f"{other.handler.label} and {handler.label}: remove one of them, or route to a "
                f"second queue"
            )
        found[queue.alias, queue.pk] = Subscription(handler, queue, options, low, batches)
    return list(found.values())


class _EverySecond(Loop):
    """Calls a function once a second. It may wait for a database or an output."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__("every-second", limited=True)
        self._call = call

    def tick(self) -> float:
        self._call()
        return 1.0


def _end(loops: Sequence[Loop]) -> None:
    """Stop loops, and wait up to a second for the end of each."""
    for loop in loops:
        loop.stop()
    for loop in loops:
        loop.end()


def memory() -> int:
    """The resident set size of this process, in bytes."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        # Other systems report only the peak: in bytes on macOS, else in kilobytes.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
