"""The presence loop: writes this process's heartbeat and its history, and reaps the rows of dead
processes."""

from __future__ import annotations

import datetime as dt

from django.db import connections

from django_pgqueue import __version__, signals
from django_pgqueue.history.note import Recorder
from django_pgqueue.models import Process
from django_pgqueue.worker.failures import Failures
from django_pgqueue.worker.loop import Loop
from django_pgqueue.worker.subscription import Subscription

__all__ = ["Presence"]

#: The most messages of each queue that are named in ``working_on``.
_NAMED = 20


class Presence(Loop):
    """One row in each database, with a heartbeat."""

    def __init__(
        self,
        subscriptions: list[Subscription],
        *,
        heartbeat: float,
        dead_after: float,
    ) -> None:
        super().__init__("presence", limited=True)
        self._subscriptions = subscriptions
        self._heartbeat = heartbeat
        self._dead_after = dt.timedelta(seconds=dead_after)
        self._processes: dict[str, Process] = {}
        self._recorders: dict[str, Recorder] = {}
        self.leaving = False

    def register(self) -> None:
        """Make the rows, before anything is fetched."""
        for alias in {s.queue.alias for s in self._subscriptions}:
            self._recorders[alias] = Recorder(alias, self._register(alias))

    def _register(self, alias: str) -> list[Subscription]:
        """Make the row in one database; returns the subscriptions there, which get its id."""
        mine = [s for s in self._subscriptions if s.queue.alias == alias]
        self._processes[alias] = process = Process.objects.register(
            [s.name for s in mine], version=__version__, using=alias
        )
        for subscription in mine:
            subscription.process_id = process.pk
        return mine

    def worker(self, alias: str) -> int | None:
        """The id of this process's row, which marks its leases in that database."""
        process = self._processes.get(alias)
        return process.pk if process is not None else None

    def tick(self) -> float:
        failures = Failures()
        for alias in list(self._processes):
            with failures.of(alias):
                self._beat(alias)
                self._recorders[alias].write(self._processes[alias].pk)
        failures.end()
        return self._heartbeat

    def _beat(self, alias: str) -> None:
        process = self._processes[alias]
        mine = [s for s in self._subscriptions if s.queue.alias == alias]
        quiet = Process.objects.beat(process, _working_on(mine), self.leaving)
        if quiet is None:
            # Its row was reaped after too long a silence, and its leases were given back. What
            # runs is fenced by its receipts.
            for subscription in self._register(alias):
                subscription.give_back(subscription.buffer.take_back())
        for subscription in mine:
            subscription.quiet = bool(quiet)
        for worker, count in Process.objects.reap(self._dead_after, using=alias).items():
            signals.leases_rescued.send_robust(self.name, count=count, worker=worker)

    def leave(self) -> None:
        """Remove the rows once this process holds no message."""
        failures = Failures()
        for alias, process in self._processes.items():
            with failures.of(alias):
                self._recorders[alias].write(process.pk, now=True)
                Process.objects.using(alias).filter(pk=process.pk).delete()
        failures.end()
        connections.close_all()


def _working_on(subscriptions: list[Subscription]) -> dict[str, list[int]]:
    return {
        s.name: [m.id for running in list(s.running.values()) for m in running.messages][:_NAMED]
        for s in subscriptions
        if s.running
    }
