"""The ticker: the loop that sends due schedules, keeps declared ones, and counts batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial

from django.db import Error, close_old_connections, connections

from django_pgqueue import signals
from django_pgqueue.engine.times import moment
from django_pgqueue.models import Batch, Process, Schedule
from django_pgqueue.queues.batch import LOOKED
from django_pgqueue.schedules import Declaration, declared
from django_pgqueue.worker.announcer import send
from django_pgqueue.worker.batches import EndedBatches
from django_pgqueue.worker.loop import Loop, for_each

logger = logging.getLogger("django_pgqueue")

#: Maximum and minimum seconds between two checks for due ticks and changed schedules.
_LONGEST, _SHORTEST = 10.0, 0.05
#: A schedule ends once no process has declared it for this many seconds: longer than a restart.
_GRACE = 60.0
#: Seconds until the next look at batches, if one did not find all.
_LOOK_ON = 1.0


def synchronize(alias: str) -> int:
    """Create or update the rows of all declared schedules of one database.

    Returns how many changed. A schedule that cannot be saved does not prevent saving the others: an
    invalid declaration is logged, and the first database error is raised at the end.
    """
    changed = 0

    def save(declaration: Declaration) -> None:
        nonlocal changed
        try:
            changed += declaration.save(alias)
        except Error:
            raise
        except Exception as error:
            logger.error("schedule %s was not saved: %s", declaration.name, error)

    for_each(declared(), save)
    return changed


class Ticker(Loop):
    """Sends due schedules, in the databases of one consumer process."""

    def __init__(
        self,
        queues: Mapping[str, Collection[int]],
        process_id: Callable[[str], int | None] = lambda alias: None,
        batches: EndedBatches | None = None,
    ) -> None:
        """``queues``: the ids of the queues that the process consumes, by database alias.
        ``process_id`` takes an alias, and returns the id of the process's row there, or None.
        ``batches``: those whose members end in the process."""
        self._batches = batches or EndedBatches()
        super().__init__("schedules", awake=self._batches.awake)
        self._queues = queues
        self._process_id = process_id
        #: The time when the declarations were last saved, by database.
        self._declared_at: dict[str, float] = {}
        #: The names of the declarations that were saved, by database.
        self._saved: dict[str, list[str]] = {}
        #: The time since which no process has declared a schedule, by database and name.
        self._undeclared: dict[str, dict[str, float]] = {}
        #: When schedules, and batches that no end was noted of, are looked at next.
        self._look_at = 0.0

    def tick(self) -> float:
        if time.monotonic() >= self._look_at:
            now = time.monotonic()
            self._look_at = now + max(min(map(self._look, self._queues)), _SHORTEST)
        else:
            self.stopping.wait(self._batches.pause)
        has_counted = self._batches.count(self.name)
        wait = self._look_at - time.monotonic()
        if wait >= _LONGEST / 2 and not has_counted:
            connections.close_all()
        else:
            close_old_connections()
        return max(wait, _SHORTEST)

    def _look(self, alias: str) -> float:
        """Save declarations and send due schedules. Returns the seconds until the next call."""
        wait = _LONGEST

        def plan(*, overdue: bool) -> None:
            nonlocal wait
            soonest = Schedule.objects.seconds_until_next(using=alias, overdue=overdue)
            if soonest is not None:
                wait = min(soonest, _LONGEST)

        def send_due() -> None:
            try:
                Schedule.objects.send_due(using=alias)
            except Exception:
                with suppress(Error):
                    plan(overdue=False)
                raise
            plan(overdue=True)

        def look_at_batches() -> None:
            nonlocal wait
            if ids := Batch.objects.due(using=alias):
                self._batches.put(alias, ids)
            if len(ids) == LOOKED:  # there may be more
                wait = min(wait, _LOOK_ON)

        steps: list[Callable[[], None]] = [send_due, look_at_batches]
        if time.monotonic() - self._declared_at.get(alias, -_LONGEST) >= _LONGEST:
            steps.insert(0, partial(self._declare, alias))
        try:
            for_each(steps, lambda step: step())
        except Exception as error:
            connections[alias].close()
            send(
                signals.database_failed,
                self.name,
                operation="schedule",
                error=error,
                wait=_LONGEST,
            )
        return wait

    def _declare(self, alias: str) -> None:
        """Save declared schedules, end undeclared ones, and correct ticks that are too late."""
        self._declared_at[alias] = time.monotonic()
        names = sorted(each.name for each in declared())
        if (own := self._process_id(alias)) is not None:
            # Store the names first, so that no other process ends these schedules.
            rows = Process.objects.using(alias).filter(pk=own)
            rows.exclude(schedules=names).update(schedules=names)
        ended_rows = Schedule.objects.using(alias).filter(name__in=names, ended_at__isnull=False)
        if self._saved.get(alias) != names or ended_rows.exists():
            synchronize(alias)
            self._saved[alias] = names
        for mended in Schedule.objects.mend(using=alias):
            logger.warning(
                "the next tick of schedule %s was %s, which is too late: the server's clock was "
                "probably ahead. The next tick is now %s",
                mended.name,
                moment(mended.tick).isoformat(),
                mended.next_run_at.isoformat(),
                extra={"schedule": mended.name},
            )
        before, now = self._undeclared.get(alias, {}), time.monotonic()
        found = Schedule.objects.undeclared(names, self._queues[alias], using=alias)
        self._undeclared[alias] = {name: before.get(name, now) for name in found}
        over = [name for name, since in self._undeclared[alias].items() if now - since >= _GRACE]
        for ended in Schedule.objects.end(over, using=alias) if over else ():
            send(signals.schedule_ended, ended.queue.name, schedule=ended)
