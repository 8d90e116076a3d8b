"""The counts and times of a queue per time span, and their charts."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _

from django_pgqueue.admin.charts import Chart, Line, count_of
from django_pgqueue.history.counters import COUNTERS, ENDED, FAILED
from django_pgqueue.history.histograms import quantile
from django_pgqueue.models import Mark, Rollup
from django_pgqueue.templatetags.pgqueue_admin import lapse

#: The names of a span's counts.
COUNTS = ("sent", *COUNTERS)
PERCENTILES = (50, 95, 99)

#: The looks of lines of consumers, which have no meaning.
_LOOKS = ("first", "second", "p95")

#: A chart's title, what it shows, and its lines.
Drawn = tuple[str, str, list[Line]]


@dataclass
class Span:
    """The counts and times of a span of time, summed over all processes."""

    counts: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)  # histograms
    runs: Counter[str] = field(default_factory=Counter)
    by_process: Counter[int] = field(default_factory=Counter)  # Messages that each process ended.
    depth: int | None = None
    oldest: float | None = None

    def add(self, row: dict[str, Any]) -> None:
        """Add a row of the queue's history to this span."""
        self.counts.update({name: row[name] for name in COUNTS})
        self.waits.update(row["waits"])
        self.runs.update(row["runs"])
        if row["process_id"]:
            self.by_process[row["process_id"]] += sum(row[name] for name in ENDED)
        self.by_process.update({int(pk): n for pk, n in (row["by_process"] or {}).items()})
        if row["depth"] is not None:
            self.depth = max(self.depth or 0, row["depth"])
            self.oldest = max(self.oldest or 0.0, row["oldest"] or 0.0)

    def percentiles(self, kind: str) -> list[float | None]:
        """Return the percentiles of ``waits`` or ``runs``, in seconds."""
        return [quantile(getattr(self, kind), part / 100) for part in PERCENTILES]


class RolledUp(Span):
    """A span filled from a roll-up, which has exact percentiles."""

    def __init__(self, row: Rollup | None) -> None:
        super().__init__(depth=getattr(row, "backlog", 0))
        self._row = row
        self.counts.update({name: getattr(row, name, 0) for name in COUNTS})

    def percentiles(self, kind: str) -> list[float | None]:
        return [getattr(self._row, f"{kind[:-1]}_p{part}", None) for part in PERCENTILES]


def charts(
    spans: Sequence[Span],
    moments: Sequence[dt.datetime],
    seconds: int,
    marks: Sequence[Mark],
    *,
    running: bool,
    knows_out: bool = True,
) -> list[Chart]:
    """Return the charts of these spans. Leave out empty charts.

    Arguments:
        moments: the start of each span.
        marks: deploys and the like, the oldest first.
        running: whether the last span is not over yet.
        knows_out: whether the number of ended messages is known.
    """
    every = [
        Chart(title, about, moments, seconds, lines, form, whole, running, marks)
        for drawn, form, whole in (
            (_of_messages(spans, lapse(seconds), knows_out), count_of, True),
            (_of_times(spans), lapse, False),
            (_of_workers(spans, seconds), count_of, False),
        )
        for title, about, lines in drawn
    ]
    return [each for each in every if not each.is_empty]


def _of_messages(spans: Sequence[Span], length: str, knows_out: bool) -> Iterator[Drawn]:
    def counts(name: str, look: str, *fields: str) -> Line:
        sums = [sum(span.counts[each] for each in fields) for span in spans]
        return Line(name, sums, look, adds=True)

    about = _("Messages sent (in) in %s. No consumer has counted those that ended.") % length
    lines = [counts(_("in"), "first", "sent")]
    if knows_out:
        about = _("Messages sent (in) and ended (out) in %s.") % length
        lines.append(counts(_("out"), "second", *ENDED))
    yield _("Throughput"), about, lines
    yield (
        _("Depth"),
        _("The largest number of messages in the queue."),
        [Line(_("depth"), [span.depth for span in spans], "first")],
    )
    yield (
        _("Failures"),
        _("Attempts that failed in %s. Later lines are drawn on top.") % length,
        [
            counts(_("retried"), "first", "retried"),
            counts(_("dead-lettered"), "second", "dead_lettered"),
            counts(_("failed"), "bad", *FAILED),
        ],
    )


def _of_times(spans: Sequence[Span]) -> Iterator[Drawn]:
    def percentiles(kind: str) -> list[Line]:
        found = zip(*(span.percentiles(kind) for span in spans), strict=True)
        return [
            Line(f"p{part}", values, f"p{part}")
            for part, values in zip(PERCENTILES, found, strict=True)
        ]

    yield (
        _("Wait times"),
        _("The time from when a message is readable to its first delivery."),
        percentiles("waits"),
    )
    yield _("Run times"), _("Run times of handlers."), percentiles("runs")
    yield (
        _("Oldest message"),
        _("The longest wait of a message in the queue."),
        [Line(_("oldest"), [span.oldest for span in spans], "first")],
    )


def by_consumer(
    spans: Sequence[Span],
    moments: Sequence[dt.datetime],
    seconds: int,
    names: Mapping[int, str],
    marks: Sequence[Mark],
) -> Chart:
    """Return the chart of messages that each consumer ended.

    ``names`` are those of processes by id. The busiest processes have a line each, the others one.
    """
    totals = sum((span.by_process for span in spans), Counter[int]())
    busiest = [pk for pk, _count in totals.most_common(len(_LOOKS))]
    lines = [
        Line(
            names.get(pk) or _("process %s") % pk,
            [span.by_process[pk] for span in spans],
            look,
            adds=True,
        )
        for pk, look in zip(busiest, _LOOKS, strict=False)
    ]
    if len(totals) > len(busiest):
        rest = [
            span.by_process.total() - sum(span.by_process[pk] for pk in busiest) for span in spans
        ]
        lines.append(Line(_("others"), rest, "other", adds=True))
    about = _("Messages that each consumer ended in %s. The busiest are named.") % lapse(seconds)
    return Chart(_("Out by consumer"), about, moments, seconds, lines, count_of, True, True, marks)


def _of_workers(spans: Sequence[Span], seconds: int) -> Iterator[Drawn]:
    busy = [span.counts["busy"] / seconds for span in spans]
    yield (
        _("Busy workers"),
        _("Handlers running at the same time, on average."),
        [Line(_("busy"), busy, "first filled", adds=True)],
    )
