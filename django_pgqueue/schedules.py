"""The @schedule decorator, and the thread of each consumer process that sends what is due."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django.conf import settings
from django.db import close_old_connections, connections

from django_pgqueue import arguments, cron, signals
from django_pgqueue.errors import InvalidArgument, PgQueueError
from django_pgqueue.handlers import handler_of
from django_pgqueue.models import Missed, Queue, Schedule

__all__ = ["connect", "declared", "schedule", "synchronize"]

T = TypeVar("T")
logger = logging.getLogger("django_pgqueue")

#: Seconds between two looks at most, and at least: for what was changed meanwhile.
_LONGEST, _SHORTEST = 10.0, 0.05


@dataclass(frozen=True)
class Declaration:
    """A consumer or task with ``@schedule``, and its times."""

    name: str
    target: Any = field(compare=False)
    values: Mapping[str, Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def save(self, aliases: Iterable[str]) -> bool:
        """Make or change its row, if its queue is in one of these databases."""
        values: dict[str, Any] = {
            **self.values,
            "time_zone": self.values["time_zone"] or settings.TIME_ZONE,
        }
        if _is_task(self.target):
            message_of = getattr(self.target.get_backend(), "message_of", None)
            if message_of is None:
                return False  # a backend that has no queues, as in tests
            message = message_of(self.target, list(self.args), dict(self.kwargs))
            queue_name, using, values["body"] = message.queue, message.using, message.body
            values["priority"] = message.priority
        else:
            try:
                handler = handler_of(self.target)
            except LookupError as error:
                raise InvalidArgument(
                    f"@schedule on {self.name} needs a queue: put @consumer or @task on it too"
                ) from error
            queue_name, using = handler.queue, handler.using
        alias = Queue.objects.database(using)
        if alias not in aliases:
            return False
        return Schedule.objects.declare(self.name, queue_name, using=alias, **values)


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
    name: str | None = None,
) -> Callable[[T], T]:
    """Have a consumer's queue, or a task, sent a message at set times.

    Any running consumer process sends it: once for each tick, however many there are. The first
    that starts makes a row of :class:`~django_pgqueue.models.Schedule`, where it can be changed
    and paused without a restart.

    ``cron_expression``
        five fields, as ``"0 4 * * *"``, in the time zone ``tz`` (``TIME_ZONE``)
    ``every``
        in place of it: seconds or a timedelta between two messages
    ``missed`` ("once")
        what becomes of ticks at which no consumer ran: ``"once"`` one message for all of them,
        ``"all"`` one for each, ``"skip"`` none that is more than a minute late
    ``body``, ``priority``
        of the message to a consumer
    ``args``, ``kwargs``
        of a task, which brings its own priority
    ``name``
        of the row (the function's path); needed for a second schedule of one function

    ::

        @schedule("0 4 * * *", tz="Europe/Berlin", body={"report": "sales"})
        @consumer("reports")
        def report(message):
            ...

    Raises InvalidArgument for what makes no sense, and without cronsim for a cron expression.
    """
    interval = None if every is None else arguments.duration(every, "every")
    if bool(cron_expression) == (interval is not None):
        raise InvalidArgument('give a cron expression, as @schedule("0 4 * * *"), or every=')
    if interval is not None and interval < dt.timedelta(seconds=1):
        raise InvalidArgument(f"every must be at least a second, not {every!r}")
    if missed not in Missed.values:
        raise InvalidArgument(f"missed is one of {', '.join(Missed.values)}, not {missed!r}")
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
    }
    if tz is not None:
        cron.zone(tz)

    def declare(target: T) -> T:
        if _is_task(target):
            if body is not None:
                raise InvalidArgument("a task has args and kwargs, and no body")
            path: str = target.module_path  # type: ignore[attr-defined]
        else:
            if args or kwargs:
                raise InvalidArgument("args and kwargs are a task's; a consumer has a body")
            path = f"{target.__module__}.{target.__qualname__}"  # type: ignore[attr-defined]
        given = Declaration(name or path, target, values, args, kwargs or {})
        known = _declared.get(given.name)
        # The same again is a module that was imported twice.
        if known is not None and known != given:
            raise InvalidArgument(
                f"there is a schedule {given.name!r} already: give the second one a name, as "
                f'@schedule(..., name="{given.name}.2")'
            )
        _declared[given.name] = given
        return target

    return declare


def declared() -> list[Declaration]:
    """All with ``@schedule``, in the modules imported so far."""
    return list(_declared.values())


def synchronize(aliases: Iterable[str]) -> int:
    """Make and change rows as the code declares, in these databases; how many changed.

    One that cannot be saved is logged and keeps no other from it.
    """
    changed = 0
    for declaration in declared():
        try:
            changed += declaration.save(aliases)
        except PgQueueError as error:
            logger.error("schedule %s was not set up: %s", declaration.name, error)
    return changed


class Ticker(threading.Thread):
    """Sends what is due, in the databases of one consumer process, until it is told to stop."""

    def __init__(self, aliases: Iterable[str]) -> None:
        super().__init__(name="pgqueue-schedules", daemon=True)
        self._aliases = sorted(aliases)
        self._stopping = threading.Event()
        self._synchronized: set[str] = set()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                wait = min(self._look(alias) for alias in self._aliases)
                if wait >= _LONGEST / 2:
                    connections.close_all()
                else:
                    close_old_connections()
                self._stopping.wait(max(wait, _SHORTEST))
        finally:
            connections.close_all()

    def _look(self, alias: str) -> float:
        """Send what is due; the seconds until there may be more."""
        try:
            if alias not in self._synchronized:
                synchronize([alias])
                self._synchronized.add(alias)
            Schedule.objects.send_due(using=alias)
            wait = Schedule.objects.seconds_until_next(using=alias)
        except Exception as error:
            connections[alias].close()
            signals.database_failed.send_robust(
                self.name, operation="schedule", error=error, wait=_LONGEST
            )
            return _LONGEST
        return _LONGEST if wait is None else min(wait, _LONGEST)


_tickers: dict[int, Ticker] = {}


def connect() -> None:
    """Start a ticker with each consumer process, and stop it with it."""
    signals.consumer_started.connect(_start, dispatch_uid="django_pgqueue.schedules")
    signals.consumer_stopping.connect(_stop, dispatch_uid="django_pgqueue.schedules")


def _start(consumer: Any, **kwargs: Any) -> None:
    # One that drains is to come to an end.
    if not consumer.options.drain:
        ticker = Ticker({s.queue.alias for s in consumer.subscriptions})
        _tickers[id(consumer)] = ticker
        ticker.start()


def _stop(consumer: Any, **kwargs: Any) -> None:
    ticker = _tickers.pop(id(consumer), None)
    if ticker is not None:
        ticker.stop()
        ticker.join(1.0)


def _is_task(target: Any) -> bool:
    return hasattr(target, "module_path") and hasattr(target, "get_backend")
