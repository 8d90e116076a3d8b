"""The page of one queue: its figures and charts, failures, consumers, groups and storage."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from django.db.models import Q
from django.http import Http404, HttpResponse
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html
from django.utils.timezone import now
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgqueue.admin.batches import batches_url
from django_pgqueue.admin.bulk_actions import may
from django_pgqueue.admin.charts import Chart, Histogram
from django_pgqueue.admin.failures import WINDOWS, Failures
from django_pgqueue.admin.failures_page import shown_group
from django_pgqueue.admin.groups import groups_of
from django_pgqueue.admin.groups_page import listed
from django_pgqueue.admin.marks import recent_marks
from django_pgqueue.admin.overview import Row, judged, name_of, short_error
from django_pgqueue.admin.overview_page import FiguresPage
from django_pgqueue.admin.processes import ids_held, look_of, runs_of
from django_pgqueue.admin.queries import ask
from django_pgqueue.admin.queue_actions import PurgePage
from django_pgqueue.admin.send import SendPage
from django_pgqueue.admin.series import COUNTS, Span, by_consumer, charts
from django_pgqueue.admin.subscriptions import Reader, SeekPage, SubscribePage, readers
from django_pgqueue.admin.suggestions import SMALL
from django_pgqueue.admin.why import waiting
from django_pgqueue.engine.wording import age
from django_pgqueue.errors import QueueNotFound
from django_pgqueue.history.counters import ENDED
from django_pgqueue.history.recent import LATELY, Counts, Recent, Times
from django_pgqueue.models import History, Message, Process, Queue
from django_pgqueue.queues.bulk import Kind

#: The length of the page's lists.
LONGEST_LIST = 5


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


class Happened:
    """A queue's history, over a range that ends now: recent counts, times and charts."""

    def __init__(self, queue: Queue, chosen: Range) -> None:
        seconds, at = chosen.seconds, int(now().timestamp())
        starts = [at // seconds * seconds - seconds * back for back in range(chosen.spans)][::-1]
        spans = {start: Span() for start in starts}
        lately, self.recent = Span(), Recent()
        rows = History.objects.using(queue.alias).filter(
            queue=queue, bucket__gte=dt.datetime.fromtimestamp(starts[0], dt.timezone.utc)
        )
        fields = (
            "bucket",
            "seconds",
            "process_id",
            "waits",
            "runs",
            "by_process",
            "depth",
            "oldest",
        )
        for row in rows.values(*fields, *COUNTS):
            start = int(row["bucket"].timestamp())
            minutes = (at - start) // 60
            if row["seconds"] == 60 and 0 <= minutes < 60:
                self.recent.add(minutes, Counts.of(row))
                if minutes * 60 < LATELY:
                    lately.add(row)
            if (span := spans.get(start // seconds * seconds)) is not None:
                span.add(row)
        self.times = Times.of({"waits": lately.waits, "runs": lately.runs})
        moments = [dt.datetime.fromtimestamp(start, dt.timezone.utc) for start in starts]
        self.marks = recent_marks(queue.alias, moments[0])
        self.spans, self.moments, self.seconds = list(spans.values()), moments, seconds
        self.runs: Counter[str] = sum((span.runs for span in spans.values()), Counter())

    def charts(self, row: Row, processes: Iterable[Process]) -> list[Chart]:
        """Return the charts. ``processes`` are the consumers whose names are known.

        What ended is unknown if no consumer of the queue has counted any.
        """
        counted = any(span.counts[name] for span in self.spans for name in ENDED)
        over = self.spans, self.moments, self.seconds
        drawn = charts(*over, self.marks, running=True, knows_out=counted or row.out is not None)
        names = {process.pk: str(process) for process in processes}
        consumers = by_consumer(*over, names, self.marks)
        return drawn if consumers.is_empty else [*drawn, consumers]


class QueueOverviewPage(FiguresPage):
    """One queue: its numbers and charts, failures, consumers, groups and storage."""

    name = "queue_overview"
    route = "<int:pk>/overview/"
    template = "queue"

    def answer(self, pk: int) -> HttpResponse:
        queue, sources, subscriptions = self._queue(pk)
        chosen = RANGES.get(self.request.GET.get("range", ""), RANGES["hour"])
        happened = Happened(queue, chosen)
        dead = [pk, *([queue.dead_letter_queue_id] if queue.dead_letter_queue_id else [])]
        failures = Failures([pk], dead, WINDOWS["7d"], pk)
        groups = failures.groups(LONGEST_LIST)
        try:
            backlog = Message.objects.metrics(queue)
        except QueueNotFound:  # dropped meanwhile
            raise Http404 from None
        found = judged(
            [queue],
            {queue.name: backlog},
            {pk: happened.recent},
            replace(failures, window=WINDOWS["1h"]),
            sources={pk: [name_of(source, self.seen) for source in sources]} if sources else {},
            marks=happened.marks,
            seen=self.seen,
        )
        found.rows[0].times = happened.times
        in_groups = groups_of(queue, LONGEST_LIST, self.owner.message_link, states=False)
        return self.render_live(
            {
                "title": queue.name,
                "is_list": False,
                "queue": queue,
                **self.context(),
                "row": found.rows[0],
                "source_link": self._source(queue),
                "readers": self._readers(subscriptions),
                "blocked": [
                    waiting(queue, why, count, "blocked" not in backlog.estimated, in_groups.own)
                    for why, count in backlog.blocked.items()
                ],
                **self.attention(found.alerts),
                "tabs": [
                    (each.label, f"?range={key}", each is chosen) for key, each in RANGES.items()
                ],
                "charts": happened.charts(found.rows[0], found.processes),
                "histogram": Histogram(
                    gettext("Run times, counted"),
                    gettext("How many handlers ran for how long, in %s.") % chosen.label,
                    happened.runs,
                ),
                "failures": [
                    shown_group(self, failures, each, {pk: queue.name}) for each in groups
                ],
                "more_failures": bool(groups) and groups[0].every > len(groups),
                "window": "7d",
                "consumers": [
                    (process, look_of(process), self._held(process, queue))
                    for process in found.processes
                ],
                **self._stored(queue),
                **listed(in_groups),
                "links": self._links(queue, bool(sources)),
                **self._urls(queue),
            },
        )

    def _urls(self, queue: Queue) -> dict[str, str]:
        return {
            "groups_url": self.url("queue_groups", queue.pk),
            "batches_url": batches_url(self, queue),
            "back": self.request.get_full_path(),
        }

    def _queue(self, pk: int) -> tuple[Queue, list[Queue], list[Queue]]:
        """Return the queue, the queues that dead-letter into it, and its subscriptions.

        Leaves out subscriptions that the user may not see.
        """
        own = Q(pk=pk) | Q(dead_letter_queue=pk) | Q(source=pk)
        found = list(Queue.objects.filter(own).order_by("name"))
        queue = next((each for each in found if each.pk == pk), None)
        if queue is None or (self.seen is not None and queue.name not in self.seen):
            raise Http404
        sources = [each for each in found if each.dead_letter_queue_id == pk and each != queue]
        subscriptions = [
            each
            for each in found
            if each.source_id == pk and (self.seen is None or each.name in self.seen)
        ]
        return queue, sources, subscriptions

    def _readers(self, subscriptions: list[Queue]) -> list[tuple[Reader, str]]:
        """Return the subscriptions with their lags, and a link to each."""
        found = readers(subscriptions)
        return [(each, self.owner.queue_link(each.queue.pk, each.queue)) for each in found]

    def _source(self, queue: Queue) -> str:
        """Return the source of a subscription, as a link if the user may see it, else ""."""
        if queue.source is None:
            return ""
        name = name_of(queue.source, self.seen)
        is_seen = self.seen is None or queue.source.name in self.seen
        return self.owner.queue_link(queue.source_id, name) if is_seen else name

    def _held(self, process: Process, queue: Queue) -> list[str]:
        """Return links to the messages of the queue that a consumer works on, with its runs."""
        runs = runs_of(process)
        return [
            format_html("{} ({}, {})", link, runs[pk][0], age(runs[pk][1])) if pk in runs else link
            for pk in ids_held(process, queue.name)
            if (link := self.owner.message_link(pk, queue.pk))
        ]

    def _stored(self, queue: Queue) -> dict[str, Any]:
        """Return the newest failed attempts, and the storage used."""
        params = {"most": LONGEST_LIST, "small": SMALL}
        [(attempts, *sizes, has_tasks)] = ask("queue", params, **queue.tables)
        return {
            "attempts": [
                (
                    parse_datetime(each["at"]),
                    self.owner.message_link(each["message_id"], queue.pk),
                    each["attempt"],
                    short_error(each["error_class"], each["message"]),
                )
                for each in json.loads(attempts)
            ],
            "sizes": sizes,
            "tasks_url": self.url("queue_tasks", queue.pk) if has_tasks else "",
        }

    def _links(self, queue: Queue, has_sources: bool) -> list[tuple[str, str, bool]]:
        """Return (label, URL, whether it deletes) for each page that the user may open."""
        links = []
        if self.owner.admin_site.is_registered(Message):
            url = self.url("message_changelist", queue=queue.pk)
            links.append((gettext("Messages"), url, False))
        if self.may(SendPage) and queue.source_id is None:
            url = self.url("queue_send", queue.pk)
            links.append((gettext("Send a message"), url, False))
        if has_sources and may(self.request, Kind.REDRIVE):
            links.append((gettext("Redrive"), self.url("queue_redrive", queue.pk), False))
        if queue.source_id is not None and self.may(SeekPage):
            links.append((gettext("Move"), self.url("queue_seek", queue.pk), False))
        if queue.source_id is None and self.may(SubscribePage):
            links.append((gettext("Subscribe"), self.url("queue_subscribe", queue.pk), False))
        links.append((gettext("Settings"), self.url("queue_change", queue.pk), False))
        if url := self.owner.audit_url(self.request, queue.pk):
            links.append((gettext("Audit log"), url, False))
        if self.may(PurgePage):
            links.append((gettext("Purge"), self.url("queue_purge", queue.pk), True))
        return links
