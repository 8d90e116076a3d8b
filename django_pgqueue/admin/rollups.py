"""The admin of roll-ups (charts and a list) and of roll-up runs."""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin.access import allowed
from django_pgqueue.admin.base import RecordAdmin
from django_pgqueue.admin.charts import Chart, Line, count_of, seconds_of, spark_path
from django_pgqueue.admin.page import Page
from django_pgqueue.admin.wording import EMPTY, lapse, moment
from django_pgqueue.models import Message, Rollup, RollupRun
from django_pgqueue.wording import amount

__all__ = ["RollupAdmin", "RollupRunAdmin"]

#: How many spans a chart can show. In hours: a day, three days, a week, two weeks.
SPANS = (24, 72, 168, 336)
LONGEST_LIST = 10


class ChartsPage(Page):
    """All queues as a table, or one of them as charts."""

    name = "rollup_charts"
    route = "charts/"
    template = "charts"

    def answer(self) -> HttpResponse:
        rollups = self.owner.get_queryset(self.request).order_by("bucket")
        lengths = sorted(set(rollups.order_by().values_list("seconds", flat=True).distinct()))
        seconds = _chosen(self.request, "seconds", lengths, 3600 if 3600 in lengths else None)
        spans = _chosen(self.request, "spans", SPANS, SPANS[0]) or SPANS[0]
        queue = self.request.GET.get("queue", "")
        context: dict[str, Any] = {
            "title": _("Charts of %s") % queue if queue else _("Charts"),
            "queue": queue,
            "lengths": [(n, seconds_of(n)) for n in lengths],
            "seconds": seconds,
            "spans": spans,
            "ranges": [(n, seconds_of(n * (seconds or 3600))) for n in SPANS],
            "run": RollupRun.objects.filter(seconds=seconds or 0).first(),
        }
        newest = None if seconds is None else rollups.filter(seconds=seconds).last()
        if newest is not None and seconds is not None:
            moments = [
                newest.bucket - dt.timedelta(seconds=seconds * back)
                for back in reversed(range(spans))
            ]
            rows = rollups.filter(seconds=seconds, bucket__gte=moments[0])
            context["queues"] = sorted(set(rows.order_by().values_list("queue_name", flat=True)))
            if queue and queue not in context["queues"]:
                pass  # the page says that there are none
            elif queue:
                found = {row.bucket: row for row in rows.filter(queue_name=queue)}
                context |= _one(found, moments, seconds)
                for told in context["poison"]:
                    told["message"] = self.owner.link(Message, told["id"], told["id"])
            else:
                context["table"] = _all(rows, moments)
        return self.render(context)


@admin.register(Rollup)
class RollupAdmin(RecordAdmin):
    """Roll-ups: the counts and times of each queue and span."""

    change_list_template = "admin/django_pgqueue/rollup_list.html"
    list_display = [
        "id",
        "queue_name",
        "began",
        "sent",
        "completed",
        "failed",
        "retried",
        "dead_lettered",
        "backlog",
        "waited",
        "ran",
    ]
    list_filter = ["seconds"]
    ordering = ["-bucket", "queue_name"]
    search_fields = ["queue_name"]
    pages = [ChartsPage]

    @admin.display(description=gettext_lazy("from"), ordering="bucket")
    def began(self, rollup: Rollup) -> str:
        return moment(rollup.bucket)

    @admin.display(description=gettext_lazy("wait p95"), ordering="wait_p95")
    def waited(self, rollup: Rollup) -> str:
        return EMPTY if rollup.wait_p95 is None else lapse(rollup.wait_p95)

    @admin.display(description=gettext_lazy("run p95"), ordering="run_p95")
    def ran(self, rollup: Rollup) -> str:
        return EMPTY if rollup.run_p95 is None else lapse(rollup.run_p95)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Rollup]:
        rows = super().get_queryset(request)
        seen = allowed(request)
        return rows if seen is None else rows.filter(queue_name__in=list(seen.values()))


def _chosen(request: HttpRequest, name: str, known: Sequence[int], usual: int | None) -> int | None:
    """A number from the query string if it is in ``known``, else ``usual`` or the first known."""
    given = request.GET.get(name, "")
    if given.isdecimal() and int(given) in known:
        return int(given)
    return usual if usual is not None else next(iter(known), None)


def _one(
    found: dict[dt.datetime, Rollup], moments: Sequence[dt.datetime], seconds: int
) -> dict[str, Any]:
    """The charts and lists of one queue. In a span without a row nothing happened."""
    rows = [found.get(moment) for moment in moments]

    def counts(name: str, field: str, look: str) -> Line:
        return Line(name, [getattr(row, field) if row else 0 for row in rows], look)

    def percentiles(name: str) -> list[Line]:
        fields = ((f"p{part}", f"{name}_p{part}") for part in (50, 95, 99))
        return [
            Line(told, [getattr(row, field) if row else None for row in rows], told)
            for told, field in fields
        ]

    newest = rows[-1]
    over = moments[-1] + dt.timedelta(seconds=seconds)
    not_over = newest is not None and newest.computed_at < over

    def chart(
        title: str, about: str, lines: Sequence[Line], form: Any = count_of, whole: bool = False
    ) -> Chart:
        return Chart(title, about, moments, seconds, lines, form, whole, not_over)

    span = seconds_of(seconds)
    ended = [counts(_("sent"), "sent", "first"), counts(_("completed"), "completed", "second")]
    bad = [
        counts(_("retried"), "retried", "first"),
        counts(_("dead-lettered"), "dead_lettered", "second"),
        counts(_("failed"), "failed", "bad"),
    ]
    waiting = _("The time from readable to the first delivery.")
    running = _("From the last delivery to the end.")
    return {
        "charts": [
            chart(
                _("Throughput"), _("Messages sent and completed in %s.") % span, ended, whole=True
            ),
            chart(
                _("Backlog"),
                _("In the queue at the end of a span."),
                [counts(_("backlog"), "backlog", "first filled")],
                whole=True,
            ),
            chart(_("Waiting"), waiting, percentiles("wait"), seconds_of),
            chart(_("Running"), running, percentiles("run"), seconds_of),
            chart(
                _("Utilisation"),
                _("Workers that were busy, on average."),
                [counts(_("busy"), "utilisation", "first filled")],
            ),
            chart(
                _("Failures"),
                _("Attempts that failed in %s. The last to be drawn is on top.") % span,
                bad,
                whole=True,
            ),
        ],
        "errors": _most((e["error"], e["count"]) for row in found.values() for e in row.top_errors),
        "groups": _most(
            (row.top_group["group"], row.top_group["count"])
            for row in found.values()
            if row.top_group
        ),
        "poison": sorted(
            (told for row in found.values() for told in row.poison),
            key=lambda told: (-told["read_ct"], told["id"]),
        )[:LONGEST_LIST],
    }


def _most(counted: Iterable[tuple[str, int]]) -> list[tuple[str, str]]:
    sums: Counter[str] = Counter()
    for name, count in counted:
        sums[name] += count
    return [(name, amount(count)) for name, count in sums.most_common(LONGEST_LIST)]


def _all(rows: Any, moments: Sequence[dt.datetime]) -> list[dict[str, Any]]:
    """A table row for each queue."""
    fields = (
        "sent",
        "completed",
        "failed",
        "dead_lettered",
        "backlog",
        "busy",
        "wait_p95",
        "run_p95",
    )
    found: dict[str, dict[dt.datetime, dict[str, Any]]] = defaultdict(dict)
    for row in rows.values("queue_name", "bucket", "seconds", *fields):
        found[row["queue_name"]][row["bucket"]] = row
    table = []
    for name, spans in sorted(found.items()):
        told = list(spans.values())
        completed, failed, dead = (
            sum(row[field] for row in told) for field in ("completed", "failed", "dead_lettered")
        )
        bad = failed + dead
        waits, runs = (
            [row[field] for row in told if row[field] is not None]
            for field in ("wait_p95", "run_p95")
        )
        backlog = [spans[m]["backlog"] if m in spans else 0 for m in moments]
        table.append(
            {
                "queue": name,
                "sent": amount(sum(row["sent"] for row in told)),
                "completed": amount(completed),
                "failed": amount(failed),
                "dead": amount(dead),
                "share": f"{bad / (completed + bad):.1%}" if bad else "",
                "backlog": amount(backlog[-1]),
                "wait": seconds_of(max(waits)) if waits else "-",
                "run": seconds_of(max(runs)) if runs else "-",
                "busy": count_of(
                    sum(row["busy"] for row in told) / told[0]["seconds"] / len(moments)
                ),
                "sent_path": spark_path([spans[m]["sent"] if m in spans else 0 for m in moments]),
                "backlog_path": spark_path(backlog),
            }
        )
    return table


@admin.register(RollupRun)
class RollupRunAdmin(RecordAdmin):
    """The runs of the roll-up job: the spans each computed, and when."""

    list_display = ["id", "seconds", "began", "ended", "buckets", "removed", "finished"]

    @admin.display(description=gettext_lazy("from"))
    def began(self, run: RollupRun) -> str:
        return moment(run.from_at)

    @admin.display(description=gettext_lazy("to"))
    def ended(self, run: RollupRun) -> str:
        return moment(run.to_at)

    @admin.display(description=gettext_lazy("finished at"))
    def finished(self, run: RollupRun) -> str:
        return moment(run.finished_at)
