"""The overview of all queues: what needs attention, then a row per queue, the worst first."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django.db.models import Q
from django.utils.timezone import now
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_pgqueue.admin import exports, places
from django_pgqueue.admin.acknowledging import add_acknowledgements, signed
from django_pgqueue.admin.failures import WINDOWS, Failures
from django_pgqueue.admin.marks import followed, recent_marks
from django_pgqueue.admin.outlook import Outlook, outlook
from django_pgqueue.admin.places import Place
from django_pgqueue.admin.subscriptions import lags_of
from django_pgqueue.database.runner import runner
from django_pgqueue.engine.metrics.measuring import metrics_of_all
from django_pgqueue.engine.wording import age
from django_pgqueue.errors import error_line
from django_pgqueue.history.onset import MINUTES, Minute, Onset, onsets
from django_pgqueue.history.recent import LATELY, Recent, Times, recent, times, total
from django_pgqueue.maintenance import batches
from django_pgqueue.maintenance.batches import BatchHealth
from django_pgqueue.models import Acknowledgement, Mark, Process, Queue
from django_pgqueue.tables.process import DEAD_AFTER, ago
from django_pgqueue.templatetags.pgqueue_admin import counted, cut, number, seconds_since
from django_pgqueue.types import Lag, Metrics

#: Seconds after which an open transaction is reported.
LONG_TRANSACTION = 300.0

#: A queue has failures if at least ``FAILURES`` attempts, and at least the share ``SHARE`` of all
#: attempts, failed in the last hour. It is failing if at least ``FAILURES`` attempts, and at least
#: the share ``SHARE_NOW``, failed in the last ten minutes; or at least ``BURST`` attempts, and at
#: least the share ``SHARE_BURST``, in the present minute or since two minutes before it.
FAILURES, SHARE, SHARE_NOW = 3, 0.05, 0.04
BURST, SHARE_BURST = 5, 0.2
RECENT = dt.timedelta(hours=1)
#: Seconds over which the first failures are spread, at least.
SHORTEST = 10

UNKNOWN = Times()


class Cause(NamedTuple):
    """A kind of problem. The problem with the lowest rank comes first."""

    rank: int
    key: str
    look: str
    name: Any
    #: The text of a line for several alerts, with ``%s`` for their number.
    many: Any
    #: The name of the page with details, and the label of a link to that page.
    page: str = ""
    label: Any = ""


_CONSUMERS = "process_changelist", _("consumers")
_FAILURES = "message_failures", _("failures")
_MESSAGES = "message_changelist", _("messages")
_EXPORTS = "exportrun_changelist", _("export runs")
_BATCHES = "batch_changelist", _("batches")
FAILING = Cause(0, "failing", "bad", _("Failing"), _("%s queues failing"), *_FAILURES)
GROWING = Cause(
    1, "growing", "bad", _("Behind, growing"), _("%s queues behind and growing"), *_MESSAGES
)
NO_CONSUMER = Cause(
    2, "no-consumer", "bad", _("No consumer"), _("%s queues without a consumer"), *_CONSUMERS
)
BEHIND = Cause(3, "behind", "bad", _("Behind"), _("%s queues behind"), *_MESSAGES)
GONE = Cause(4, "gone", "bad", _("Consumer gone"), _("%s consumers gone"), *_CONSUMERS)
EXPORTS = Cause(
    5, "exports-failing", "bad", _("Exports failing"), _("%s lakes with failing exports"), *_EXPORTS
)
LATE = Cause(6, "exports-late", "bad", _("Exports late"), _("%s lakes behind"), *_EXPORTS)
CALLBACK = Cause(
    7,
    "callback-failing",
    "bad",
    _("Callback failing"),
    _("%s queues with failing callbacks"),
    *_BATCHES,
)
PAUSE = Cause(8, "paused", "warning", _("Paused"), _("%s queues paused"))
FAILED = Cause(9, "failed", "warning", _("Failed"), _("%s queues with failures"), *_FAILURES)
DEAD = Cause(
    10, "dead-letters", "warning", _("Dead letters"), _("%s queues with dead letters"), *_MESSAGES
)
LOST = Cause(12, "lost", "warning", _("Messages lost"), _("%s subscriptions with lost messages"))
ABANDONED = Cause(
    13,
    "abandoned",
    "warning",
    _("Batch abandoned"),
    _("%s queues with abandoned batches"),
    *_BATCHES,
)
NO_POSITION = Cause(
    -1, "no-position", "bad", _("Position lost"), _("%s subscriptions without a position")
)
OPEN = Cause(
    11, "open", "warning", _("Open transaction"), _("%s open transactions"), "health", _("database")
)


@dataclass
class Alert:
    """A problem: its cause, the queue or process that has it, and details."""

    cause: Cause
    subject: str
    text: str
    queue: Queue | None = None
    since: dt.datetime | None = None
    #: Whether it began before ``since``, from which on its history is known.
    is_earlier: bool = False
    error: str = ""
    #: The types of its recent errors.
    errors: Sequence[str] = ()
    #: The number of messages that it concerns; when failing: of failed attempts in ten minutes.
    harm: int = 0
    #: The keys of all causes of a queue's alert.
    causes: Sequence[str] = ()
    #: When this problem certainly did not exist yet, as far as it is known.
    begun: dt.datetime | None = None
    #: What came shortly before it began.
    after: str = ""
    acknowledged: Acknowledgement | None = None
    seen_at: dt.datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        self.causes = self.causes or (self.cause.key,)
        self.begun = self.begun or self.since

    @property
    def signed(self) -> str:
        """The alert as it is shown, for a form."""
        return signed(self)

    @property
    def order(self) -> tuple[Any, ...]:
        # Harm by powers of two, so that two alerts do not swap at each refresh.
        known = self.acknowledged is not None
        return (known, self.cause.rank, -self.harm.bit_length(), self.subject.lower())


@dataclass
class Row:
    """One row of the overview: a queue and its figures."""

    queue: Queue
    counts: dict[Place, int]  # Their sum is the length.
    length: int
    estimated: set[Place]
    consumers: int
    recent: Recent  # Counts of the last hour.
    rates: tuple[float, float]  # Messages in and out per minute.
    sources: list[str]  # Names of the queues that dead-letter into this one.
    failed: int  # Failed messages of the last hour.
    dead: int  # Dead letters of the last hour.
    oldest: float | None  # Seconds that the oldest readable message has waited.
    error: str  # The newest error in one line, if the queue's attempts fail.
    errors: list[str]  # The types of its recent errors.
    onset: Onset | None = None  # When the attempts began to fail, if they do.
    paused_by: str | None = None  # Who paused the queue, if it is paused.
    paused_at: dt.datetime | None = None
    batches: BatchHealth | None = None  # None without open and abandoned ones.
    times: Times = UNKNOWN
    alert: Alert | None = None
    source: str = (
        ""  # The name of the queue whose messages this one reads, if it is a subscription.
    )
    lag: Lag | None = None  # How far a subscription is behind; None if its position is lost.

    @property
    def exact(self) -> bool:
        return not self.estimated

    @property
    def bad(self) -> int:
        """The number of messages that failed or were dead-lettered in the last hour."""
        return self.failed + self.dead

    @property
    def place(self) -> Place | None:
        """The place of all messages, if they are all in one place."""
        taken = [place for place, count in self.counts.items() if count]
        return taken[0] if len(taken) == 1 else None

    @property
    def is_old(self) -> bool:
        """Whether a message has waited for longer than the queue's age limit."""
        return self.oldest is not None and self.oldest > self.queue.longest_wait

    @property
    def is_idle(self) -> bool:
        """Whether the queue is empty and without an alert, and was idle for the last hour."""
        hour = self.recent.hour
        quiet = not (self.length or hour.sent or hour.attempts or self.bad)
        return quiet and self.alert is None

    @property
    def outlook(self) -> Outlook | None:
        """When the queue will be empty, or how it grows; None if its rates are not known."""
        if self.out is None:
            return None
        return outlook(self.length - self.counts[Place.DELAYED], self.rates[0], self.out)

    def read_from(self, source: str, lag: Lag | None) -> None:
        """Make it the row of a subscription. ``source`` is empty if the user may not see it."""
        self.source, self.lag = source or gettext("another queue"), lag
        if lag is not None and lag.seconds is not None:
            self.oldest = max(self.oldest or 0.0, lag.seconds)

    @property
    def unread(self) -> str:
        """The number of the source's messages that a subscription has not read."""
        return number(self.lag.messages, exact=not self.lag.is_estimate) if self.lag else ""

    @property
    def readable(self) -> int:
        """The number of messages that can be read now."""
        return self.counts[Place.READY] + self.counts[Place.DUE]

    @property
    def lacks_consumer(self) -> bool:
        """Whether the queue has readable messages, and lacks a live consumer.

        Paused queues and dead-letter queues need none.
        """
        return not (self.queue.paused or self.sources or self.consumers) and self.readable > 0

    @property
    def worst(self) -> tuple[Any, ...]:
        """A sort key that puts the worst queue first, and queues of equal rank in order of name."""
        alert = self.alert.order if self.alert else (math.inf,)
        return (alert, self.is_idle, self.queue.name.lower())

    @property
    def out(self) -> float | None:
        """Messages ended per minute; None if unknown, since no consumer has counted any."""
        counted_some = self.consumers or self.recent.hour.ended or self.recent.hour.attempts
        return self.rates[1] if counted_some else None

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON values. Values that no consumer has reported are None."""
        hour, future = self.recent.hour, self.outlook
        known = hour.attempts > 0
        return {
            "queue": self.queue.name,
            "paused": self.queue.paused,
            **{place.value: count for place, count in self.counts.items()},
            "length": self.length,
            "exact": self.exact,
            "oldest_readable_seconds": self.oldest,
            "in_per_minute": round(self.rates[0], 2),
            "out_per_minute": None if self.out is None else round(self.out, 2),
            "empty_in_seconds": future and future.empty_in,
            "grows_per_minute": future and future.grows,
            "completed_last_hour": hour.completed if known else None,
            "retried_last_hour": hour.retried if known else None,
            "failed_last_hour": self.failed,
            "dead_lettered_last_hour": self.dead,
            "wait_p95_seconds": self.times.wait,
            "run_p95_seconds": self.times.run,
            "consumers": self.consumers,
            **self._position(),
        }

    def _position(self) -> dict[str, Any]:
        """Return the values that only a subscription has."""
        if not self.source:
            return {}
        return {"source": self.source, "lag": None if self.lag is None else self.lag._asdict()}


class _Asked(NamedTuple):
    """What overview.sql says of a queue."""

    failed: int
    dead: int
    oldest: float | None
    error_class: str | None
    message: str | None
    error_classes: list[str] | None
    #: Minutes in which attempts ended, if the queue is failing.
    minutes: list[dt.datetime] | None
    attempts: list[int]
    failed_attempts: list[int]
    paused_by: str | None
    paused_at: dt.datetime | None
    #: The age of the database's oldest transaction.
    open_for: float | None
    #: The state of the queue's batches as JSON.
    batches: str | None

    @property
    def error(self) -> str:
        """The newest error in one line, if the queue is failing."""
        return short_error(self.error_class or "", self.message) if self.message else ""

    @property
    def by_minute(self) -> list[Minute]:
        return list(zip(self.minutes or (), self.attempts, self.failed_attempts, strict=True))


@dataclass
class Overview:
    """The rows and alerts of all queues."""

    rows: list[Row] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)  # Consumers, dead ones too.
    marks: list[Mark] = field(default_factory=list)
    at: dt.datetime = field(default_factory=now)

    def settle(self, using: str) -> None:
        """Find the alerts that are acknowledged, and put the worst of the others first."""
        add_acknowledgements(self.alerts, using)
        self.alerts.sort(key=lambda alert: alert.order)

    def as_dict(self) -> dict[str, Any]:
        return {
            "at": self.at.isoformat(),
            "alerts": [
                {
                    "level": alert.cause.look,
                    "cause": str(alert.cause.name),
                    "subject": alert.subject,
                    "text": alert.text,
                    "queue": alert.queue and alert.queue.name,
                    "since": alert.since and alert.since.isoformat(),
                    "acknowledged_by": alert.acknowledged and alert.acknowledged.by,
                }
                for alert in self.alerts
            ],
            "queues": [row.as_dict() for row in self.rows],
        }


def is_live(process: Process) -> bool:
    """Return whether a consumer process is alive and fetches messages."""
    asked = process.gone_at is None and not process.stopping and not process.quiet
    return asked and seconds_since(process.heartbeat_at) <= DEAD_AFTER


def look(
    queues: Sequence[Queue], *, seen: Collection[str] | None = None, exports_used: bool = True
) -> Overview:
    """Measure the queues in a few statements, and find their problems. The worst queue comes first.

    Leaves out wait and run times, which :func:`add_times` adds.

    Arguments:
        seen: the names of the queues that the user may see; None: all.
        exports_used: whether there are lakes.
    """
    if not queues:
        return Overview()
    using, ids = queues[0].alias, [queue.pk for queue in queues]
    is_known = seen is None and not any(queue.unlogged for queue in queues)
    measured = metrics_of_all(runner(using), len(queues) if is_known else None)
    sources = _sources(queues, seen)
    return judged(
        queues,
        {each.queue_name: each for each in measured},
        recent(using, ids),
        Failures(ids, list(sources), WINDOWS["1h"]),
        sources=sources,
        marks=recent_marks(using),
        others=[
            Alert(EXPORTS if fails else LATE, lake, text)
            for lake, fails, text in (exports.problems(using, seen) if exports_used else ())
        ],
        seen=seen,
    )


def judged(
    queues: Sequence[Queue],
    measured: Mapping[str, Metrics],
    history: Mapping[int, Recent],
    failures: Failures,
    *,
    sources: Mapping[int, list[str]],
    marks: Sequence[Mark],
    others: Sequence[Alert] = (),
    seen: Collection[str] | None = None,
) -> Overview:
    """Return rows with alerts for these queues, the worst first.

    Arguments:
        measured: metrics by queue name. A queue without metrics was dropped meanwhile.
        history: counts of the last hour, by queue id.
        failures: the failures of these queues in the last hour.
        sources: by queue id, the names of the queues that dead-letter into that queue.
        marks: deploys and the like, the oldest first.
        others: further alerts, not of a queue.
        seen: the names of the queues that the user may see; None: all.
    """
    params = {
        "failing": [pk for pk, each in history.items() if _fails(each)],
        "paused": [queue.pk for queue in queues if queue.paused],
    }
    names = {"oldest": places.OLDEST_READABLE, "minutes": MINUTES, "batches": batches.STATE}
    asked = {pk: _Asked(*row) for pk, *row in failures.ask("overview", params, **names)}
    at = now()
    minutes = {pk: each.by_minute for pk, each in asked.items() if each.minutes}
    began = onsets(queues[0].alias, minutes, SHARE_NOW, at)
    processes = _processes(queues)
    live = Counter(name for each in processes if is_live(each) for name in each.queues)
    lags, names_by_id = lags_of(queues), {queue.pk: queue.name for queue in queues}
    rows = []
    for queue in queues:
        if (backlog := measured.get(queue.name)) is None:
            continue
        told, happened = asked[queue.pk], history.get(queue.pk, Recent())
        row = Row(
            queue,
            _counts(backlog),
            backlog.length,
            {place for place in places.LIVE if place.value in backlog.estimated},
            live[queue.name],
            happened,
            happened.per_minute(at.second),
            sources.get(queue.pk, []),
            told.failed,
            told.dead,
            told.oldest,
            told.error,
            sorted({short_class(each) for each in told.error_classes or ()}),
            began.get(queue.pk),
            told.paused_by,
            told.paused_at,
            batches=BatchHealth.of(told.batches),
        )
        if queue.source_id is not None:
            row.read_from(names_by_id.get(queue.source_id, ""), lags[queue.pk])
        row.alert = _alert(row)
        rows.append(row)
    alerts = [alert for row in rows for alert in (row.alert, *_batch_alerts(row, seen)) if alert]
    alerts += [alert for process in processes if (alert := _vanished(process))]
    alerts += [*_long_open(asked[queues[0].pk].open_for), *others]
    for alert in alerts:
        alert.after = followed(marks, alert.since)
    found = Overview(rows, alerts, processes, list(marks), at)
    found.settle(queues[0].alias)
    rows.sort(key=lambda row: row.worst)
    return found


def _counts(backlog: Metrics) -> dict[Place, int]:
    return {
        Place.READY: backlog.ready,
        Place.DUE: backlog.visible - backlog.ready,
        Place.WAITING: backlog.waiting,
        Place.IN_FLIGHT: backlog.in_flight,
        Place.DELAYED: backlog.delayed,
    }


def _processes(queues: Sequence[Queue]) -> list[Process]:
    """Return the consumers of these queues, with those that died lately."""
    names = {queue.name for queue in queues}
    kept = Q(gone_at=None) | Q(gone_at__gte=ago(RECENT))
    found = Process.every.using(queues[0].alias).filter(kept).order_by("host", "pid")
    return [process for process in found if names.intersection(process.queues)]


def _batch_alerts(row: Row, seen: Collection[str] | None) -> Iterator[Alert]:
    """Yield the alerts for a queue's batches, one for each problem."""
    queue, found = row.queue, row.batches
    if found is not None and found.failing:
        text = ngettext(
            "%(count)s batch whose callback cannot be sent, and is tried again",
            "%(count)s batches whose callbacks cannot be sent, and are tried again",
            found.failing,
        ) % {"count": number(found.failing)}
        alert = Alert(CALLBACK, queue.name, text, queue, harm=found.failing)
        if is_name_seen(found.then_queue or "", seen):
            alert.error = cut(error_line(found.error or ""), 200)
        yield alert
    if found is not None and found.abandoned:
        text = ngettext(
            "%(count)s batch abandoned in the last day: members may be missing",
            "%(count)s batches abandoned in the last day: members may be missing",
            found.abandoned,
        ) % {"count": number(found.abandoned)}
        yield Alert(
            ABANDONED,
            queue.name,
            text,
            queue,
            since=found.first_at,
            harm=found.abandoned,
            begun=found.last_at,
        )


def _long_open(seconds: float | None) -> Iterator[Alert]:
    """Yield the alert for an oldest transaction of this age, if it is too old."""
    if seconds is not None and seconds > LONG_TRANSACTION:
        told = gettext("open for %s: rows deleted since then cannot be removed") % age(seconds)
        yield Alert(OPEN, "", told, since=now() - dt.timedelta(seconds=seconds))


def _sources(queues: Sequence[Queue], seen: Container[str] | None) -> dict[int, list[str]]:
    """Return, by queue id, the names of the queues that dead-letter into that queue."""
    found: dict[int, list[str]] = defaultdict(list)
    every: Iterable[Queue] = queues
    if seen is not None:
        every = Queue.objects.using(queues[0].alias).filter(dead_letter_queue__in=list(queues))
    for source in sorted(every, key=lambda queue: queue.name):
        if source.dead_letter_queue_id is not None:
            found[source.dead_letter_queue_id].append(name_of(source, seen))
    return found


def name_of(queue: Queue, seen: Container[str] | None) -> str:
    """Return the queue's name, or "another queue" if the user may not see it."""
    return queue.name if seen is None or queue.name in seen else gettext("another queue")


def is_name_seen(queue_name: str, seen: Iterable[str] | None) -> bool:
    """Return whether the user may see a queue of this name. ``seen`` is None if he may see all."""
    return seen is None or queue_name.lower() in {name.lower() for name in seen}


def add_times(rows: Sequence[Row]) -> None:
    """Set the recent wait and run times of these rows."""
    if rows:
        found = times(rows[0].queue.alias, [row.queue.pk for row in rows])
        for row in rows:
            row.times = found.get(row.queue.pk, UNKNOWN)


def _alert(row: Row) -> Alert | None:
    """Return the alert for a queue: its most important cause, with the texts of all causes."""
    # A pause comes first, since it explains the other problems.
    found = sorted(_causes(row), key=lambda each: (each[0] is not PAUSE, each[0].rank))
    if not found:
        return None
    cause, text = found[0][0], "; ".join(text for _cause, text in found)
    alert = Alert(cause, row.queue.name, text, row.queue, harm=row.length)
    alert.causes = [each.key for each, _text in found]
    if cause in (NO_CONSUMER, DEAD) and row.oldest is not None:
        alert.begun = now() - dt.timedelta(seconds=row.oldest)
    if cause is PAUSE:
        alert.since = alert.begun = row.paused_at
    if cause in (FAILING, FAILED):
        alert.harm = row.bad
        alert.error, alert.errors = row.error, row.errors
        if row.onset is not None:
            alert.since, alert.is_earlier = row.onset
            alert.begun = alert.since
    if cause is FAILING:
        # Since it began: a steady number of failures is no growth.
        since = LATELY if alert.since is None else seconds_since(alert.since)
        counted_for = min(max(since, SHORTEST), LATELY)
        alert.harm = round(row.recent.lately.bad * LATELY / counted_for)
    return alert


def _causes(row: Row) -> Iterator[tuple[Cause, str]]:
    """Yield a queue's problems, without those that another problem explains."""
    if row.source and row.lag is None:
        yield NO_POSITION, gettext("consumers read nothing: move it to a position")
    exact = row.exact
    to_read = gettext("%s to read") % counted(row.readable, exact=exact)
    oldest = (
        gettext(", the oldest readable for %s") % age(row.oldest) if row.oldest is not None else ""
    )
    future = row.outlook
    rest = oldest + (f", {future}" if future else "")
    if row.lag is not None and row.lag.lost:
        yield LOST, gettext("%s lost: removed from the source unread") % counted(row.lag.lost)
    if row.queue.paused:
        if row.length:
            waiting = gettext("%s waiting") % number(row.length, exact=exact)
            waiting += f", {future}" if future else ""
            yield PAUSE, _by(row.paused_by, waiting)
    elif row.sources:
        if row.length:
            told = {"number": number(row.length, exact=exact), "queues": ", ".join(row.sources)}
            yield DEAD, gettext("%(number)s from %(queues)s") % told + oldest
    elif row.lacks_consumer:
        yield NO_CONSUMER, to_read + rest
    elif row.is_old:
        grows = future is not None and future.grows is not None
        yield GROWING if grows else BEHIND, to_read + rest
    yield from _failing(row)


def _by(who: str | None, waiting: str) -> str:
    """Return the text of a paused queue, with who paused it if that is known."""
    if not who:
        return waiting
    return gettext("%(waiting)s, paused by %(user)s") % {"waiting": waiting, "user": cut(who, 80)}


def _fails(recent: Recent) -> Cause | None:
    """Return FAILING, FAILED or None.

    FAILING depends on the attempts of the last ten minutes or fewer, FAILED on those of the last
    hour.
    """
    present, hour = recent.lately, recent.hour
    if present.bad >= FAILURES and present.share >= SHARE_NOW:
        return FAILING
    newest = (total(recent.slots[-slots:]) for slots in (1, 2))
    if any(each.bad >= BURST and each.share >= SHARE_BURST for each in newest):
        return FAILING
    return FAILED if hour.bad >= FAILURES and hour.share >= SHARE else None


def _failing(row: Row) -> Iterator[tuple[Cause, str]]:
    cause = _fails(row.recent)
    if cause is not None:
        counts = row.recent.lately if cause is FAILING else row.recent.hour
        text = (
            gettext("%(bad)s of %(attempts)s attempts failed in the last ten minutes")
            if cause is FAILING
            else gettext("%(bad)s of %(attempts)s attempts failed in the last hour")
        )
        yield cause, text % {"bad": number(counts.bad), "attempts": number(counts.attempts)}
    elif not row.recent.hour.attempts and row.bad >= FAILURES:
        # Without a consumer of this package, the number of attempts is unknown.
        yield FAILED, gettext("%s failed in the last hour") % counted(row.bad)


def _vanished(process: Process) -> Alert | None:
    """Return the alert for a consumer process that died or sends no heartbeat, else None."""
    if process.gone_at is None:
        silent = seconds_since(process.heartbeat_at)
        told = gettext("no heartbeat for %s") % age(silent)
        since = process.heartbeat_at
        return Alert(GONE, str(process), told, since=since) if silent > DEAD_AFTER else None
    held = counted(process.given_back)
    told = gettext("ended without deregistering; it held %s, now released") % held
    # The user who acknowledged its silence knows of it.
    begun = process.heartbeat_at
    return Alert(GONE, str(process), told, since=process.gone_at, begun=begun)


def short_error(error_class: str, message: str) -> str:
    """Return an error in one line: its class name, and the line of its message that names it."""
    return cut(f"{short_class(error_class)}: {error_line(message)}", 200)


def short_class(error_class: str) -> str:
    """Return the name of an error's class, without its module."""
    return error_class.rpartition(".")[2]
