"""The presence loop: writes this process's heartbeat and history, and rescues the leases of dead
processes."""

from __future__ import annotations

import datetime as dt

from django_pgqueue import __version__, signals
from django_pgqueue.history.note import Recorder
from django_pgqueue.models import Process
from django_pgqueue.worker.announcer import send
from django_pgqueue.worker.connections import limited
from django_pgqueue.worker.loop import Loop
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.stacks import runs_of, stacks_of
from django_pgqueue.worker.subscription import Subscription

#: Maximum messages per queue that ``working_on`` names.
_NAMED = 20


class Presence(Loop):
    """Keeps the row of :class:`Process` for this process in one database.

    A consumer has one for each database, so that a silent database stops no other one's heartbeat.
    """

    operation = "presence"

    def __init__(self, alias: str, subscriptions: list[Subscription], options: Options) -> None:
        super().__init__(f"presence-{alias}", limited=True)
        self._alias = alias
        self._subscriptions = subscriptions
        self._heartbeat = options.heartbeat
        # After an error the next heartbeat is not late.
        self.failures.longest = options.heartbeat
        self._dead_after = options.dead_after
        self._process: Process | None = None
        self._recorder = Recorder(alias, subscriptions)
        #: Whether the process is stopping. The heartbeat records it in the row.
        self.leaving = False

    def register(self) -> None:
        """Insert the row, before anything is fetched, and pass its id to the subscriptions."""
        self._process = Process.objects.register(
            [s.name for s in self._subscriptions], version=__version__, using=self._alias
        )
        for subscription in self._subscriptions:
            subscription.process_id = self._process.pk

    def tick(self) -> float:
        self._beat()
        # Other processes' locks must not delay the next heartbeat for long.
        with limited(seconds=self._dead_after / 4):
            dead = Process.objects.reap(dt.timedelta(seconds=self._dead_after), using=self._alias)
            for worker, count in dead.items():
                send(signals.leases_rescued, self.name, count=count, worker=worker)
            assert self._process is not None
            self._recorder.write(self._process.pk)
        return self._heartbeat

    def _beat(self) -> None:
        subscriptions = self._subscriptions
        working_on = {
            s.name: [m.id for run in list(s.running.values()) for m in run.messages][:_NAMED]
            for s in subscriptions
            if s.running
        }
        assert self._process is not None
        asked = Process.objects.beat(
            self._process, working_on, runs_of(subscriptions), self.leaving
        )
        if asked is None:
            # This process was silent for so long that another one rescued its leases. Its running
            # handlers cannot settle any more: their receipts are old.
            self.register()
            for subscription in subscriptions:
                subscription.release(subscription.buffer.take_all())
        for subscription in subscriptions:
            subscription.quiet = asked is not None and asked[0]
        if asked is not None and asked[1]:
            Process.objects.write_stacks(self._process, stacks_of(subscriptions))

    def leave(self) -> None:
        """Write the last counts, and delete this process's row.

        Called after its messages were settled or released.
        """
        if self._process is not None:
            self._recorder.write(self._process.pk, now=True)
            Process.objects.using(self._alias).filter(pk=self._process.pk).delete()
