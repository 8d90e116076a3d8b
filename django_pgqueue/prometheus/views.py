"""Metrics of queues and schedules, read from the database at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import DatabaseError, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from django_pgqueue.database.locks import milliseconds, settings_for
from django_pgqueue.engine.times import moment, server_time
from django_pgqueue.maintenance.lakes import health
from django_pgqueue.models import Message, Queue, Schedule

#: The values of the label ``state`` of the gauge ``pgqueue_messages``.
PLACES = ("ready", "in_flight", "delayed", "waiting")
#: Maximum number of messages counted for a lake.
MOST_COUNTED = 100_000

#: The help texts of the gauges, by their labels and names.
_GAUGES = {
    ("queue", "state"): {"messages": "Messages in the queue, by state."},
    ("queue", "reason"): {
        "blocked_messages": "Messages that are not delivered now, by reason; no series for a "
        "reason without a message."
    },
    ("queue",): {
        "visible_messages": "Messages that a read could take now.",
        "archived_messages": "Messages in the archive.",
        "oldest_message_age_seconds": "Time since the oldest message in the queue was sent; "
        "0 when it is empty.",
        "age_limit_seconds": "How long a message may be readable without an alert.",
    },
    ("queue", "source"): {
        "subscription_unread_messages": "Messages of the source that the subscription has not "
        "read; an estimate above EXACT_COUNT_LIMIT.",
        "subscription_lag_seconds": "Time since the first of them was sent; 0 without any.",
        "subscription_lost_messages": "Messages that the subscription has lost since it was made.",
        "subscription_position_lost": "1 if the subscription has no position in this database, "
        "and reads nothing; else 0.",
    },
    ("queue", "schedule"): {
        "schedule_failing": "1 if the schedule's last tick could not be sent, else 0.",
        "schedule_late_seconds": "Time since the schedule's next tick was due; 0 when it is in "
        "the future.",
    },
    ("lake",): {
        "export_failures": "Failed export runs since the last successful one.",
        "export_age_seconds": "Time since the last run that exported all messages.",
        "export_lag_seconds": "export_age_seconds if messages wait for an export, else 0.",
        "export_lag_messages": f"Archived messages that the lake lacks, counted up to "
        f"{MOST_COUNTED}.",
        "export_held_messages": "Messages whose retention is over, kept until they are exported.",
        "export_misfit_ratio": "Share of the last run's bodies that do not fit their columns.",
    },
    ("database",): {"up": "1 if the database answered in time, else 0."},
}


@require_safe
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics of all queues in Prometheus's text format.

    The page shows queue names: keep it private, or decorate it with a permission check. Its URL::

        path("metrics/queues", django_pgqueue.prometheus.views.metrics)
    """
    registry = CollectorRegistry()
    registry.register(QueueCollector())
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


class QueueCollector(Collector):
    """Collects the metrics of all queues of one database. Each statement may take ``seconds``."""

    def __init__(self, using: str | None = None, seconds: float = 5.0) -> None:
        self._alias = Queue.objects.database(using)
        self._seconds = seconds

    def collect(self) -> Iterator[Metric]:
        gauges = {
            name: GaugeMetricFamily(f"pgqueue_{name}", text, labels=labels)
            for labels, texts in _GAUGES.items()
            for name, text in texts.items()
        }

        def add(name: str, number: float, *labels: str) -> None:
            gauges[name].add_metric(labels, number)

        try:
            with (
                transaction.atomic(using=self._alias),
                connections[self._alias].cursor() as cursor,
                settings_for(cursor, statement_timeout=milliseconds(self._seconds)),
            ):
                found = Message.objects.using(self._alias).metrics_all()
                queues = list(Queue.objects.using(self._alias).select_related("source"))
                lags = [
                    (queue.name, queue.source.name, queue.lag()) for queue in queues if queue.source
                ]
                active = Schedule.objects.timed(self._alias).filter(ended_at=None)
                schedules = list(active.select_related("queue"))
                lakes = health(self._alias, MOST_COUNTED)
                now = server_time(cursor)
        except DatabaseError:
            add("up", 0, self._alias)
            yield gauges["up"]
            return
        for each in found:
            name = each.queue_name
            for place in PLACES:
                add("messages", getattr(each, place), name, place)
            add("visible_messages", each.visible, name)
            for reason, number in each.blocked.items():
                add("blocked_messages", number, name, reason)
            add("archived_messages", each.archived, name)
            add("oldest_message_age_seconds", each.oldest_age or 0.0, name)
        for queue in queues:
            add("age_limit_seconds", queue.longest_wait, queue.name)
        for name, source, lag in lags:
            add("subscription_position_lost", lag is None, name, source)
            if lag is not None:
                add("subscription_unread_messages", lag.messages, name, source)
                add("subscription_lag_seconds", lag.seconds or 0.0, name, source)
                add("subscription_lost_messages", lag.lost, name, source)
        for schedule in schedules:
            labels = schedule.queue.name, schedule.name
            add("schedule_failing", bool(schedule.error), *labels)
            overdue = 0.0 if schedule.paused else (now - moment(schedule.tick)).total_seconds()
            add("schedule_late_seconds", max(0.0, overdue), *labels)
        for lake in lakes:
            add("export_failures", lake.failures, lake.path)
            add("export_age_seconds", lake.seconds, lake.path)
            add("export_lag_seconds", lake.seconds if lake.behind else 0.0, lake.path)
            add("export_lag_messages", lake.behind, lake.path)
            add("export_held_messages", lake.held, lake.path)
            add("export_misfit_ratio", lake.misfits, lake.path)
        add("up", 1, self._alias)
        yield from gauges.values()
