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
from django_pgqueue.models.bound import bound_to
from django_pgqueue.worker.buffer import AsyncBuffer
from django_pgqueue.worker.connections import close_old, give_back_pooled, limited, uses_pools
from django_pgqueue.worker.endings import announce
from django_pgqueue.worker.execution import Execution
from django_pgqueue.worker.loop import after_failures
from django_pgqueue.worker.running import Running
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
        buffer, size = self._subscription.buffer, self._subscription.handler.run_size
        thread = threading.get_ident()
        # The thread's connections, which stay the same for its life.
        self._connections = connections.all()
        try:
            while True:
                messages = buffer.take(size)
                if not messages:
                    # Idle: Django does the same at the end of a request.
                    close_old()
                    messages = buffer.take(size, wait=True)
                if not messages:
                    return
                running = self._execution.run(messages, thread)
                if running is not None and running.abandoned:
                    # Another thread has taken its place.
                    return
                self._look_after_connections(running)
                if running is not None:
                    self._pause_if_it_never_ran(running)
        finally:
            connections.close_all()

    def _pause_if_it_never_ran(self, running: Running) -> None:
        """Wait if there was no connection: the next message would fail to run, too."""
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
        """Close connections after a handler left a transaction open: the next must not join it."""
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
        buffer = self._subscription.buffer
        wait, heard = 0.0, buffer.notices
        try:
            while not buffer.stopping:
                seen = buffer.notices
                if seen != heard:
                    # More may follow while notifications are throttled: restart with short waits.
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
                    buffer.wait_for_notice(seen, min(wait, due))
        finally:
            connections.close_all()

    def _handle_one(self) -> bool:
        subscription = self._subscription
        with limited():
            queue = subscription.refresh()
        if subscription.is_held or not self._reserve(subscription):
            return False
        outcomes = None
        try:
            with limited() as limit, transaction.atomic(using=queue.alias):
                messages = subscription.lease(1)
                for message in messages:
                    message.lease_until = float("inf")
                    found = self._execution.run_locked(message, threading.get_ident(), limit)
                    bound_to(queue).settle(
                        {m.receipt: o for m, o in found},
                        process_id=subscription.process_id,
                    )
            outcomes = found if messages else None
        finally:
            if outcomes is None:
                subscription.counts.add(fetched=-1)
        if outcomes is not None:
            announce(subscription, outcomes)
        return outcomes is not None

    def _next_due(self) -> float:
        with limited():
            due = bound_to(self._subscription.queue).next_due()
        # Overdue but not read: another transaction has locked the row.
        return due if due > NOW else float("inf")


class AsyncWorkers(threading.Thread):
    """An event loop on which the async handlers of one subscription run, many at once."""

    def __init__(self, subscription: Subscription, execution: Execution) -> None:
        super().__init__(name=f"pgqueue-async-{subscription.name}", daemon=True)
        self._subscription = subscription
        self._execution = execution

    def run(self) -> None:
        asyncio.run(self._work_together())

    async def _work_together(self) -> None:
        theirs = await sync_to_async(connections.all)()
        housekeeping = asyncio.create_task(self._look_after_connections())
        try:
            await asyncio.gather(*(self._work(theirs) for _ in range(self._subscription.workers)))
        finally:
            housekeeping.cancel()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(sync_to_async(connections.close_all)(), 1.0)

    async def _look_after_connections(self) -> None:
        """Close old connections, in the thread where the queries of async code run."""
        while True:
            await asyncio.sleep(_HOUSEKEEPING)
            await sync_to_async(close_old_connections)()

    async def _work(self, theirs: Sequence[Any]) -> None:
        buffer, size = self._subscription.buffer, self._subscription.handler.run_size
        assert isinstance(buffer, AsyncBuffer)
        while not buffer.stopping:
            messages = buffer.take(size)
            if not messages:
                await buffer.ready()
                continue
            # A task of its own, so that a timeout ends the handler and not this worker.
            run = asyncio.create_task(self._execution.arun(messages))
            await asyncio.wait([run])
            if (running := run.result()) is not None and running.failed:
                # So that the next one does not find a broken connection. After a timeout the
                # thread of all async queries may wait for an answer that never comes.
                with limited(*(theirs if running.overdue else [None])):
                    await sync_to_async(close_old_connections)()
