"""The @schedule decorator, and the loop of each consumer process that sends due schedules."""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

from django.conf import settings
from django.db import Error, close_old_connections, connections

from django_pgqueue import signals
from django_pgqueue.engine import arguments, cron
from django_pgqueue.engine.times import moment
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.handlers import handler_of
from django_pgqueue.handlers.bodies import name_of
from django_pgqueue.models import Missed, Process, Queue, Schedule
from django_pgqueue.worker.loop import Loop, for_each

__all__ = ["schedule"]

T = TypeVar("T")
logger = logging.getLogger("django_pgqueue")

#: Maximum and minimum seconds between two checks for due ticks and changed schedules.
_LONGEST, _SHORTEST = 10.0, 0.05
#: A schedule ends once no process has declared it for this many seconds: longer than a restart.
_GRACE = 60.0


@dataclass(frozen=True)
class Declaration:
    """A schedule that the code declares with ``@schedule`` on a consumer or task."""

    name: str
    target: Any = field(compare=False)
    values: Mapping[str, Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The import path of the function."""
        return _path(self.target)

    @property
    def has_queue(self) -> bool:
        """Whether the function has @consumer or @task, too."""
        try:
            return _is_task(self.target) or bool(handler_of(self.target))
        except LookupError:
            return False

    def save(self, alias: str) -> bool:
        """Create or update the row, if the queue is in this database. Returns whether it changed.

        Raises InvalidArgument for a function without a queue.
        """
        if not self.has_queue:
            raise InvalidArgument(
                f"@schedule on {self.path} needs a queue: put @consumer or @task on it too"
            )
        values = {**self.values, "time_zone": self.values["time_zone"] or settings.TIME_ZONE}
        if _is_task(self.target):
            task, backend = self.target, self.target.get_backend()
            if not hasattr(backend, "message_of"):
                return False  # a backend without queues, as in tests
            body, group, unique = backend.message_of(task, list(self.args), dict(self.kwargs))
            queue, using = task.queue_name, backend.database
            until, expires = getattr(task, "until", None), getattr(task, "expires", None)
            values |= {"body": body, "priority": task.priority, "group_key": group or ""}
            values |= {"unique_key": unique or "", "until": until or ""}
            values["expires"] = values["expires"] or arguments.span(expires, "expires")
        else:
            handler = handler_of(self.target)
            queue, using = handler.queue, handler.using
        if Queue.objects.database(using) != alias:
            return False
        return Schedule.objects.declare(self.name, queue, using=alias, **values)


_declared: dict[str, Declaration] = {}


def schedule(
    cron_expression: str = "",
    *,
    every: float | dt.timedelta | None = None,
    tz: str | None = None,
    missed: str = "once",
    body: Any = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    priority: int = 0,
    expires: float | dt.timedelta | None = None,
    group: str | None = None,
    unique: str | None = None,
    until: Literal["started", "done"] | None = None,
    name: str | None = None,
) -> Callable[[T], T]:
    """Send a message to a consumer's queue, or enqueue a task, at set times.

    Any running consumer process sends the message. Each tick is sent once, however many processes
    run. The first process makes a row of :class:`~django_pgqueue.models.Schedule`, which can be
    changed and paused without a restart.

    ``cron_expression``
        five fields, such as ``"0 4 * * *"``, in the time zone ``tz`` (default: ``TIME_ZONE``)
    ``every``
        instead of an expression: seconds or a timedelta between two messages
    ``missed`` ("once")
        ticks at which no consumer ran: ``"once"`` sends one message for all of them, ``"all"`` one
        for each, ``"skip"`` none that is more than a minute late
    ``body``, ``priority``, ``group``
        the body, priority and group of the message to a consumer
    ``unique``, ``until``
        while a message to a consumer holds the key ``unique``, no second one is sent. ``until`` is
        how long it holds the key: until it has started (``"started"``), until it is done
        (``"done"``), or for the queue's window (None)
    ``args``, ``kwargs``
        the arguments of a task. Its ``priority``, ``group``, ``unique`` and ``until`` are its own
    ``expires``
        seconds (at least one) or a timedelta: a message is not handled later than this after it was
        sent (default: the task's own; None: never expires)
    ``name``
        the row's name (default: the function's path); a function's second schedule needs one

    ::

        @schedule("0 4 * * *", tz="Europe/Berlin", body={"report": "sales"})
        @consumer("reports")
        def report(message):
            ...

    Raises InvalidArgument for invalid values, and for a cron expression without cronsim.
    """
    interval = arguments.span(every, "every")
    if bool(cron_expression) == (interval is not None):
        raise InvalidArgument(
            'pass either a cron expression, such as @schedule("0 4 * * *"), or every='
        )
    if missed not in Missed.values:
        raise InvalidArgument(f"missed must be one of {', '.join(Missed.values)}, not {missed!r}")
    if cron_expression:
        cron.check(cron_expression, tz or "UTC")
    arguments.json_text(body)
    values = {
        "cron": cron_expression,
        "interval": interval,
        "time_zone": tz,
        "missed": missed,
        "body": body,
        "priority": arguments.priority(priority),
        "expires": arguments.span(expires, "expires"),
        "group_key": arguments.key(group, "group") or "",
        "unique_key": arguments.key(unique, "unique") or "",
        "until": until or "",
    }
    if until not in (None, "started", "done"):
        raise InvalidArgument(f'until must be "started", "done" or None, not {until!r}')
    if until and not unique:
        raise InvalidArgument("until needs unique=: pass both, or neither")
    if tz is not None:
        cron.zone(tz)

    def declare(target: T) -> T:
        if _is_task(target):
            if body is not None:
                raise InvalidArgument("a task has no body: pass args and kwargs")
        elif args or kwargs:
            raise InvalidArgument("args and kwargs are for tasks: pass body to a consumer")
        given = Declaration(name or _path(target), target, values, args, kwargs or {})
        known = _declared.get(given.name)
        # An identical declaration: its module was imported twice.
        if known is not None and known != given:
            raise InvalidArgument(
                f"there is already a schedule {given.name!r}: give the second one its own name, "
                f'such as @schedule(..., name="{given.name}.2")'
            )
        _declared[given.name] = given
        return target

    return declare


def declared() -> list[Declaration]:
    """Return all schedules that the modules imported so far declare."""
    return list(_declared.values())


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
    ) -> None:
        """``queues``: the ids of the queues that the process consumes, by database alias.
        ``process_id`` takes an alias, and returns the id of the process's row there, or None."""
        super().__init__("schedules")
        self._queues = queues
        self._process_id = process_id
        #: The time when the declarations were last saved, by database.
        self._declared_at: dict[str, float] = {}
        #: The names of the declarations that were saved, by database.
        self._saved: dict[str, list[str]] = {}
        #: The time since which no process has declared a schedule, by database and name.
        self._undeclared: dict[str, dict[str, float]] = {}

    def tick(self) -> float:
        wait = min(self._look(alias) for alias in self._queues)
        if wait >= _LONGEST / 2:
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

        def send() -> None:
            try:
                Schedule.objects.send_due(using=alias)
            except Exception:
                with suppress(Error):
                    plan(overdue=False)
                raise
            plan(overdue=True)

        steps: list[Callable[[], None]] = [send]
        if time.monotonic() - self._declared_at.get(alias, -_LONGEST) >= _LONGEST:
            steps.insert(0, partial(self._declare, alias))
        try:
            for_each(steps, lambda step: step())
        except Exception as error:
            connections[alias].close()
            signals.database_failed.send_robust(
                self.name, operation="schedule", error=error, wait=_LONGEST
            )
        return wait

    def _declare(self, alias: str) -> None:
        """Save declared schedules, end undeclared ones, and correct ticks that are too late."""
        self._declared_at[alias] = time.monotonic()
        names = sorted(_declared)
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
            signals.schedule_ended.send_robust(ended.queue.name, schedule=ended)


_tickers: dict[int, Ticker] = {}


def connect() -> None:
    """Connect receivers that run a ticker in each consumer process, from its start to its stop."""
    signals.consumer_started.connect(_start, dispatch_uid="django_pgqueue.schedules")
    signals.consumer_stopping.connect(_stop, dispatch_uid="django_pgqueue.schedules")


def _start(consumer: Any, **kwargs: Any) -> None:
    if consumer.options.drain:
        return  # a consumer that drains its queues would not end while ticks are sent
    theirs: dict[str, list[Any]] = {}
    for subscription in consumer.subscriptions:
        theirs.setdefault(subscription.queue.alias, []).append(subscription)
    queues = {alias: [each.queue.pk for each in found] for alias, found in theirs.items()}
    ticker = Ticker(queues, lambda alias: theirs[alias][0].process_id)
    _tickers[id(consumer)] = ticker
    ticker.start()


def _stop(consumer: Any, **kwargs: Any) -> None:
    ticker = _tickers.pop(id(consumer), None)
    if ticker is not None:
        ticker.end()


def _path(target: Any) -> str:
    if _is_task(target):
        return str(target.module_path)
    return name_of(target)


def _is_task(target: Any) -> bool:
    return hasattr(target, "module_path") and hasattr(target, "get_backend")
