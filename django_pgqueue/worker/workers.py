"""The workers: threads for plain handlers, an event loop for async ones."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections, connections, transaction

from django_pgqueue import signals
from django_pgqueue.models import Message, Queue
from django_pgqueue.worker.connections import close_old, give_back_pooled, limited, uses_pools
from django_pgqueue.worker.execution import Execution
from django_pgqueue.worker.loop import after_failures
from django_pgqueue.worker.running import Running
from django_pgqueue.worker.settler import announce
from django_pgqueue.worker.subscription import Subscription
from django_pgqueue.worker.waits import NOW, longer

__all__ = ["AsyncWorkers", "LockedWorker", "Worker"]

#: How often a busy thread closes its old connections, in seconds.
_HOUSEKEEPING = 1.0
#: The longest wait of a worker that cannot connect, in seconds.
_LONGEST_PAUSE = 1.0


class Worker(threading.Thread):
    """Takes messages of one subscription and runs its handler on them."""

    def __init__(self, subscription: Subscription, execution: Execution) -> None:
        super().__init__(name=f"pgqueue-work-{subscription.name}", daemon=True)
        self._subscription = subscription
        self._execution = execution
        self._housekept = time.monotonic()
        self._failures = 0
        self._pooled = uses_pools()
        self._connections: Sequence[Any] = ()

    def run(self) -> None:
        handler = self._subscription.handler
        size = handler.run_size
        thread = threading.get_ident()
        # They belong to this thread, and stay the same for its life.
        self._connections = connections.all()
        try:
            while messages := self._take(size):
                running = self._execution.run(messages, thread)
                if running is not None and running.abandoned:
                    # Another thread has taken its place.
                    return
                self._look_after_connections(running)
                if running is not None:
                    self._pause_if_it_never_ran(running)
        finally:
            connections.close_all()

    def _take(self, size: int) -> list[Message]:
        messages = self._subscription.take_now(size)
        if not messages:
            # Idle: Django does the same at the end of a request.
            close_old()
            messages = self._subscription.take(size)
        return messages

    def _pause_if_it_never_ran(self, running: Running) -> None:
        """Without a connection the next message would fare no better at once."""
        self._failures = 0 if running.result.ran else self._failures + 1
        if self._failures:
            time.sleep(min(after_failures(self._failures), _LONGEST_PAUSE))

    def _look_after_connections(self, running: Running | None) -> None:
        """Return pooled connections after each handler, and close old or broken ones.

        CONN_MAX_AGE=0 means a connection for each request; a busy worker's request lasts a
        second, since connecting for each message would cost more than handling it.
        """
        for connection in self._connections:
            if connection.connection is not None and (
                connection.in_atomic_block
                or connection.autocommit is not connection.settings_dict["AUTOCOMMIT"]
            ):
                self._forget_transactions()
                break
        if self._pooled:
            give_back_pooled()
        if running is not None and running.overdue:
            # The interrupt may have come in the middle of a query.
            connections.close_all()
        now = time.monotonic()
        if running is None or running.failed or now - self._housekept > _HOUSEKEEPING:
            self._housekept = now
            close_old()

    def _forget_transactions(self) -> None:
        """A handler left a transaction open: its work must not become part of the next one's."""
        for connection in self._connections:
            if connection.connection is not None:
                connection.connection.close()
            del connections[connection.alias]
        self._connections = connections.all()


class LockedWorker(threading.Thread):
    """Reads, handles and settles each message in one transaction, its row locked meanwhile.

    No lease can run out, and a crash gives the message back at once. The price: a transaction as
    long as the handler, one connection a worker, no batches, and deliveries that end in a crash
    are not counted.
    """

    def __init__(
        self,
        subscription: Subscription,
        execution: Execution,
        reserve: Callable[[Subscription], bool],
    ) -> None:
        super().__init__(name=f"pgqueue-locked-{subscription.name}", daemon=True)
        self._subscription = subscription
        self._execution = execution
        self._reserve = reserve

    def run(self) -> None:
        wait, heard = 0.0, self._subscription.wakes
        try:
            while not self._subscription.stopping:
                seen = self._subscription.wakes
                if seen != heard:
                    # More may follow without a notification: short waits again.
                    wait, heard = 0.0, seen
                try:
                    found = self._handle_one()
                    longest = self._subscription.handler.max_fetch_interval
                    wait = 0.0 if found else longer(wait, longest)
                    due = wait if found else self._next_due()
                except Exception as error:
                    found, wait, due = False, 1.0, 1.0
                    signals.database_failed.send_robust(
                        self.name, operation="locked", error=error, wait=wait
                    )
                    connections.close_all()
                close_old()
                if not found:
                    self._wait(seen, min(wait, due))
        finally:
            connections.close_all()

    def _handle_one(self) -> bool:
        subscription = self._subscription
        with limited():
            queue = Queue.objects.resolve(subscription.name, subscription.queue.alias)
        subscription.queue = queue
        if queue.paused or not self._reserve(subscription):
            return False
        outcomes = None
        try:
            with limited() as limit, transaction.atomic(using=queue.alias):
                messages = subscription.lease(1)
                for message in messages:
                    message.lease_until = float("inf")
                    found = self._execution.run_locked(message, threading.get_ident(), limit)
                    Message.objects.settle(
                        queue,
                        {m.receipt: o for m, o in found},
                        process_id=subscription.process_id(),
                    )
            outcomes = found if messages else None
        finally:
            if outcomes is None:
                subscription.count(fetched=-1)
        if outcomes is not None:
            announce(subscription, outcomes)
        return outcomes is not None

    def _next_due(self) -> float:
        with limited():
            due = Message.objects.next_due(self._subscription.queue)
        # Overdue and not to be had: another has the row locked.
        return due if due > NOW else float("inf")

    def _wait(self, seen: int, seconds: float) -> None:
        with self._subscription.available:
            if self._subscription.wakes == seen and not self._subscription.stopping:
                self._subscription.available.wait(seconds)


class AsyncWorkers(threading.Thread):
    """An event loop on which the async handlers of one subscription run, many at once."""

    def __init__(self, subscription: Subscription, execution: Execution) -> None:
        super().__init__(name=f"pgqueue-async-{subscription.name}", daemon=True)
        self._subscription = subscription
        self._execution = execution

    def run(self) -> None:
        asyncio.run(self._work_together())

    async def _work_together(self) -> None:
        loop = asyncio.get_running_loop()
        filled = asyncio.Event()

        def wake() -> None:
            # The loop may have ended just now.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(filled.set)

        self._subscription.on_filled = wake
        theirs = await sync_to_async(connections.all)()
        housekeeping = loop.create_task(self._look_after_connections())
        try:
            await asyncio.gather(
                *(self._work(loop, filled, theirs) for _ in range(self._subscription.workers))
            )
        finally:
            self._subscription.on_filled = None
            housekeeping.cancel()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(sync_to_async(connections.close_all)(), 1.0)

    async def _look_after_connections(self) -> None:
        """Close old connections, in the thread where the queries of async code run."""
        while True:
            await asyncio.sleep(_HOUSEKEEPING)
            await sync_to_async(close_old_connections)()

    async def _work(
        self, loop: asyncio.AbstractEventLoop, filled: asyncio.Event, theirs: Sequence[Any]
    ) -> None:
        subscription, handler = self._subscription, self._subscription.handler
        size = handler.run_size
        while not subscription.stopping:
            messages = subscription.take_now(size)
            if messages:
                # A task of its own, so that a timeout ends the handler and not this worker.
                run = loop.create_task(self._execution.arun(messages))
                await asyncio.wait([run])
                if (running := run.result()) is not None and running.failed:
                    # So that the next one does not find a broken connection. After a timeout the
                    # thread of all async queries may wait for an answer that never comes.
                    with limited(*(theirs if running.overdue else [None])):
                        await sync_to_async(close_old_connections)()
                continue
            filled.clear()
            if not subscription.buffer:
                try:
                    await asyncio.wait_for(filled.wait(), 1.0)
                except asyncio.TimeoutError:
                    continue
