"""The dashboard: charts and tables of the roll-ups, drawn once by the job and shown by the admin.

It is a fragment of a page: the admin provides the frame and the colours.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.translation import gettext as _

from django_pgqueue.admin.charts import Chart, Line, count_of
from django_pgqueue.models import Rollup
from django_pgqueue.templatetags.pgqueue_admin import lapse
from example_project.inbox.report import plots

__all__ = ["draw"]

HOUR = 3600
HOURS = 72
MOST = 10


def draw(history: Any) -> str:
    """Draw each queue's last three days by the hour, and the webhooks' figures from the lake."""
    newest = Rollup.objects.filter(seconds=HOUR).order_by("bucket").last()
    rows: list[Rollup] = []
    moments: list[dt.datetime] = []
    if newest is not None:
        hour = dt.timedelta(seconds=HOUR)
        moments = [newest.bucket - hour * back for back in reversed(range(HOURS))]
        rows = list(Rollup.objects.filter(seconds=HOUR, bucket__gte=moments[0]))
    page = {
        "made_at": timezone.now(),
        "queues": [
            (name, _charts([row for row in rows if row.queue_name == name], moments))
            for name in sorted({row.queue_name for row in rows})
        ],
        "errors": _errors(rows),
        "costs": _costs(rows),
        "history": history,
        "events": plots.bars([(str(row["event"]), row["deliveries"]) for row in history.events]),
        "repositories": plots.bars(
            [(row["repository"], row["deliveries"]) for row in history.repositories]
        ),
    }
    return render_to_string("inbox/dashboard.html", page)


def _charts(rows: Sequence[Rollup], moments: Sequence[dt.datetime]) -> list[Chart]:
    found = {row.bucket: row for row in rows}

    def line(name: str, field: str, look: str, nothing: float | None) -> Line:
        return Line(
            name, [getattr(found[at], field) if at in found else nothing for at in moments], look
        )

    def chart(title: str, about: str, lines: Sequence[Line], form: Any, whole: bool) -> Chart:
        return Chart(title, about, moments, HOUR, lines, form, whole)

    return [
        chart(
            _("Throughput"),
            _("Messages in an hour."),
            [
                line(_("sent"), "sent", "first", 0),
                line(_("completed"), "completed", "second", 0),
                line(_("failed"), "failed", "bad", 0),
            ],
            count_of,
            True,
        ),
        chart(
            _("Waiting"),
            _("From when a message could be read to its first delivery."),
            [line(f"p{part}", f"wait_p{part}", f"p{part}", None) for part in (50, 95, 99)],
            lapse,
            False,
        ),
    ]


def _errors(rows: Sequence[Rollup]) -> list[tuple[int, str, str]]:
    """The most frequent errors: their counts, queues and texts."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        for told in row.top_errors:
            counts[row.queue_name, told["error"]] += told["count"]
    return [(count, queue, error) for (queue, error), count in counts.most_common(MOST)]


def _costs(rows: Sequence[Rollup]) -> list[dict[str, Any]]:
    """The worker time of each queue, in descending order."""
    busy: defaultdict[str, float] = defaultdict(float)
    ended, retried = Counter[str](), Counter[str]()
    for row in rows:
        busy[row.queue_name] += row.busy
        ended[row.queue_name] += row.completed + row.failed
        retried[row.queue_name] += row.retried
    total = sum(busy.values())
    return [
        {
            "queue": queue,
            "ended": ended[queue],
            "retried": retried[queue],
            "busy": lapse(seconds),
            "each": lapse(seconds / ended[queue]) if ended[queue] else "-",
            "share": f"{seconds / total:.0%}" if total else "-",
        }
        for queue, seconds in sorted(busy.items(), key=itemgetter(1), reverse=True)
    ]
