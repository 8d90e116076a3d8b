"""The page of one queue: history charts, consumers, errors, groups and storage."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import connections
from django.db.models import Q
from django.http import Http404, HttpResponse
from django.template.defaultfilters import filesizeformat
from django.utils.timezone import now
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgqueue.admin.bulk_actions import may
from django_pgqueue.admin.charts import Chart, Line, count_of, seconds_of
from django_pgqueue.admin.overview import DEAD_AFTER, Row, judged, name_of, seconds_since
from django_pgqueue.admin.overview_page import FiguresPage
from django_pgqueue.admin.queue_actions import PausePage, PurgePage, SendPage
from django_pgqueue.admin.wording import cut, moment
from django_pgqueue.history.histograms import quantile
from django_pgqueue.history.recent import LATELY, Counts, Recent, Times
from django_pgqueue.models import Attempt, History, Message, Process, Queue
from django_pgqueue.models.bulk import Kind
from django_pgqueue.wording import age, amount, length_text

__all__ = ["QueueOverviewPage"]

#: How many errors and groups are shown, and how many waiting messages are read to find groups.
LONGEST_LIST = 10
WAITING = 20_000
#: How many characters of an error are shown.
ERROR = 300

_COUNTS = ("sent", "completed", "retried", "failed", "dead_lettered", "busy")


@dataclass(frozen=True)
class Range:
    """The range of the charts: ``spans`` spans of ``seconds`` each."""

    label: Any
    seconds: int
    spans: int


RANGES = {
    "hour": Range(_("1 hour"), 60, 60),
    "day": Range(_("1 day"), 3600, 24),
    "week": Range(_("7 days"), 2 * 3600, 84),
    "fortnight": Range(_("14 days"), 4 * 3600, 84),
}


@dataclass
class Span:
    """The counts and times of one span, summed over all processes."""

    counts: Counter[str] = field(default_factory=Counter)
    times: dict[str, Counter[str]] = field(
        default_factory=lambda: {"waits": Counter(), "runs": Counter()}
    )
    depth: int | None = None
    oldest: float | None = None

    def add(self, row: dict[str, Any]) -> None:
        self.counts.update({name: row[name] for name in _COUNTS})
        for kind, counts in self.times.items():
            counts.update(row[kind])
        if row["depth"] is not None:
            self.depth = max(self.depth or 0, row["depth"])
            self.oldest = max(self.oldest or 0.0, row["oldest"] or 0.0)


class Happened:
    """The history of a queue over a range that ends with the current span."""

    def __init__(self, queue: Queue, chosen: Range) -> None:
        self._seconds = chosen.seconds
        last = int(now().timestamp()) // chosen.seconds * chosen.seconds
        self._starts = [last - chosen.seconds * back for back in reversed(range(chosen.spans))]
        self._spans = {start: Span() for start in self._starts}
        self.recent = Recent()
        lately = Span()
        minute = int(now().timestamp()) // 60 * 60
        since = now() - dt.timedelta(seconds=chosen.seconds * chosen.spans)
        rows = History.objects.using(queue.alias).filter(queue=queue, bucket__gte=since)
        for row in rows.values("bucket", "seconds", "waits", "runs", "depth", "oldest", *_COUNTS):
            at = int(row["bucket"].timestamp())
            if row["seconds"] == 60 and minute - at < 3600:
                self.recent.add(minute - at, Counts(*(row[name] for name in Counts._fields)))
            if row["seconds"] == 60 and minute - at < LATELY:
                lately.add(row)
            span = self._spans.get(at // chosen.seconds * chosen.seconds)
            if span is not None:
                span.add(row)
        self.times = Times.of(lately.times)

    def charts(self) -> list[Chart]:
        return _drawn(list(self._spans.values()), self._starts, self._seconds)


def _drawn(spans: Sequence[Span], starts: Sequence[int], seconds: int) -> list[Chart]:
    length = seconds_of(seconds)
    moments = [dt.datetime.fromtimestamp(start, dt.timezone.utc) for start in starts]

    def counts(name: str, look: str, *fields: str) -> Line:
        return Line(name, [sum(span.counts[each] for each in fields) for span in spans], look)

    def percentiles(kind: str) -> list[Line]:
        return [
            Line(f"p{part}", [quantile(span.times[kind], part / 100) for span in spans], f"p{part}")
            for part in (50, 95, 99)
        ]

    def chart(
        title: str, about: str, lines: list[Line], form: Any = count_of, whole: bool = False
    ) -> Chart:
        return Chart(title, about, moments, seconds, lines, form, whole, running=True)

    depth: list[float | None] = [span.depth for span in spans]
    oldest: list[float | None] = [span.oldest for span in spans]
    busy = [span.counts["busy"] / seconds for span in spans]
    return [
        chart(
            gettext("Throughput"),
            gettext("Messages in and out in %s.") % length,
            [
                counts(gettext("in"), "first", "sent"),
                counts(gettext("out"), "second", "completed", "failed", "dead_lettered"),
            ],
            whole=True,
        ),
        chart(
            gettext("Depth"),
            gettext("The largest number of messages in the queue."),
            [Line(gettext("depth"), depth, "first")],
            whole=True,
        ),
        chart(
            gettext("Failures"),
            gettext("Attempts that failed in %s. Later lines are drawn on top.") % length,
            [
                counts(gettext("retried"), "first", "retried"),
                counts(gettext("dead-lettered"), "second", "dead_lettered"),
                counts(gettext("failed"), "bad", "failed"),
            ],
            whole=True,
        ),
        chart(
            gettext("Waiting"),
            gettext("The time from readable to the first delivery."),
            percentiles("waits"),
            seconds_of,
        ),
        chart(
            gettext("Running"), gettext("Run times of handlers."), percentiles("runs"), seconds_of
        ),
        chart(
            gettext("Oldest message"),
            gettext("The longest wait of a message in the queue."),
            [Line(gettext("oldest"), oldest, "first")],
            seconds_of,
        ),
        chart(
            gettext("Busy workers"),
            gettext("Handlers running at the same time, on average."),
            [Line(gettext("busy"), busy, "first filled")],
        ),
    ]


def errors_of(queue: Queue) -> list[Attempt]:
    """The newest failed attempts, without their tracebacks."""
    attempts = Attempt.objects.using(queue.alias).filter(queue=queue)
    return list(attempts.defer("traceback").order_by("-at", "-id")[:LONGEST_LIST])


def room_of(queue: Queue) -> tuple[list[tuple[str, str]], bool, list[tuple[str, str]]]:
    """The largest FIFO groups, whether all waiting messages were read, and the storage used.

    Groups are sorted by the number of messages behind their head.
    """
    sql = """
        WITH waiting AS (
            SELECT group_key FROM pgqueue_waiting WHERE queue_id = {queue_id}
            ORDER BY group_key, id LIMIT (SELECT %(limit)s::bigint)),
        groups AS (
            SELECT group_key, count(*) AS number FROM waiting
            GROUP BY group_key ORDER BY number DESC, group_key LIMIT %(most)s)
        SELECT ARRAY(SELECT group_key FROM groups), ARRAY(SELECT number FROM groups),
               (SELECT count(*) FROM waiting),
               (SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('{message}')),
               (SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('{archive}')),
               (SELECT purged_at FROM pgqueue_purge_mark WHERE queue_id = {queue_id})
    """
    with connections[queue.alias].cursor() as cursor:
        cursor.execute(sql.format_map(queue.tables), {"limit": WAITING, "most": LONGEST_LIST})
        keys, numbers, waiting, messages, archive, purged_at = cursor.fetchone()
    storage = [
        (gettext("Messages and their bodies"), str(filesizeformat(messages or 0))),
        (gettext("Outcomes"), str(filesizeformat(archive or 0))),
        (
            gettext("Storage"),
            gettext("unlogged: empty after a crash of the server")
            if queue.unlogged
            else gettext("logged"),
        ),
        (
            gettext("Archived messages are kept"),
            length_text(queue.retention) if queue.retention else gettext("for ever"),
        ),
        (gettext("Retention last removed messages"), moment(purged_at)),
    ]
    groups = [(key, amount(number)) for key, number in zip(keys, numbers, strict=True)]
    return groups, waiting < WAITING, storage


class QueueOverviewPage(FiguresPage):
    """One queue: its numbers and charts, its consumers, errors, groups and storage."""

    name = "queue_overview"
    route = "<int:pk>/overview/"
    template = "queue"

    def answer(self, pk: int) -> HttpResponse:
        seen = self.seen
        # The queue, and the queues that dead-letter into it.
        both = Queue.objects.filter(Q(pk=pk) | Q(dead_letter_queue=pk)).order_by("name")
        sources = list(both)
        queue: Any = next((each for each in sources if each.pk == pk), None)
        if queue is None or (seen is not None and queue.name not in seen):
            raise Http404
        sources.remove(queue)
        chosen = RANGES.get(self.request.GET.get("range", ""), RANGES["hour"])
        happened = Happened(queue, chosen)
        self.owner.prepare([queue])
        found = judged(
            [queue],
            {queue.name: queue.backlog} if queue.backlog else {},
            {queue.pk: happened.recent},
            sources={queue.pk: [name_of(source, seen) for source in sources]},
        )
        for row in found.rows:
            row.times = happened.times
        groups, all_groups, storage = room_of(queue)
        return self.render_live(
            {
                "title": queue.name,
                "is_list": False,
                "queue": queue,
                "alerts": [(alert, self.alert_url(alert)) for alert in found.alerts],
                "rows": self.cells(found.rows),
                "ranges": [
                    (key, each.label, each is chosen, f"?range={key}")
                    for key, each in RANGES.items()
                ],
                "charts": happened.charts(),
                "consumers": self._consumers(queue, found.processes),
                "errors": [
                    (
                        attempt,
                        self.owner.message_link(attempt.message_id, queue.pk),
                        cut(f"{attempt.error_class}: {attempt.message}", ERROR),
                    )
                    for attempt in errors_of(queue)
                ],
                "groups": groups,
                "all_groups": all_groups,
                "storage": storage,
                "links": self._links(queue, found.rows),
                "may_pause": self.may(PausePage),
                "back": self.request.get_full_path(),
            },
        )

    def _consumers(self, queue: Queue, processes: Iterable[Process]) -> list[dict[str, Any]]:
        """The consumers of the queue, and the messages of it that each works on."""
        rows = []
        for process in processes:
            silent = seconds_since(process.heartbeat_at)
            told = process.working_on if isinstance(process.working_on, dict) else {}
            held = told.get(queue.name, [])
            rows.append(
                {
                    "process": process,
                    "is_dead": silent > DEAD_AFTER,
                    "heartbeat": age(silent),
                    "held": [self.owner.message_link(each, queue.pk) for each in held],
                }
            )
        return rows

    def _links(self, queue: Queue, rows: Sequence[Row]) -> list[tuple[str, str]]:
        """Label and URL of each action that this user may take on the queue."""
        links = []
        if self.owner.admin_site.is_registered(Message):
            links.append((gettext("Messages"), self.url("message_changelist", queue=queue.pk)))
        if self.may(SendPage):
            links.append((gettext("Send a message"), self.url("queue_send", queue.pk)))
        if any(row.sources for row in rows) and may(self.request, Kind.REDRIVE):
            links.append((gettext("Redrive"), self.url("queue_redrive", queue.pk)))
        if self.may(PurgePage):
            links.append((gettext("Purge"), self.url("queue_purge", queue.pk)))
        links.append((gettext("Settings"), self.url("queue_change", queue.pk)))
        return links
