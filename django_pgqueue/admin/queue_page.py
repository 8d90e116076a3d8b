"""The data of a queue's page: history charts, errors, groups and storage."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django import forms
from django.db import connections
from django.template.defaultfilters import filesizeformat
from django.utils.timezone import now
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgqueue.admin.charts import Chart, Line, count_of, seconds_of
from django_pgqueue.admin.spans import SpanField
from django_pgqueue.admin.wording import moment
from django_pgqueue.history.histograms import quantile
from django_pgqueue.history.recent import LATELY, Counts, Recent, Times
from django_pgqueue.models import Attempt, History, Queue
from django_pgqueue.wording import amount, length_text

__all__ = ["RANGES", "Happened", "Range", "SendForm", "errors_of", "room_of"]

#: How many errors and groups are shown, and how many waiting messages are read to find groups.
LONGEST_LIST = 10
WAITING = 20_000

_COUNTS = ("sent", "completed", "retried", "failed", "dead_lettered", "busy")


class SendForm(forms.Form):
    """A message to send."""

    body = forms.JSONField(
        required=False, label=_("Body"), help_text=_("JSON; empty: null."), widget=forms.Textarea
    )
    headers = forms.JSONField(
        required=False, label=_("Headers"), help_text=_("A JSON object, or nothing.")
    )
    delay = SpanField(required=False, label=_("Delay"), help_text=_("Like 10min; empty: none."))
    priority = forms.IntegerField(
        required=False, min_value=-100, max_value=100, initial=0, label=_("Priority")
    )
    group = forms.CharField(required=False, empty_value=None, max_length=255, label=_("Group"))
    dedup_key = forms.CharField(
        required=False, empty_value=None, max_length=255, label=_("Dedup key")
    )

    def clean_priority(self) -> int:
        return self.cleaned_data["priority"] or 0


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
            SELECT group_key FROM {waiting} WHERE queue_id = {queue_id}
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
