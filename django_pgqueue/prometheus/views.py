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

from django_pgqueue.ddl import moment, server_time
from django_pgqueue.ddl.locks import milliseconds, settings_for
from django_pgqueue.maintenance.lakes import health
from django_pgqueue.models import Message, Queue, Schedule

__all__ = ["PLACES", "QueueCollector", "metrics"]

#: The values of the label ``state`` of the gauge ``pgqueue_messages``.
PLACES = ("ready", "in_flight", "delayed", "waiting")
#: Maximum number of messages counted for a lake.
MOST_COUNTED = 100_000

_EXPORTS = {
    "failures": "Failed export runs since the last good one.",
    "age_seconds": "Time since the lake had everything, by its last good run.",
    "lag_seconds": "The same while messages wait for an export; 0 when the lake has all.",
    "lag_messages": f"Archived messages that the lake lacks, counted up to {MOST_COUNTED}.",
    "held_messages": "Messages whose retention is over, kept until they are exported.",
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
        depth = _gauge("messages", "Messages in the queue, by state.", "queue", "state")
        visible = _gauge("visible_messages", "Messages that a read could take now.", "queue")
        blocked = _gauge(
            "blocked_messages",
            "Messages that are not delivered now, by reason; none for a reason without a message.",
            *("queue", "reason"),
        )
        archived = _gauge("archived_messages", "Messages in the archive.", "queue")
        age = _gauge(
            "oldest_message_age_seconds",
            "Time since the oldest message in the queue was sent; 0 when it is empty.",
            "queue",
        )
        limit = _gauge(
            "age_limit_seconds", "How long a message may be readable without an alert.", "queue"
        )
        failing = _gauge(
            "schedule_failing",
            "1 if the schedule's last tick could not be sent, else 0.",
            *("queue", "schedule"),
        )
        late = _gauge(
            "schedule_late_seconds",
            "Time since the schedule's next tick was due; 0 when it is in the future.",
            *("queue", "schedule"),
        )
        exports = [_gauge(f"export_{name}", text, "lake") for name, text in _EXPORTS.items()]
        up = _gauge("up", "1 if the database answered in time, else 0.", "database")
        try:
            with (
                transaction.atomic(using=self._alias),
                connections[self._alias].cursor() as cursor,
                settings_for(cursor, statement_timeout=milliseconds(self._seconds)),
            ):
                found = Message.objects.using(self._alias).metrics_all()
                queues = list(Queue.objects.using(self._alias))
                active = Schedule.objects.timed(self._alias).filter(ended_at=None)
                schedules = list(active.select_related("queue"))
                lakes = health(self._alias, MOST_COUNTED)
                now = server_time(cursor)
        except DatabaseError:
            up.add_metric([self._alias], 0)
            yield up
            return
        for each in found:
            for place in PLACES:
                depth.add_metric([each.queue_name, place], getattr(each, place))
            visible.add_metric([each.queue_name], each.visible)
            for reason, number in each.blocked.items():
                blocked.add_metric([each.queue_name, reason], number)
            archived.add_metric([each.queue_name], each.archived)
            age.add_metric([each.queue_name], each.oldest_age or 0.0)
        for queue in queues:
            limit.add_metric([queue.name], queue.longest_wait)
        for schedule in schedules:
            labels = [schedule.queue.name, schedule.name]
            failing.add_metric(labels, bool(schedule.error))
            overdue = 0.0 if schedule.paused else (now - moment(schedule.tick)).total_seconds()
            late.add_metric(labels, max(0.0, overdue))
        for lake in lakes:
            lag = lake.seconds if lake.behind else 0.0
            values = (lake.failures, lake.seconds, lag, lake.behind, lake.held)
            for metric, value in zip(exports, values, strict=True):
                metric.add_metric([lake.path], value)
        up.add_metric([self._alias], 1)
        yield from (
            depth,
            visible,
            blocked,
            archived,
            age,
            limit,
            failing,
            late,
            *exports,
            up,
        )


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"pgqueue_{name}", text, labels=labels)
