"""The workers: threads for plain handlers, an event loop for async ones."""

from __future__ import annotations

import asyncio
import threading
import time

from django.db import close_old_connections, connections, transaction

from django_pgqueue import signals
from django_pgqueue.models import Message
from django_pgqueue.runtime.execution import Execution
from django_pgqueue.runtime.settler import announce
from django_pgqueue.runtime.subscription import Running, Subscription

__all__ = ["AsyncWorkers", "LockedWorker", "Worker"]

#: How often a busy thread looks after its connections, in seconds.
_HOUSEKEEPING = 1.0


class Worker(threading.Thread):
    """Takes messages of one subscription and runs its handler on them."""

    def __init__(self, subscription: Subscription, execution: Execution) -> None:
        super().__init__(name=f"pgqueue-work-{subscription.name}", daemon=True)
        self._subscription = subscription
        self._execution = execution
        self._housekept = time.monotonic()
        self._pooled = any(
            databases.get("OPTIONS", {}).get("pool") for databases in connections.settings.values()
        )

    def run(self) -> None:
        handler = self._subscription.handler
        size = handler.batch_size if handler.batch else 1
        thread = threading.get_ident()
        try:
            while messages := self._take(size):
                running = self._execution.run(messages, thread)
                if running is not None and running.abandoned:
                    # Somebody else has taken this thread's place.
                    return
                self._look_after_connections(running)
        finally:
            connections.close_all()

    def _take(self, size: int) -> list[Message]:
        messages = self._subscription.take_now(size)
        if not messages:
            # Idle: what Django does at the end of a request.
            close_old_connections()
            messages = self._subscription.take(size)
        return messages

    def _look_after_connections(self, running: Running | None) -> None:
        """Return pooled connections after each handler, and close old or broken ones.

        CONN_MAX_AGE=0 means a connection for each request; a busy worker's request lasts a
        second, since connecting for each message would cost more than handling it.
        """
        if self._pooled:
            for connection in connections.all(initialized_only=True):
                if connection.settings_dict.get("OPTIONS", {}).get("pool"):
                    connection.close()
        now = time.monotonic()
        if running is None or running.failed or now - self._housekept > _HOUSEKEEPING:
            self._housekept = now
            close_old_connections()


class LockedWorker(threading.Thread):
    """Reads, handles and settles each message in one transaction, its row locked meanwhile.

    No lease can run out, and a crash gives the message back at once. The price: a transaction as
    long as the handler, one connection a worker, no batches, and deliveries that end in a crash
    are not counted.
    """

    def __init__(
        self, subscription: Subscription, execution: Execution, stopping: threading.Event
    ) -> None:
        super().__init__(name=f"pgqueue-locked-{subscription.name}", daemon=True)
        self._subscription = subscription
        self._execution = execution
        self._stopping = stopping

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    found = self._handle_one()
                except Exception as error:
                    signals.database_failed.send_robust(
                        self.name, operation="locked", error=error, wait=1.0
                    )
                    connections.close_all()
                    found = False
                if not found:
                    close_old_connections()
                    self._wait()
        finally:
            connections.close_all()

    def _handle_one(self) -> bool:
        subscription, handler = self._subscription, self._subscription.handler
        if subscription.queue.paused:
            return False
        settled = None
        with transaction.atomic(using=subscription.queue.alias):
            messages = Message.objects.lease(
                subscription.queue, qty=1, max_deliveries=handler.max_deliveries
            )
            if messages:
                subscription.fetched += 1
                messages[0].lease_until = float("inf")
                settled = self._execution.run_locked(messages[0])
        if settled is not None:
            announce(subscription, [settled], [])
        return bool(messages)

    def _wait(self) -> None:
        with self._subscription.available:
            self._subscription.available.wait(self._subscription.handler.max_fetch_interval)


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
            if not loop.is_closed():
                loop.call_soon_threadsafe(filled.set)

        self._subscription.on_filled = wake
        try:
            await asyncio.gather(
                *(self._work(loop, filled) for _ in range(self._subscription.workers))
            )
        finally:
            self._subscription.on_filled = None

    async def _work(self, loop: asyncio.AbstractEventLoop, filled: asyncio.Event) -> None:
        subscription, handler = self._subscription, self._subscription.handler
        size = handler.batch_size if handler.batch else 1
        while not subscription.stopping:
            messages = subscription.take_now(size)
            if messages:
                # A task of its own, so that a timeout ends the handler and not this worker.
                run = loop.create_task(self._execution.arun(messages))
                await asyncio.wait([run])
                continue
            filled.clear()
            if not subscription.buffer:
                try:
                    await asyncio.wait_for(filled.wait(), 1.0)
                except asyncio.TimeoutError:
                    continue
