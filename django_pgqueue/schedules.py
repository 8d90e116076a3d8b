"""The @schedule decorator, and the schedules that it declared."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, TypeVar

from django.conf import settings

from django_pgqueue.engine import arguments
from django_pgqueue.engine.habits import SCHEDULE, unexpected
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.handlers import handler_of
from django_pgqueue.handlers.bodies import name_of
from django_pgqueue.models import Queue, Schedule

__all__ = ["schedule"]

T = TypeVar("T")


@dataclass(frozen=True)
class Declaration:
    """A schedule that the code declares with ``@schedule`` on a consumer or task."""

    name: str
    target: Any = field(compare=False)
    values: Mapping[str, Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not is_task(self.target):
            if self.args or self.kwargs:
                raise InvalidArgument("args and kwargs are for tasks: pass body to a consumer")
        elif self.values["body"] is not None:
            raise InvalidArgument("a task has no body: pass args and kwargs")

    @property
    def path(self) -> str:
        """The import path of the function."""
        return _path(self.target)

    @property
    def has_queue(self) -> bool:
        """Whether the function has @consumer or @task, too."""
        try:
            return is_task(self.target) or bool(handler_of(self.target))
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
        if is_task(self.target):
            if not hasattr(self.target.get_backend(), "message_of"):
                return False  # a backend without queues, as in tests
            queue, using, message = message_of(self.target, self.args, self.kwargs)
            values |= {**message, "expires": values["expires"] or message["expires"]}
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
    **unknown: NoReturn,
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
    if unknown:
        raise unexpected(schedule, unknown, SCHEDULE)
    if not isinstance(cron_expression, str):
        raise InvalidArgument(
            f'a cron expression is text, such as @schedule("0 4 * * *"), not {cron_expression!r}. '
            f"A length of time is passed by name: @schedule(every=30)"
        )
    interval = arguments.span(every, "every")
    if bool(cron_expression) == (interval is not None):
        raise InvalidArgument(
            'pass either a cron expression, such as @schedule("0 4 * * *"), or every='
        )
    values: dict[str, Any] = {
        "cron": cron_expression,
        "interval": interval,
        "time_zone": tz,
        "missed": missed,
        "body": body,
        "priority": priority,
        "expires": arguments.span(expires, "expires"),
        "group_key": arguments.key(group, "group") or "",
        "unique_key": arguments.key(unique, "unique") or "",
        "until": until or "",
    }
    Schedule(name="declared", **{**values, "time_zone": tz or "UTC"}).check_settings()

    def declare(target: T) -> T:
        _add(Declaration(name or _path(target), target, values, args, kwargs or {}))
        return target

    return declare


def _add(given: Declaration) -> None:
    known = _declared.get(given.name)
    # An identical declaration: its module was imported twice.
    if known is not None and known != given:
        raise InvalidArgument(
            f"there is already a schedule {given.name!r}: give the second one its own name, "
            f'such as @schedule(..., name="{given.name}.2")'
        )
    _declared[given.name] = given


def declared() -> list[Declaration]:
    """Return all schedules that the modules imported so far declare."""
    return list(_declared.values())


def message_of(
    task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, str | None, dict[str, Any]]:
    """Return the queue and the database of a task, and the fields of a schedule that runs it."""
    backend = task.get_backend()
    body, group, unique = backend.message_of(task, list(args), dict(kwargs))
    return (
        task.queue_name,
        backend.database,
        {
            "body": body,
            "priority": task.priority,
            "group_key": group or "",
            "unique_key": unique or "",
            "until": getattr(task, "until", None) or "",
            "expires": arguments.span(getattr(task, "expires", None), "expires"),
        },
    )


def _path(target: Any) -> str:
    if is_task(target):
        return str(target.module_path)
    return name_of(target)


def is_task(target: Any) -> bool:
    """Whether this is a task of Django's Tasks."""
    return hasattr(target, "module_path") and hasattr(target, "get_backend")
