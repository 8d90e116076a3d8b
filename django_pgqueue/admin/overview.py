"""Every queue at a glance: what needs attention first, then a row a queue, the worst first."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import connections
from django.utils.timezone import is_naive, now

from django_pgqueue.admin import places
from django_pgqueue.admin.places import Place
from django_pgqueue.admin.wording import age
from django_pgqueue.models import ArchivedMessage, Message, Process, Queue
from django_pgqueue.types import Metrics
from django_pgqueue.worker import Options

__all__ = [
    "DEAD_AFTER",
    "LONG_TRANSACTION",
    "Alert",
    "Overview",
    "Row",
    "look",
    "oldest_transaction",
    "seconds_since",
    "standing_in",
]

#: Seconds after which a ready message has waited too long.
LATE = 300.0
#: Seconds that a transaction may stay open.
LONG_TRANSACTION = 300.0
#: How many of the newest outcomes tell which queues fail, and since when.
OUTCOMES = 2000
RECENT = 3600.0
#: From how many failures on, and which share of what ended, a queue counts as failing.
FAILURES, SHARE = 3, 0.05

#: How bad each kind of finding is.
BAD, WARNING = 2, 1


def standing_in(backlog: Metrics) -> dict[Place, int]:
    """How many messages stand in each place: together, the length of the queue."""
    return {
        Place.READY: backlog.ready,
        Place.DUE: backlog.visible - backlog.ready,
        Place.WAITING: backlog.waiting,
        Place.IN_FLIGHT: backlog.in_flight,
        Place.DELAYED: backlog.delayed,
    }


@dataclass(frozen=True)
class Alert:
    """A problem to look at: ``about`` names the page that tells more."""

    level: int
    text: str
    about: str  # "messages", "archive", "queue", "consumers" or "database"
    queue: Queue | None = None
    place: Place | None = None

    @property
    def look(self) -> str:
        return "bad" if self.level == BAD else "warning"


@dataclass
class Row:
    """One queue at this moment."""

    queue: Queue
    counts: dict[Place, int]
    length: int
    exact: bool
    oldest: float | None  # seconds for which the oldest readable message could have been read
    consumers: int
    failed: int  # among the newest outcomes, within the last hour
    sources: list[str]  # the queues whose dead letters come here
    alerts: list[Alert] = field(default_factory=list)

    @property
    def worst(self) -> tuple[int, float, int]:
        """The sort key: the worst queue first."""
        level = sum(alert.level for alert in self.alerts)
        return (level, self.oldest or 0.0, self.length)

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON has it."""
        return {
            "queue": self.queue.name,
            "paused": self.queue.paused,
            **{place.value: number for place, number in self.counts.items()},
            "length": self.length,
            "exact": self.exact,
            "oldest_readable_seconds": self.oldest,
            "consumers": self.consumers,
            "failed_recently": self.failed,
            "alerts": [alert.text for alert in self.alerts],
        }


@dataclass
class Overview:
    """All that the page shows."""

    rows: list[Row]
    alerts: list[Alert]
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


def look(queues: Sequence[Queue], *, by_name: bool = False) -> Overview:
    """Measure these queues, all in the same few statements, and say what is wrong with them."""
    using = queues[0].alias if queues else Queue.objects.database()
    ids = [queue.pk for queue in queues]
    measured = {each.queue_name: each for each in Message.objects.metrics_all()} if queues else {}
    oldest = places.oldest_readable(ids, using=using)
    processes = list(Process.objects.using(using).order_by("host", "pid"))
    dead = [process for process in processes if seconds_since(process.heartbeat_at) > DEAD_AFTER]
    live = Counter(
        name
        for process in processes
        if process not in dead and not process.stopping
        for name in process.queues
    )
    ended, failed = _outcomes(ids, using)
    # Of a source that may not be seen the name stays away, not that there is one.
    names = {queue.name for queue in queues}
    sources: dict[int, list[str]] = {}
    for pk, source in (
        Queue.objects.using(using)
        .filter(dead_letter_queue__in=ids)
        .order_by("name")
        .values_list("dead_letter_queue_id", "name")
    ):
        sources.setdefault(pk, []).append(source if source in names else "another queue")
    rows = [
        _judged(
            Row(
                queue,
                standing_in(measured[queue.name]),
                measured[queue.name].length,
                measured[queue.name].exact,
                oldest.get(queue.pk),
                live[queue.name],
                failed[queue.pk],
                sources.get(queue.pk, []),
            ),
            ended[queue.pk],
        )
        for queue in queues
        if queue.name in measured  # or it was dropped at this very moment
    ]
    if by_name:
        rows.sort(key=lambda row: row.queue.name.lower())
    else:
        rows.sort(key=lambda row: row.worst, reverse=True)
    alerts = [alert for row in rows for alert in row.alerts]
    alerts += [
        Alert(
            WARNING,
            f"Consumer {process} has given no sign of life for "
            f"{age(seconds_since(process.heartbeat_at))}",
            "consumers",
        )
        for process in dead
        if names.intersection(process.queues)
    ]
    open_for = oldest_transaction(using)
    if open_for is not None and open_for > LONG_TRANSACTION:
        alerts.append(
            Alert(
                WARNING,
                f"A transaction has been open for {age(open_for)}: dead rows cannot be removed",
                "database",
            )
        )
    alerts.sort(key=lambda alert: -alert.level)
    return Overview(rows, alerts, now())


#: Seconds without a heartbeat after which a consumer is taken for dead.
DEAD_AFTER = Options.dead_after


def _judged(row: Row, ended: int) -> Row:
    """The row with what is wrong with it."""
    queue, alerts = row.queue, row.alerts
    readable = row.counts[Place.READY] + row.counts[Place.DUE]
    if queue.paused:
        if row.length:
            alerts.append(
                Alert(WARNING, f"{queue} is paused with {_many(row.length)}", "queue", queue)
            )
    elif row.sources:
        if row.length:
            told = f"{_many(row.length)} from {', '.join(row.sources)} in {queue}"
            alerts.append(Alert(WARNING, f"Dead letters: {told}", "messages", queue))
    else:
        if readable and not row.consumers:
            told = f"{queue} has no live consumer, and {_many(readable)} to read"
            alerts.append(Alert(BAD, told, "consumers", queue))
        if row.oldest is not None and row.oldest > LATE:
            place = Place.READY if row.counts[Place.READY] else Place.DUE
            told = f"{queue}: the oldest message has waited for {age(row.oldest)}"
            alerts.append(Alert(BAD, told, "messages", queue, place))
    if row.failed >= FAILURES and row.failed >= SHARE * ended:
        told = f"{queue}: {row.failed:,} of the last {ended:,} messages failed"
        alerts.append(Alert(BAD, told, "archive", queue, Place.FAILED))
    return row


def _many(number: int) -> str:
    return f"{number:,} message{'' if number == 1 else 's'}"


def _outcomes(queues: Iterable[int], using: str) -> tuple[Counter[int], Counter[int]]:
    """How many of the newest messages ended in the last hour, and how many of them failed."""
    ended: Counter[int] = Counter()
    failed: Counter[int] = Counter()
    rows = ArchivedMessage.objects.using(using).filter(queue_id__in=queues).order_by("-pk")
    for queue_id, state, at in rows.values_list("queue_id", "state", "archived_at")[:OUTCOMES]:
        if seconds_since(at) <= RECENT:
            ended[queue_id] += 1
            failed[queue_id] += state == Place.FAILED.name
    return ended, failed


def oldest_transaction(using: str) -> float | None:
    """For how many seconds the oldest transaction has kept rows from being removed."""
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
