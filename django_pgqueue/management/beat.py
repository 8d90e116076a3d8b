"""The entries of Celery's beat, and what each becomes as a schedule."""

from __future__ import annotations

import datetime as dt
import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.management.base import CommandError
from django.utils.module_loading import import_string
from django.utils.timezone import now

from django_pgqueue.engine import arguments
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.schedules import is_task, message_of

#: None if Celery is not installed. Its crontabs exist only if it is.
celery: Any = import_module("celery.schedules") if find_spec("celery") else None

_ONCE = "runs once: enqueue it with using(run_after=...), or send it with delay="
#: Options of an entry that a schedule keeps. The others have no counterpart, or none that is the
#: same with every broker.
_KEPT = ("expires", "queue")
#: Options that are columns of a row, under the same name.
_COLUMNS = ("queue", "exchange", "headers", "priority", "routing_key")


@dataclass(frozen=True)
class Entry:
    """An entry of beat: a row of django-celery-beat, or an item of ``beat_schedule``."""

    name: str
    task: str
    #: Seconds, a timedelta, or a schedule of Celery's.
    when: Any
    time_zone: str
    args: Any = ()
    kwargs: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    enabled: bool = True
    #: Why it cannot become a schedule, if the row or the item itself says so.
    obstacle: str = ""


@dataclass(frozen=True)
class Converted:
    """The values of the schedule that an entry becomes, with its queue and database."""

    queue: str
    using: str | None
    values: dict[str, Any]
    #: What was left out.
    notes: list[str]


def stored() -> Iterator[Entry] | None:
    """Return the rows of django-celery-beat; None if it is not installed."""
    installed = apps.app_configs.get("django_celery_beat")
    if installed is None:
        return None
    rows: Any = installed.get_model("PeriodicTask")._base_manager
    times = ("interval", "crontab", "solar", "clocked")
    return map(_of_row, rows.select_related(*times).order_by("name"))


def _of_row(row: Any) -> Entry:
    when, obstacle, time_zone = None, "", "UTC"
    if row.interval is not None:
        when = dt.timedelta(**{row.interval.period: row.interval.every})
    elif row.crontab is not None:
        spec, time_zone = row.crontab, str(row.crontab.timezone)
        names = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
        when = celery.crontab(**{name: getattr(spec, name) for name in names})
    elif row.clocked is not None:
        obstacle = f"{_ONCE} (at {row.clocked.clocked_time.isoformat()})"
    elif row.solar is not None:
        obstacle = "follows the sun: no schedule does"
    else:
        obstacle = "has no times"
    if row.one_off:
        obstacle = obstacle or _ONCE
    if row.start_time is not None and row.start_time > now():
        obstacle = f"starts at {row.start_time.isoformat()}: import it then"
    if row.expires is not None:
        obstacle = f"ends at {row.expires.isoformat()}: no schedule has an end"
    args = kwargs = None
    try:
        args, kwargs = json.loads(row.args or "[]"), json.loads(row.kwargs or "{}")
    except ValueError as error:
        obstacle = f"args or kwargs are not JSON: {error}"
    given = {name: getattr(row, name, None) for name in _COLUMNS}
    given["headers"] = None if row.headers in ("{}", "") else row.headers
    options = {**given, "expires": row.expire_seconds}
    return Entry(row.name, row.task, when, time_zone, args, kwargs, options, row.enabled, obstacle)


def configured(app: Any = None) -> Iterator[Entry] | None:
    """Return the entries of ``app.conf.beat_schedule``, or those of ``CELERY_BEAT_SCHEDULE``."""
    if app is not None:
        app.loader.import_default_modules()
        app.finalize(auto=True)
        return _of_items(app.conf.beat_schedule, str(app.timezone))
    found = getattr(settings, "CELERY_BEAT_SCHEDULE", None)
    if found is None:
        return None
    return _of_items(found, str(getattr(settings, "CELERY_TIMEZONE", None) or "UTC"))


def _of_items(found: Mapping[str, Any], time_zone: str) -> Iterator[Entry]:
    for name, item in found.items():
        if not isinstance(item, Mapping):
            reason = f"is of the type {type(item).__name__}: an entry must be a dict"
            yield Entry(str(name), "", None, time_zone, obstacle=reason)
            continue
        yield Entry(
            str(name),
            str(item.get("task") or ""),
            item.get("schedule"),
            time_zone,
            item.get("args") or (),
            item.get("kwargs") or {},
            item.get("options") or {},
        )


def converted(entry: Entry, tasks: Mapping[str, str], queues: Mapping[str, str]) -> Converted:
    """Return what an entry becomes.

    ``tasks`` has the paths of tasks by Celery's names, ``queues`` the queues of consumers.

    Raises InvalidArgument for an entry that cannot become a schedule, with the reason.
    """
    if entry.task == "celery.backend_cleanup":
        raise InvalidArgument("is Celery's own: here the queue's retention removes results")
    if entry.obstacle:
        raise InvalidArgument(entry.obstacle)
    if not entry.task:
        raise InvalidArgument("names no task: add 'task' to the entry, or remove the entry")
    notes = [
        f"{name} is left out"
        for name, value in entry.options.items()
        if name not in _KEPT and value not in (None, "")
    ]
    values = _times(entry)
    if entry.task in queues:
        queue, using, message = queues[entry.task], None, {"body": _body(entry)}
    else:
        queue, using, message = _message(entry, tasks.get(entry.task, entry.task), notes)
    values |= {"missed": "once", "paused": not entry.enabled, **message}
    if (expires := entry.options.get("expires")) is not None:
        if isinstance(expires, dt.datetime):
            raise InvalidArgument(f"ends at {expires.isoformat()}: no schedule has an end")
        values["expires"] = arguments.span(expires, "expires")
    return Converted(queue, using, values, notes)


def _times(entry: Entry) -> dict[str, Any]:
    """Return the times of an entry as fields of a schedule."""
    when = entry.when
    if celery is not None and isinstance(when, celery.crontab):
        zone = vars(when).get("tz") or entry.time_zone
        return {"cron": cron_of(when), "interval": None, "time_zone": str(zone)}
    if celery is not None and isinstance(when, celery.schedule):
        when = when.run_every
    if isinstance(when, bool) or not isinstance(when, (int, float, dt.timedelta)):
        solar = celery is not None and isinstance(when, celery.solar)
        kind = type(when)
        raise InvalidArgument(
            "follows the sun: no schedule does"
            if solar
            else f"has times of the class {kind.__module__}.{kind.__qualname__}: give the schedule "
            f"a cron expression or an interval by hand"
        )
    return {"cron": "", "interval": arguments.span(when, "interval"), "time_zone": "UTC"}


def cron_of(spec: Any) -> str:
    """Return the cron expression of a crontab of Celery's.

    >>> cron_of(celery.schedules.crontab(minute="*/15", hour="22-2", day_of_week="mon-fri"))
    '*/15 0-2,22-23 * * 1-5'

    Raises InvalidArgument for one that restricts both days: in Celery both must be true.
    """
    fields = {
        "minute": (0, 59),
        "hour": (0, 23),
        "day_of_month": (1, 31),
        "month_of_year": (1, 12),
        "day_of_week": (0, 6),
    }
    parts = [_field(spec, name, *limits) for name, limits in fields.items()]
    if parts[2] != "*" and parts[4] != "*":
        raise InvalidArgument(
            f"runs on days of the month ({parts[2]}) that are also days of the week ({parts[4]}): "
            f"in a cron expression either is enough. The first Monday is '0 4 * * MON#1'"
        )
    return " ".join(parts)


def _field(spec: Any, name: str, first: int, last: int) -> str:
    values, written = sorted(getattr(spec, name)), str(getattr(spec, f"_orig_{name}", ""))
    if len(values) == last - first + 1:
        return "*"
    if written.startswith("*/") and len(values) > 1:
        step = values[1] - values[0]
        if values == list(range(first, last + 1, step)):
            return f"*/{step}"
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _body(entry: Entry) -> Any:
    """Return the body of a message to a consumer: kwargs, or args where there are only args."""
    if entry.args and entry.kwargs:
        raise InvalidArgument(
            "has args and kwargs, and a message one body: give the entry kwargs alone"
        )
    text = arguments.json_text(entry.kwargs or entry.args or None)
    return None if text is None else json.loads(text)


def _message(entry: Entry, path: str, notes: list[str]) -> tuple[str, str | None, dict[str, Any]]:
    """Return the queue, the database and the message of a run of a task."""
    advice = (
        f"name what replaces it: --task {entry.task}=PATH for a task of Django's Tasks, "
        f"--queue {entry.task}=QUEUE for a consumer"
    )
    try:
        task = import_string(path)
    except ImportError as error:
        raise InvalidArgument(f"there is no {path} ({error}): {advice}") from error
    if not is_task(task):
        raise InvalidArgument(f"{path} is not a task of Django's Tasks: {advice}")
    backend = task.get_backend()
    if not hasattr(backend, "message_of"):
        raise InvalidArgument(
            f"TASKS[{task.backend!r}] keeps no queues: set its BACKEND to "
            f"'django_pgqueue.tasks.PgQueueBackend'"
        )
    name = entry.options.get("queue")
    if name and name in backend.queues:
        task = task.using(queue_name=name)
    elif name and name != task.queue_name:
        notes.append(f"queue {name!r} is not in QUEUES: its messages go to {task.queue_name!r}")
    first = (None,) if task.takes_context else ()
    try:
        inspect.signature(task.func).bind(*first, *(entry.args or ()), **(entry.kwargs or {}))
        return message_of(task, entry.args or (), entry.kwargs or {})
    except Exception as error:  # a TypeError, or InvalidTask, which only Tasks can import
        raise InvalidArgument(f"does not fit the task {path}: {error}") from error


def app_of(path: str) -> Any:
    """Return the app of Celery at ``module:attribute``, as ``celery --app`` finds it."""
    if celery is None:
        raise CommandError("--app needs Celery: pip install celery")
    try:
        found = import_module("celery.app.utils").find_app(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise CommandError(f"There is no app of Celery at {path!r}: {error}") from error
    if not isinstance(found, import_module("celery").Celery):
        raise CommandError(
            f"There is no app of Celery at {path!r}: it is of the type {type(found).__name__}"
        )
    return found
