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
from django_pgqueue.admin.base import RecordAdmin, column, count_column
from django_pgqueue.admin.charts import spark_paths
from django_pgqueue.admin.page import Page
from django_pgqueue.admin.series import RolledUp, charts
from django_pgqueue.models import Mark, Queue, Rollup, RollupRun
from django_pgqueue.templatetags.pgqueue_admin import EMPTY, lapse, linked, moment
from django_pgqueue.types import counted_in

#: Numbers of spans that a chart can show. With hourly spans: 1, 3, 7 or 14 days.
SPANS = (24, 72, 168, 336)
LONGEST_LIST = 10


class ChartsPage(Page):
    """The roll-ups of all queues as a table, or of one queue as charts."""

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
            "lengths": [(n, lapse(n)) for n in lengths],
            "seconds": seconds,
            "spans": spans,
            "ranges": [(n, lapse(n * (seconds or 3600))) for n in SPANS],
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
                pass  # The template says that there are no roll-ups.
            elif queue:
                found = {row.bucket: row for row in rows.filter(queue_name=queue)}
                context |= _one(found, moments, seconds)
                for told in context["poison"]:
                    told["message"] = linked(self.url("message_change", told["id"]), told["id"])
            else:
                context["table"] = _all(rows, moments)
        return self.render(context)


@admin.register(Rollup)
class RollupAdmin(RecordAdmin):
    """The list of roll-ups: counts and times per queue and time span."""

    part, filled_by = "rollups", "pgqueue_rollup"
    change_list_template = "admin/django_pgqueue/rollup_list.html"
    list_display = [
        *("id", "queue_name", "began"),
        *(
            count_column(Rollup, name)
            for name in (
                *("sent", *(state.counter for state in counted_in("rollup"))),
                *("retried", "dead_lettered", "backlog"),
            )
        ),
        *("waited", "ran"),
    ]
    list_filter = ["seconds"]
    ordering = ["-bucket", "queue_name"]
    search_fields = ["queue_name"]
    pages = [ChartsPage]

    began = column(gettext_lazy("from"), lambda row: moment(row.bucket), "bucket")
    waited = column(gettext_lazy("wait p95"), lambda row: _lapse(row.wait_p95), "wait_p95")
    ran = column(gettext_lazy("run p95"), lambda row: _lapse(row.run_p95), "run_p95")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Rollup]:
        rows = super().get_queryset(request)
        seen = allowed(request)
        return rows if seen is None else rows.filter(queue_name__in=list(seen.values()))


def _lapse(seconds: float | None) -> str:
    return EMPTY if seconds is None else lapse(seconds)


def _chosen(request: HttpRequest, name: str, known: Sequence[int], usual: int | None) -> int | None:
    """Return the query parameter ``name`` if it is in ``known``, else ``usual``.

    If ``usual`` is None, the first of ``known`` takes its place.
    """
    given = request.GET.get(name, "")
    if given.isdecimal() and int(given) in known:
        return int(given)
    return usual if usual is not None else next(iter(known), None)


def _one(
    found: dict[dt.datetime, Rollup], moments: Sequence[dt.datetime], seconds: int
) -> dict[str, Any]:
    """Return the charts and lists of one queue. A span without a row counts as zero."""
    newest = found.get(moments[-1])
    over = moments[-1] + dt.timedelta(seconds=seconds)
    spans = [RolledUp(found.get(moment)) for moment in moments]
    running = newest is not None and newest.computed_at < over
    marks = Mark.objects.since(moments[0], using=Queue.objects.database())
    return {
        "charts": charts(spans, moments, seconds, marks, running=running),
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


def _most(counted: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    sums: Counter[str] = Counter()
    for name, count in counted:
        sums[name] += count
    return sums.most_common(LONGEST_LIST)


def _all(rows: Any, moments: Sequence[dt.datetime]) -> list[dict[str, Any]]:
    """Return a table row per queue: sums, the longest times, and sparklines of two columns."""
    states, longest = counted_in("rollup"), ("wait_p95", "run_p95")
    summed = ("sent", *(state.counter for state in states), "dead_lettered")
    found: dict[str, dict[dt.datetime, dict[str, Any]]] = defaultdict(dict)
    fields = (*summed, *longest, "queue_name", "bucket", "seconds", "backlog", "busy")
    for row in rows.values(*fields):
        found[row["queue_name"]][row["bucket"]] = row
    table = []
    for name, spans in sorted(found.items()):
        told = list(spans.values())
        sums = {field: sum(row[field] for row in told) for field in summed}
        most = {field: max((row[field] or 0 for row in told), default=0) for field in longest}
        good = sum(sums[state.counter] for state in states if state.is_success)
        bad = sum(sums[state.counter] for state in states if state.is_failure)
        bad += sums["dead_lettered"]
        lines = {
            field: [spans[moment][field] if moment in spans else 0 for moment in moments]
            for field in ("sent", "backlog")
        }
        table.append(
            {
                "queue": name,
                **sums,
                **most,
                "share": bad / (good + bad) if bad else 0,
                "backlog": lines["backlog"][-1],
                "busy": sum(row["busy"] for row in told) / told[0]["seconds"] / len(moments),
                "paths": {field: spark_paths([line])[0] for field, line in lines.items()},
            }
        )
    return table


@admin.register(RollupRun)
class RollupRunAdmin(RecordAdmin):
    """The runs of the roll-up job, with the period that each computed."""

    part, filled_by = "rollups", "pgqueue_rollup"
    list_display = [
        *("id", "length", "began", "ended"),
        *(count_column(RollupRun, name) for name in ("buckets", "removed")),
        "finished",
    ]
    length = column(gettext_lazy("span"), lambda run: lapse(run.seconds), "seconds")
    began = column(gettext_lazy("from"), lambda run: moment(run.from_at))
    ended = column(gettext_lazy("to"), lambda run: moment(run.to_at))
    finished = column(gettext_lazy("finished at"), lambda run: moment(run.finished_at))
