"""The workers: threads for plain handlers, an event loop for async ones."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections, connections

from django_pgqueue.acks import AckPolicy, Outcome
from django_pgqueue.engine.groups.heads import give_heads
from django_pgqueue.engine.read.sleep import Sleep
from django_pgqueue.models import Message
from django_pgqueue.queues.bound import bound_to
from django_pgqueue.worker.announcer import Announcer, use
from django_pgqueue.worker.buffer import AsyncBuffer
from django_pgqueue.worker.connections import (
    close_old,
    left_open,
    limited,
    open_caches,
    return_pooled,
    uses_pools,
)
from django_pgqueue.worker.endings import announce
from django_pgqueue.worker.execution import Execution, committing
from django_pgqueue.worker.loop import Loop, after_failures
from django_pgqueue.worker.running import Running
from django_pgqueue.worker.subscription import PAUSE_BEHIND, Subscription

#: Seconds after which a busy thread closes its old connections.
_HOUSEKEEPING = 1.0
#: The longest wait of a worker that gets no connection, in seconds.
_LONGEST_PAUSE = 1.0


class Worker(threading.Thread):
    """Takes messages of one subscription and runs its handler on them."""

    kind = "work"

    def __init__(self, subscription: Subscription, execution: Execution) -> None:
        super().__init__(name=f"pgqueue-{self.kind}-{subscription.name}", daemon=True)
        self._subscription = subscription
        self._execution = execution
        self._housekept = time.monotonic()
        self._failures = 0
        self._pooled = uses_pools()
        self._transactional = subscription.handler.ack_policy is AckPolicy.TRANSACTIONAL
        self._connections: Sequence[Any] = ()
        #: Sends the signals of this thread. None: the thread sends them itself.
        self.announcer: Announcer | None = None

    def run(self) -> None:
        use(self.announcer)
        buffer, size = self._subscription.buffer, self._subscription.handler.run_size
        thread = threading.get_ident()
        # The thread's connections: the same objects for its whole life.
        self._connections = connections.all()
        open_caches()
        try:
            while True:
                messages = buffer.take(size)
                if not messages:
                    # Idle: close old connections, as Django does at the end of a request.
                    close_old()
                    messages = buffer.take(size, wait=True)
                if not messages:
                    return
                # A copy, so that nothing a handler sets in it reaches the next handler.
                running = copy_context().run(
                    self._execution.run, messages, thread, self._connections
                )
                if running is not None and running.abandoned:
                    return  # another worker was started in its place
                self._look_after_connections(running)
                if running is not None:
                    # Without a connection the next message would fail to run, too.
                    self._failures = 0 if running.result.ran else self._failures + 1
                    if self._failures:
                        time.sleep(min(after_failures(self._failures), _LONGEST_PAUSE))
        finally:
            connections.close_all()

    def _look_after_connections(self, running: Running | None) -> None:
        """Return pooled connections after each handler, and close old or broken ones.

        With CONN_MAX_AGE=0 Django reconnects for each request. A busy worker reconnects once a
        second: connecting for each message would take longer than handling it.
        """
        result = None if running is None else running.result
        ended_well = result is not None and result.error is None and result.hook_error is None
        # After a good end outside a transaction the execution has looked.
        if not ended_well or self._transactional:
            for connection in self._connections:
                if connection.connection is not None and left_open(connection):
                    self._close_with_transactions()
                    break
        if self._pooled:
            return_pooled()
        if running is not None and running.overdue:
            # The interrupt may have hit the middle of a query.
            connections.close_all()
        now = time.monotonic()
        if not ended_well or now - self._housekept > _HOUSEKEEPING:
            self._housekept = now
            close_old()

    def _close_with_transactions(self) -> None:
        """Close all connections, because a handler left a transaction open on one of them."""
        for connection in self._connections:
            if connection.connection is not None:
                connection.connection.close()
            del connections[connection.alias]
        self._connections = connections.all()


class LockedWorker(Loop):
    """Reads, handles and settles each message in one transaction, which locks its row.

    No lease can expire, and after a crash the message is readable at once. The price: a transaction
    as long as the handler, no batches, and no count of deliveries that end in a crash.
    """

    operation = "locked"

    def __init__(
        self,
        subscription: Subscription,
        execution: Execution,
        reserve: Callable[[Subscription], bool],
    ) -> None:
        super().__init__(f"locked-{subscription.name}")
        self._subscription = subscription
        self._execution = execution
        self._reserve = reserve
        self._sleep = Sleep()
        subscription.buffer.readers.append(self.notified)

    def notified(self, session: int | None) -> None:
        """Look for a message soon: a session has notified. None: one may have."""
        self._sleep.hear(session)
        self._awake.set()

    def run(self) -> None:
        open_caches()
        super().run()

    def tick(self) -> float:
        if self._subscription.buffer.stopping:
            self.stop()
            return 0.0
        try:
            wait = copy_context().run(self._handle_one)
            if wait is not None:
                self._sleep.wait = 0.0
                return wait
            with limited():
                seconds, _ = self._subscription.fall_asleep(self._sleep)
            return seconds
        finally:
            for connection in connections.all(initialized_only=True):
                if connection.connection is not None and left_open(connection):
                    connection.connection.close()
                    del connections[connection.alias]
            close_old()

    def _handle_one(self) -> float | None:
        """Return the seconds until the next call, or None if no message was found."""
        subscription = self._subscription
        with limited():
            queue = subscription.refresh()
        unannounced = self.announcer.unannounced[subscription.name] if self.announcer else 0
        if queue.paused or subscription.quiet:
            return subscription.handler.max_fetch_interval
        if unannounced >= subscription.most_ended or not self._reserve(subscription):
            return PAUSE_BEHIND
        found: list[tuple[Message, Outcome]] | None = None
        outcomes = None
        try:
            with limited():
                give_heads(queue.opened)
            with limited() as limit, committing(queue.alias) as commit:
                for message in subscription.lease(1):
                    message.lease_until = float("inf")
                    found = self._execution.run_locked(message, threading.get_ident(), limit)
                    bound_to(queue).settle(
                        {m.receipt: o for m, o in found}, process_id=subscription.process_id
                    )
            outcomes = found
        finally:
            if outcomes is None:
                subscription.counts.add(fetched=-1)
        if outcomes is not None:
            announce(subscription, outcomes)
            if commit.hook_error is not None:
                self._execution.hook_failed([m for m, _ in outcomes], commit.hook_error)
        return None if outcomes is None else 0.0


class AsyncWorkers(Worker):
    """An event loop on which the async handlers of one subscription run, many at once."""

    kind = "async"

    def run(self) -> None:
        use(self.announcer)
        asyncio.run(self._work_together())

    async def _work_together(self) -> None:
        theirs = await sync_to_async(connections.all)()
        open_caches()
        housekeeping = asyncio.create_task(_close_old_connections())
        try:
            await asyncio.gather(*(self._work(theirs) for _ in range(self._subscription.workers)))
        finally:
            housekeeping.cancel()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(sync_to_async(connections.close_all)(), 1.0)

    async def _work(self, theirs: Sequence[Any]) -> None:
        buffer, size = self._subscription.buffer, self._subscription.handler.run_size
        assert isinstance(buffer, AsyncBuffer)
        while not buffer.stopping:
            messages = buffer.take(size)
            if not messages:
                await buffer.ready()
                continue
            # The handler runs in its own task, with a copy of the context, so that a timeout does
            # not cancel this worker.
            run = asyncio.create_task(self._execution.arun(messages))
            await asyncio.wait([run])
            if (running := run.result()) is not None and running.result.error is not None:
                # The run's connection may be broken, so the next run gets a new one. After a
                # timeout the thread that runs async code's queries may be waiting for an answer
                # that never comes.
                with limited(*(theirs if running.overdue else [None])):
                    await sync_to_async(close_old_connections)()


async def _close_old_connections() -> None:
    """Close old connections repeatedly, in the thread that runs async code's queries."""
    while True:
        await asyncio.sleep(_HOUSEKEEPING)
        await sync_to_async(close_old_connections)()
