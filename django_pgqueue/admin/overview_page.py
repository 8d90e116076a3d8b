"""The page of all queues, and the same as JSON."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpResponse, JsonResponse
from django.utils.crypto import constant_time_compare
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext

from django_pgqueue.admin.access import allowed
from django_pgqueue.admin.charts import count_of, seconds_of, spark_path
from django_pgqueue.admin.overview import Alert, Overview, Row, add_times, look
from django_pgqueue.admin.page import Page
from django_pgqueue.admin.queue_actions import PausePage
from django_pgqueue.admin.wording import EMPTY
from django_pgqueue.conf import settings
from django_pgqueue.models import ArchivedMessage, ExportRun, Message, Process, Queue
from django_pgqueue.wording import age, amount

__all__ = ["FiguresPage", "OverviewJson", "OverviewPage"]

#: How many queues a page of the overview shows, and how many it measures at most.
QUEUES_PER_PAGE, MOST_QUEUES = 100, 2000


class FiguresPage(Page):
    """A page with the figures and alerts of queues."""

    def look(self, *, by_name: bool) -> Overview:
        """The figures of all queues that the user may see."""
        queues = self.owner.get_queryset(self.request).order_by("name")
        return look(list(queues[:MOST_QUEUES]), by_name=by_name, seen=self.seen)

    @property
    def seen(self) -> Collection[str] | None:
        """The names of the queues that the user may see; None: all."""
        seen = allowed(self.request)
        return None if seen is None else seen.values()

    def cells(self, rows: Iterable[Row]) -> list[dict[str, Any]]:
        """The template values of these rows."""
        # URLs are resolved once: that takes longer than the rest of a cell.
        has_pages = self.owner.admin_site.is_registered(Message)
        messages = self.url("message_changelist") if has_pages else None
        failures = self.url("message_failures") if has_pages else None

        def link(page: str | None, text: str, **query: Any) -> str:
            if page is None:
                return text
            return format_html('<a href="{}?{}">{}</a>', page, urlencode(query), text)

        def listed(number: int, exact: bool, **query: Any) -> str:
            return link(messages if number else None, amount(number, exact=exact), **query)

        def failed(number: int) -> str:
            return link(failures if number else None, amount(number), window="1h")

        return [self._cells(row, listed, failed) for row in rows]

    def _cells(
        self, row: Row, listed: Callable[..., str], failed: Callable[[int], str]
    ) -> dict[str, Any]:
        queue, hour = row.queue, row.recent.hour
        scale = max(max(slot.sent, slot.ended) for slot in row.recent.slots)
        return {
            "row": row,
            "name": format_html('<a href="{}">{}</a>', self.url("queue_overview", queue.pk), queue),
            "counts": [
                (
                    place,
                    number,
                    listed(number, row.exact, queue=queue.pk, state=place.value),
                )
                for place, number in row.counts.items()
            ],
            "length": amount(row.length, exact=row.exact),
            "oldest": age(row.oldest),
            "came": count_of(row.rates[0]),
            "went": count_of(row.rates[1]),
            "came_path": spark_path([slot.sent for slot in row.recent.slots], most=scale),
            "went_path": spark_path([slot.ended for slot in row.recent.slots], most=scale),
            "has_line": scale > 0,
            "failed": failed(hour.failed),
            "has_failed": hour.failed > 0,
            "dead": failed(hour.dead_lettered),
            "has_dead": hour.dead_lettered > 0,
            "wait": EMPTY if row.times.wait is None else seconds_of(row.times.wait),
            "run": EMPTY if row.times.run is None else seconds_of(row.times.run),
            "look": max((alert.level for alert in row.alerts), default=0),
        }

    def alert_url(self, alert: Alert) -> str | None:
        """The URL of the page with details of an alert; None if the site lacks that page."""
        queue, about = alert.queue, alert.about
        if queue is not None and about == "failures":
            # Messages that failed for good are in the archive, or in the dead-letter queue.
            target = queue.dead_letter_queue_id
            about = "archive" if target is None else "messages"
        else:
            target = None
        if about == "queue" and queue is not None:
            return self.url("queue_overview", queue.pk)
        if about == "exports":
            has_page = self.owner.admin_site.is_registered(ExportRun)
            return self.url("exportrun_changelist") if has_page else None
        models = {"messages": Message, "archive": ArchivedMessage}
        if about in models and queue is not None:
            if not self.owner.admin_site.is_registered(models[about]):
                return None
            chosen = {"state": alert.place.value} if alert.place and target is None else {}
            page = f"{models[about]._meta.model_name}_changelist"
            return self.url(page, queue=target or queue.pk, **chosen)
        if not self.owner.admin_site.is_registered(Process):
            return None
        return self.url("health" if about == "database" else "process_changelist")


class OverviewPage(FiguresPage):
    """Alerts, and a row per queue."""

    name = "queue_changelist"
    template = "overview"

    def answer(self) -> HttpResponse:
        by_name = self.request.GET.get("by") == "name"
        words = self.request.GET.get("q", "").strip()
        found = self.look(by_name=by_name)
        shown = [row for row in found.rows if words.lower() in row.queue.name.lower()]
        page = Paginator(shown, QUEUES_PER_PAGE).get_page(self.request.GET.get("p"))
        add_times(list(page))
        return self.render_live(
            {
                "title": gettext("Queues"),
                "alerts": [(alert, self.alert_url(alert)) for alert in found.alerts],
                "rows": self.cells(page),
                "page": page,
                "at": found.at,
                "words": words,
                "by_name": by_name,
                "has_add_permission": self.owner.has_add_permission(self.request),
                "may_pause": self.may(PausePage),
            },
        )


class OverviewJson(FiguresPage):
    """The overview as JSON. Takes the token of ``OVERVIEW_TOKEN`` in place of a session."""

    name = "overview_json"
    route = "overview.json"
    is_public = True

    def answer(self) -> HttpResponse:
        given = self.request.headers.get("Authorization", "")
        token = settings.OVERVIEW_TOKEN
        if token and constant_time_compare(given, f"Bearer {token}"):
            queues = list(Queue.objects.order_by("name")[:MOST_QUEUES])
            return self._as_json(look(queues, by_name=True))
        if not self.owner.admin_site.has_permission(self.request):
            return JsonResponse(
                {"error": gettext("log in, or send the token of OVERVIEW_TOKEN")}, status=401
            )
        if not self.owner.has_view_or_change_permission(self.request):
            raise PermissionDenied
        return self._as_json(self.look(by_name=True))

    def _as_json(self, found: Overview) -> JsonResponse:
        add_times(found.rows)
        return JsonResponse(found.as_dict())
