"""The overview of all queues: alerts, then a row per queue, the worst first."""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import connections
from django.db.models import Q
from django.db.models.expressions import RawSQL
from django.utils.timezone import is_naive, now
from django.utils.translation import gettext

from django_pgqueue.admin import places
from django_pgqueue.admin.places import Place
from django_pgqueue.admin.wording import counted
from django_pgqueue.engine.metrics.measuring import metrics_of_all
from django_pgqueue.history.recent import Counts, Recent, Times, recent, times
from django_pgqueue.models import ArchivedMessage, Process, Queue
from django_pgqueue.models.process import ago
from django_pgqueue.runner import runner
from django_pgqueue.types import Metrics
from django_pgqueue.wording import age
from django_pgqueue.worker import Options

__all__ = [
    "DEAD_AFTER",
    "LONG_TRANSACTION",
    "Alert",
    "Overview",
    "Row",
    "add_times",
    "judged",
    "look",
    "name_of",
    "oldest_transaction",
    "seconds_since",
    "standing_in",
]

#: Seconds that a transaction may stay open.
LONG_TRANSACTION = 300.0
#: Seconds without a heartbeat after which a consumer counts as dead.
DEAD_AFTER = Options.dead_after

#: A queue is failing from this many failed attempts, and from this share of all attempts: in the
#: last hour (``SHARE``), and in the last two minutes (``SHARE_NOW``).
FAILURES, SHARE, SHARE_NOW = 3, 0.05, 0.04
#: How many of the newest outcomes are read for queues without history from a consumer.
OUTCOMES = 2000
#: Maximum number of queue ids in a query's list; more become a subquery. With a list PostgreSQL
#: plans only these queues' partitions, but compares each with the whole list: 36 s for 6,000 ids.
LISTED = 100
RECENT = 3600.0

UNKNOWN = Times()

#: Levels of an alert.
BAD, WARNING = 2, 1


def standing_in(backlog: Metrics) -> dict[Place, int]:
    """The number of messages in each place. The sum is the length of the queue."""
    return {
        Place.READY: backlog.ready,
        Place.DUE: backlog.visible - backlog.ready,
        Place.WAITING: backlog.waiting,
        Place.IN_FLIGHT: backlog.in_flight,
        Place.DELAYED: backlog.delayed,
    }


@dataclass(frozen=True)
class Alert:
    """A problem. ``about`` names the page with details."""

    level: int
    text: str
    about: str  # "messages", "failures", "queue", "consumers" or "database"
    queue: Queue | None = None
    place: Place | None = None

    @property
    def look(self) -> str:
        return "bad" if self.level == BAD else "warning"


@dataclass
class Row:
    """One row of the overview: a queue and its figures."""

    queue: Queue
    counts: dict[Place, int]
    length: int
    exact: bool
    oldest: float | None  # seconds since the oldest readable message became readable
    consumers: int
    recent: Recent  # the last hour
    rates: tuple[float, float]  # messages in and out a minute
    sources: list[str]  # the queues whose dead letters come here
    times: Times = UNKNOWN
    alerts: list[Alert] = field(default_factory=list)

    @property
    def worst(self) -> tuple[int, float, int]:
        """The sort key: the worst queue first."""
        level = sum(alert.level for alert in self.alerts)
        return (level, self.oldest or 0.0, self.length)

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON values."""
        hour = self.recent.hour
        return {
            "queue": self.queue.name,
            "paused": self.queue.paused,
            **{place.value: number for place, number in self.counts.items()},
            "length": self.length,
            "exact": self.exact,
            "oldest_readable_seconds": self.oldest,
            "in_per_minute": round(self.rates[0], 2),
            "out_per_minute": round(self.rates[1], 2),
            "completed_last_hour": hour.completed,
            "retried_last_hour": hour.retried,
            "failed_last_hour": hour.failed,
            "dead_lettered_last_hour": hour.dead_lettered,
            "wait_p95_seconds": self.times.wait,
            "run_p95_seconds": self.times.run,
            "consumers": self.consumers,
            "alerts": [alert.text for alert in self.alerts],
        }


@dataclass
class Overview:
    """All that the page shows."""

    rows: list[Row]
    alerts: list[Alert]
    processes: list[Process]  # consumers of any of the queues
    at: dt.datetime

    def as_dict(self) -> dict[str, Any]:
        return {
            "at": self.at.isoformat(),
            "alerts": [
                {"level": alert.look, "text": alert.text, "queue": str(alert.queue or "") or None}
                for alert in self.alerts
            ],
            "queues": [row.as_dict() for row in self.rows],
        }


def look(
    queues: Sequence[Queue], *, by_name: bool = False, seen: Container[str] | None = None
) -> Overview:
    """Measure all queues in a few statements, and find their problems.

    Wait and run times are not filled in: see :func:`add_times`.

    Arguments:
        seen: the names of the queues that the user may see; None: all.
    """
    if not queues:
        return Overview([], [], [], now())
    using = queues[0].alias
    ids = [queue.pk for queue in queues]
    measured = metrics_of_all(runner(using))
    found = judged(
        queues,
        {each.queue_name: each for each in measured},
        recent(using, ids),
        sources=_sources(queues, seen),
    )
    open_for = oldest_transaction(using)
    if open_for is not None and open_for > LONG_TRANSACTION:
        told = gettext("A transaction has been open for %s: dead rows cannot be removed")
        found.alerts.append(Alert(WARNING, told % age(open_for), "database"))
    if by_name:
        found.rows.sort(key=lambda row: row.queue.name.lower())
    return found


def judged(
    queues: Sequence[Queue],
    measured: Mapping[str, Metrics],
    history: Mapping[int, Recent],
    *,
    sources: Mapping[int, list[str]],
) -> Overview:
    """Rows with alerts for these queues, the worst first.

    Arguments:
        measured: metrics by queue name. A missing queue was dropped meanwhile.
        history: counts of the last hour, by queue id.
        sources: names of the queues that dead-letter into a queue, by its id.
    """
    using, names = queues[0].alias, {queue.name for queue in queues}
    oldest = places.oldest_readable([queue.pk for queue in queues], using=using)
    recent = Q(gone_at=None) | Q(gone_at__gte=ago(dt.timedelta(seconds=RECENT)))
    every = [
        process
        for process in Process.every.using(using).filter(recent).order_by("host", "pid")
        if names.intersection(process.queues)
    ]
    processes = [process for process in every if process.gone_at is None]
    dead = [process for process in processes if seconds_since(process.heartbeat_at) > DEAD_AFTER]
    live = Counter(
        name
        for process in processes
        if process not in dead and not process.stopping
        for name in process.queues
    )
    told = {pk for pk, happened in history.items() if happened.hour.attempts}
    outcomes = _outcomes({queue.pk for queue in queues} - told, using)
    at = now()
    rows = []
    for queue in queues:
        backlog = measured.get(queue.name)
        if backlog is None:
            continue
        happened = history.get(queue.pk, Recent())
        row = Row(
            queue,
            standing_in(backlog),
            backlog.length,
            backlog.exact,
            oldest.get(queue.pk),
            live[queue.name],
            outcomes.get(queue.pk, happened),
            happened.per_minute(at.second),
            sources.get(queue.pk, []),
        )
        row.alerts += _alerts(row)
        rows.append(row)
    rows.sort(key=lambda row: row.worst, reverse=True)
    alerts = [alert for row in rows for alert in row.alerts]
    alerts += [
        Alert(
            WARNING,
            gettext("Consumer %(consumer)s has sent no heartbeat for %(age)s")
            % {"consumer": process, "age": age(seconds_since(process.heartbeat_at))},
            "consumers",
        )
        for process in dead
    ]
    alerts += [
        Alert(
            WARNING,
            gettext("Consumer %(consumer)s died %(age)s ago; it held %(messages)s, given back")
            % {
                "consumer": process,
                "age": age(seconds_since(process.gone_at)),
                "messages": counted(process.given_back),
            },
            "consumers",
        )
        for process in every
        if process.gone_at is not None
    ]
    alerts.sort(key=lambda alert: -alert.level)
    return Overview(rows, alerts, processes, at)


def _sources(queues: Sequence[Queue], seen: Container[str] | None) -> dict[int, list[str]]:
    """For each queue's id the names of the queues that dead-letter into it."""
    found: dict[int, list[str]] = defaultdict(list)
    every = (
        queues
        if seen is None
        else Queue.objects.using(queues[0].alias).filter(dead_letter_queue__in=list(queues))
    )
    for source in sorted(every, key=lambda queue: queue.name):
        if source.dead_letter_queue_id is not None:
            found[source.dead_letter_queue_id].append(name_of(source, seen))
    return found


def name_of(queue: Queue, seen: Container[str] | None) -> str:
    """The queue's name, or "another queue" if the user may not see it."""
    return queue.name if seen is None or queue.name in seen else gettext("another queue")


def add_times(rows: Sequence[Row]) -> None:
    """Fill in the rows' recent wait and run times."""
    if rows:
        found = times(rows[0].queue.alias, [row.queue.pk for row in rows])
        for row in rows:
            row.times = found.get(row.queue.pk, UNKNOWN)


def _alerts(row: Row) -> Iterator[Alert]:
    """The alerts for a queue."""
    queue = row.queue
    readable = row.counts[Place.READY] + row.counts[Place.DUE]
    told: dict[str, Any] = {"queue": queue, "messages": counted(row.length)}
    if queue.paused:
        if row.length:
            text = gettext("%(queue)s is paused with %(messages)s") % told
            yield Alert(WARNING, text, "queue", queue)
    elif row.sources:
        if row.length:
            told["sources"] = ", ".join(row.sources)
            text = gettext("Dead letters: %(messages)s from %(sources)s in %(queue)s") % told
            yield Alert(WARNING, text, "messages", queue)
    else:
        if readable and not row.consumers:
            told["messages"] = counted(readable)
            text = gettext("%(queue)s has no live consumer, and %(messages)s to read") % told
            yield Alert(BAD, text, "consumers", queue)
        if row.oldest is not None and row.oldest > queue.longest_wait:
            place = Place.READY if row.counts[Place.READY] else Place.DUE
            told["age"] = age(row.oldest)
            text = gettext("%(queue)s: the oldest message has waited for %(age)s") % told
            yield Alert(BAD, text, "messages", queue, place)
    yield from _failing(queue, row.recent)


def _failing(queue: Queue, recent: Recent) -> Iterator[Alert]:
    """The alert for many failed attempts: BAD while attempts still fail, then WARNING."""
    present, hour = recent.now, recent.hour
    fails_now = present.bad >= FAILURES and present.share >= SHARE_NOW
    if not fails_now and not (hour.bad >= FAILURES and hour.share >= SHARE):
        return
    told = {
        "queue": queue,
        "now": f"{present.share:.0%}",
        "hour": f"{hour.share:.0%}",
        "bad": f"{hour.bad:,}",
        "attempts": f"{hour.attempts:,}",
    }
    if fails_now and present.share > 1.5 * hour.share:
        text = gettext(
            "%(queue)s: failures are rising, %(now)s of attempts in the last two minutes and "
            "%(hour)s in an hour"
        )
    else:
        text = gettext("%(queue)s: %(bad)s of %(attempts)s attempts failed in the last hour")
    yield Alert(BAD if fails_now else WARNING, text % told, "failures", queue, Place.FAILED)


def _outcomes(queues: Collection[int], using: str) -> dict[int, Recent]:
    """Outcomes of the last hour from the archive, for queues without history from a consumer."""
    if not queues:
        return {}
    chosen: Any = queues
    if len(queues) > LISTED:
        chosen = RawSQL("SELECT unnest(%s::int[])", [list(queues)])
    rows = ArchivedMessage.objects.using(using).filter(queue_id__in=chosen).order_by("-pk")
    found: dict[int, Recent] = defaultdict(Recent)
    for queue_id, state, at in rows.values_list("queue_id", "state", "archived_at")[:OUTCOMES]:
        past = seconds_since(at)
        if past <= RECENT:
            failed = state == Place.FAILED.name
            found[queue_id].add(past, Counts(completed=not failed, failed=failed))
    return found


def oldest_transaction(using: str) -> float | None:
    """Seconds since the start of the oldest transaction that keeps dead rows from removal."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM max(clock_timestamp() - xact_start))::float "
            "FROM pg_stat_activity WHERE backend_xmin IS NOT NULL "
            "AND datname = current_database() AND backend_type = 'client backend'"
        )
        (seconds,) = cursor.fetchone()
        return None if seconds is None else float(seconds)


def seconds_since(at: dt.datetime) -> float:
    """How long ago a moment was."""
    return ((dt.datetime.now() if is_naive(at) else now()) - at).total_seconds()
