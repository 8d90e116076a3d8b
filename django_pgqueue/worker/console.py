"""The output of a running consumer: databases and queues, each queue's state, and final counts."""

from __future__ import annotations

import logging
import shutil
import time
from typing import TYPE_CHECKING, Any

from django.db import Error, connections

from django_pgqueue.errors import PgQueueError
from django_pgqueue.models import Message

if TYPE_CHECKING:
    from django_pgqueue.worker.consumer import Consumer
    from django_pgqueue.worker.subscription import Subscription

logger = logging.getLogger("django_pgqueue.consumer")

_LOG_EVERY = 30.0


class Console:
    """Shows a line for each queue: redraws it on a terminal, or logs it elsewhere."""

    def __init__(self, consumer: Consumer, out: Any, *, live: bool = True) -> None:
        self._consumer = consumer
        self._out = out
        self._live = live and out.isatty()
        self._drawn = 0
        self._before: dict[Subscription, tuple[float, int]] = {}
        self._logged = time.monotonic()

    def begin(self) -> None:
        """Print the queues, workers and databases, and whether the consumer listens or polls."""
        subscriptions = self._consumer.subscriptions
        how = "listening" if self._consumer.options.listen else "polling"
        for alias in sorted({s.queue.alias for s in subscriptions}):
            theirs = [f"{s.name} ({_workers(s)})" for s in subscriptions if s.queue.alias == alias]
            queues = ", ".join(theirs)
            self._out.write(f"Consuming {queues} from database {alias!r} ({_place(alias)}), {how}.")
        self._out.flush()

    def show(self) -> None:
        """Draw the lines, or log them every 30 seconds."""
        if self._live:
            self._draw([self._line(s) for s in self._consumer.subscriptions])
        elif time.monotonic() - self._logged >= _LOG_EVERY:
            self._logged = time.monotonic()
            for subscription in self._consumer.subscriptions:
                logger.info("%s", self._line(subscription))

    def finish(self) -> None:
        """Print the counts, and why the process stopped."""
        if self._live:
            self._draw([])
        for subscription in self._consumer.subscriptions:
            counts = subscription.counts
            self._out.write(
                f"{subscription.name}: {counts.completed:,} completed, {counts.retried:,} retried, "
                f"{counts.failed + counts.exhausted:,} failed"
                f"{f', {counts.cancelled:,} cancelled' if counts.cancelled else ''}"
                f"{f', {counts.expired:,} expired' if counts.expired else ''}"
                f"{f', {counts.lost:,} lost to others' if counts.lost else ''}"
                f" in {self._consumer.uptime:,.1f} s"
            )
        self._out.write(f"Stopped: {self._consumer.reason}.")

    def _line(self, subscription: Subscription) -> str:
        rate, counts = self._rate(subscription), subscription.counts
        line = (
            f"{subscription.name}: {rate:,.0f}/s, {len(subscription.running):,} running, "
            f"{counts.failed + counts.exhausted:,} failed"
        )
        try:
            metrics = Message.objects.metrics(subscription.queue)
        except (Error, PgQueueError) as error:
            connections.close_all()
            return f"{line}, database: {str(error).splitlines()[0]}"
        age = f", oldest {metrics.oldest_age:,.0f} s" if metrics.oldest_age is not None else ""
        about = "" if metrics.exact else "about "
        return (
            f"{line}, {about}{metrics.ready:,} ready, {metrics.in_flight:,} in flight, "
            f"{metrics.delayed:,} delayed{age}"
        )

    def _rate(self, subscription: Subscription) -> float:
        now, counts = time.monotonic(), subscription.counts
        done = counts.completed + counts.retried + counts.failed
        before, done_before = self._before.get(subscription, (self._consumer.started, 0))
        self._before[subscription] = now, done
        return (done - done_before) / max(now - before, 1e-6)

    def _draw(self, lines: list[str]) -> None:
        width = shutil.get_terminal_size().columns - 1
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        self._out.write(
            up + "\r\x1b[J" + "\n".join(line[:width] for line in lines),
            ending="\n" if lines else "",
        )
        self._drawn = len(lines)
        self._out.flush()


def _workers(subscription: Subscription) -> str:
    kind = "task" if subscription.handler.is_async else "worker"
    return f"{subscription.workers} {kind}{'' if subscription.workers == 1 else 's'}"


def _place(alias: str) -> str:
    """The name and the host of a database, according to its connection."""
    connection = connections[alias]
    connection.ensure_connection()
    info = connection.connection.info
    return f"{info.dbname} on {info.host or 'a local socket'}"
