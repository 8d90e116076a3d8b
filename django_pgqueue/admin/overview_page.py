"""The overview of all queues, as a page and as JSON."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpResponse, HttpResponseRedirect, JsonResponse
from django.utils.crypto import constant_time_compare
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from django_pgqueue.admin import overview
from django_pgqueue.admin.access import names_for
from django_pgqueue.admin.acknowledging import acknowledge, as_shown, forget
from django_pgqueue.admin.bulk_actions import may
from django_pgqueue.admin.charts import spark_paths
from django_pgqueue.admin.marks import lines
from django_pgqueue.admin.overview import Alert, Cause, Overview, Row, add_times, is_live, look
from django_pgqueue.admin.page import Page
from django_pgqueue.admin.places import Place
from django_pgqueue.admin.queue_actions import PausePage
from django_pgqueue.admin.shown import is_shown
from django_pgqueue.conf import settings
from django_pgqueue.history.recent import Recent
from django_pgqueue.models import Binding, Queue, Schedule
from django_pgqueue.queues.bulk import Kind
from django_pgqueue.templatetags.pgqueue_admin import linked, number

#: The number of queues per page, and the maximum number of queues that are measured.
QUEUES_PER_PAGE, MOST_QUEUES = 100, 2000
#: Width and height of the sparklines: of a queue, and of all queues.
SPARK, CHART = (80, 18), (300, 46)
#: The number of subjects that a line with several alerts names.
NAMED = 3


@dataclass
class Line:
    """The alerts of one cause, each with a link to a page with details, or with ""."""

    cause: Cause
    alerts: list[tuple[Alert, str]]

    @property
    def told(self) -> str:
        """The number of alerts and the worst subjects: "8 queues behind: mails, orders, …"."""
        subjects = [alert.subject for alert, _link in self.alerts if alert.subject]
        names = ", ".join([*subjects[:NAMED], *(["…"] if len(subjects) > NAMED else [])])
        told = str(self.cause.many) % number(len(self.alerts))
        return f"{told}: {names}" if names else told

    @property
    def since(self) -> dt.datetime | None:
        """When the first of them began."""
        return min((alert.since for alert, _link in self.alerts if alert.since), default=None)


class FiguresPage(Page):
    """A page with the figures and alerts of queues."""

    @property
    def seen(self) -> Collection[str] | None:
        """The names of the queues that the user may see; None: all."""
        return names_for(self.request)

    def look(self) -> Overview:
        """Measure all queues that the user may see."""
        queues = self.owner.get_queryset(self.request).order_by("name")
        exports_used = is_shown(self.request, "exports")
        return look(list(queues[:MOST_QUEUES]), seen=self.seen, exports_used=exports_used)

    def context(self) -> dict[str, Any]:
        """Return the URLs and permissions that the templates need."""
        return {
            "messages_url": self.url("message_changelist"),
            "failures_url": self.url("message_failures"),
            "consumers_url": self.url("process_changelist"),
            "may_redrive": may(self.request, Kind.REDRIVE),
            "may_pause": self.may(PausePage),
        }

    def attention(self, alerts: Iterable[Alert]) -> dict[str, Any]:
        """Return a line for each cause, the worst first, and the acknowledged alerts."""
        new = [alert for alert in alerts if alert.acknowledged is None]
        known = [alert for alert in alerts if alert.acknowledged is not None]
        return {
            "attention": [
                Line(cause, self._linked(theirs))
                for cause, theirs in groupby(new, lambda alert: alert.cause)
            ],
            "acknowledged": self._linked(known),
            "may_acknowledge": self.may(AcknowledgePage),
        }

    def _linked(self, alerts: Iterable[Alert]) -> list[tuple[Alert, str]]:
        return [(alert, self._link(alert.cause, alert.queue)) for alert in alerts]

    def _link(self, cause: Cause, queue: Queue | None) -> str:
        if queue is not None and cause is overview.DEAD and may(self.request, Kind.REDRIVE):
            return linked(self.url("queue_redrive", queue.pk), _("redrive"))
        url = cause.page and self.url(cause.page)
        of_queue = queue is not None and cause.page.startswith(("message", "batch"))
        query = {"queue": queue.pk} if queue is not None and of_queue else {}
        return linked(url, cause.label, **query) if url else ""


def drawn(row: Row) -> dict[str, Any]:
    """Return a row with its bar, the bar in words, and its sparkline."""
    counts = [f"{place} {number(count)}" for place, count in row.counts.items() if count]
    return {
        "row": row,
        "bar": _bar(row.counts, row.length),
        "places": ", ".join(counts),
        "spark": spark([row], *SPARK),
    }


def _bar(counts: Mapping[Place, int], length: int) -> list[tuple[str, float, float]]:
    """Return (CSS class, x, width) of each part of a backlog's bar, which is 100 units wide."""
    parts, x = [], 0.0
    looks = {"flight": (Place.IN_FLIGHT,), "ready": (Place.READY, Place.DUE)}
    looks |= {"waiting": (Place.WAITING,), "delayed": (Place.DELAYED,)}
    for name, places in looks.items():
        if count := sum(counts[place] for place in places):
            width = 100 * count / length
            parts.append((name, round(x, 1), round(width, 1)))
            x += width
    return parts


def spark(rows: Sequence[Row], width: int, height: int) -> list[str]:
    """Return the sparklines of messages sent and ended in the last hour; [] if all are zero.

    The second line is left out if no queue's number of ended messages is known.
    """
    over = Recent.sum(row.recent for row in rows).over
    sent, ended = [slot.sent for slot in over], [slot.ended for slot in over]
    known = any(row.out is not None for row in rows)
    drawn = [sent, ended] if known else [sent]
    return spark_paths(drawn, width, height) if any(sent + ended) else []


class OverviewPage(FiguresPage):
    """The overview: totals, alerts, and a row per queue."""

    name = "queue_changelist"
    template = "overview"

    def answer(self) -> HttpResponse:
        by_name = self.request.GET.get("by") == "name"
        words = self.request.GET.get("q", "").strip()
        found = self.look()
        if by_name:
            found.rows.sort(key=lambda row: row.queue.name.lower())
        shown = [row for row in found.rows if words.lower() in row.queue.name.lower()]
        # Idle queues are folded, except in a list by name, in a search, and if all are idle.
        fold = not (by_name or words) and any(not row.is_idle for row in shown)
        idle = [row for row in shown if row.is_idle] if fold else []
        busy = [row for row in shown if not (fold and row.is_idle)]
        page = Paginator(busy, QUEUES_PER_PAGE).get_page(self.request.GET.get("p"))
        idle = idle[:QUEUES_PER_PAGE] if not page.has_next() else []
        add_times(list(page))
        return self.render_live(
            {
                "title": _("Queues"),
                **self.context(),
                "strip": _strip(found),
                **self.attention(found.alerts),
                "spark_marks": lines(found.marks, *SPARK),
                "tables": [list(map(drawn, page)), list(map(drawn, idle))],
                "page": page,
                "words": words,
                "by_name": by_name,
                "unused": list(self._unused()),
                "has_add_permission": self.owner.has_add_permission(self.request),
            },
        )

    def _unused(self) -> Iterator[tuple[str, str]]:
        """Yield name and URL of each hidden list whose first row can be added in the admin."""
        site = self.owner.admin_site
        for model in (Schedule, Binding):
            if site.is_registered(model):
                owner = site.get_model_admin(model)
                seen = owner.has_view_or_change_permission(self.request)
                if seen and not is_shown(self.request, owner.part):
                    name = capfirst(model._meta.verbose_name_plural)
                    yield str(name), self.url(f"{model._meta.model_name}_changelist")


def _strip(found: Overview) -> dict[str, Any]:
    """Return the totals of all queues, and a chart of their last hour."""
    rows, dead = found.rows, [row for row in found.rows if row.sources]
    return {
        "spark": spark(rows, *CHART),
        "marks": lines(found.marks, *CHART),
        "backlog": sum(row.length for row in rows),
        "exact": all(row.exact for row in rows),
        "out": sum(row.out for row in rows if row.out is not None),
        "out_known": any(row.out is not None for row in rows),
        # Whether messages were sent to a queue whose number of ended messages is unknown.
        "out_is_least": any(row.out is None and row.recent.hour.sent for row in rows),
        "failed": sum(row.bad for row in rows),
        "dead": sum(row.length for row in dead),
        "dead_exact": all(row.exact for row in dead),
        "consumers": sum(map(is_live, found.processes)),
        "gone": sum(alert.cause is overview.GONE for alert in found.alerts),
    }


class AcknowledgePage(FiguresPage):
    """Acknowledges alerts, or shows them again. Accepts only POST requests."""

    name = "queue_acknowledge"
    route = "acknowledge/"
    permission = "acknowledge_alert"
    is_post = True

    def answer(self) -> HttpResponse:
        using, given = Queue.objects.database(), self.request.POST.getlist("alert")
        shown = list(as_shown(given))
        if "again" in self.request.POST:
            forget(shown, using)
        elif acknowledge(self.look().alerts, shown, self.request.user, using) < len(given):
            self.tell(_("An alert that you acknowledged has ended or changed."))
        return HttpResponseRedirect(self.url("queue_changelist"))


class OverviewJson(FiguresPage):
    """The overview as JSON. Accepts the token in ``OVERVIEW_TOKEN`` instead of a log-in."""

    name = "overview_json"
    route = "overview.json"
    is_public = True

    def answer(self) -> HttpResponse:
        given = self.request.headers.get("Authorization", "")
        token = settings.OVERVIEW_TOKEN
        if token and constant_time_compare(given, f"Bearer {token}"):
            return self._as_json(look(list(Queue.objects.order_by("name")[:MOST_QUEUES])))
        if not self.owner.admin_site.has_permission(self.request):
            return JsonResponse(
                {
                    "error": _(
                        "log in, or send the header Authorization: Bearer TOKEN with the token of "
                        "the setting OVERVIEW_TOKEN"
                    )
                },
                status=401,
            )
        if not self.owner.has_view_or_change_permission(self.request):
            raise PermissionDenied
        return self._as_json(self.look())

    def _as_json(self, found: Overview) -> JsonResponse:
        add_times(found.rows)
        found.rows.sort(key=lambda row: row.queue.name.lower())
        return JsonResponse(found.as_dict())
