"""The presence loop: writes this process's heartbeat and history, and rescues the leases of dead
processes."""

from __future__ import annotations

import datetime as dt

from django_pgqueue import __version__, signals
from django_pgqueue.history.note import Recorder
from django_pgqueue.models import Process
from django_pgqueue.worker.loop import Loop, for_each
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.subscription import Subscription

#: Maximum messages per queue that ``working_on`` names.
_NAMED = 20


class Presence(Loop):
    """Keeps a row of :class:`Process` for this process in each database."""

    def __init__(self, subscriptions: list[Subscription], options: Options) -> None:
        super().__init__("presence", limited=True)
        self._subscriptions: dict[str, list[Subscription]] = {}
        for subscription in subscriptions:
            self._subscriptions.setdefault(subscription.queue.alias, []).append(subscription)
        self._heartbeat = options.heartbeat
        self._dead_after = dt.timedelta(seconds=options.dead_after)
        self._processes: dict[str, Process] = {}
        self._recorders = {name: Recorder(name, own) for name, own in self._subscriptions.items()}
        #: Whether the process is stopping. The heartbeat records it in the row.
        self.leaving = False

    def register(self) -> None:
        """Insert the rows, before anything is fetched."""
        for alias in self._subscriptions:
            self._register(alias)

    def _register(self, alias: str) -> None:
        """Insert the row in one database, and pass its id to the subscriptions there."""
        subscriptions = self._subscriptions[alias]
        self._processes[alias] = process = Process.objects.register(
            [s.name for s in subscriptions], version=__version__, using=alias
        )
        for subscription in subscriptions:
            subscription.process_id = process.pk

    def tick(self) -> float:
        for_each(list(self._processes), self._beat)
        return self._heartbeat

    def _beat(self, alias: str) -> None:
        process, subscriptions = self._processes[alias], self._subscriptions[alias]
        working_on = {
            s.name: [m.id for run in list(s.running.values()) for m in run.messages][:_NAMED]
            for s in subscriptions
            if s.running
        }
        quiet = Process.objects.beat(process, working_on, self.leaving)
        if quiet is None:
            # This process was silent for so long that another one rescued its leases. Its running
            # handlers cannot settle any more: their receipts are old.
            self._register(alias)
            for subscription in subscriptions:
                subscription.release(subscription.buffer.take_all())
        for subscription in subscriptions:
            subscription.quiet = bool(quiet)
        for worker, count in Process.objects.reap(self._dead_after, using=alias).items():
            signals.leases_rescued.send_robust(self.name, count=count, worker=worker)
        self._recorders[alias].write(self._processes[alias].pk)

    def leave(self) -> None:
        """Write the last counts, and delete this process's rows.

        Called after its messages were settled or released.
        """
        for_each(self._processes, self._leave)

    def _leave(self, alias: str) -> None:
        process = self._processes[alias]
        self._recorders[alias].write(process.pk, now=True)
        Process.objects.using(alias).filter(pk=process.pk).delete()
