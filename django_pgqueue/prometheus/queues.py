"""Metrics of queues and schedules, read from the database at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import DatabaseError, connections, transaction
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from django_pgqueue.ddl import moment, server_time
from django_pgqueue.ddl.locks import milliseconds, settings_for
from django_pgqueue.maintenance.lakes import health
from django_pgqueue.models import Message, Queue, Schedule

__all__ = ["STATES", "QueueCollector", "page"]

STATES = ("ready", "in_flight", "delayed", "waiting")
#: Messages that are counted for a lake: more are reported as this many.
MOST_COUNTED = 100_000

_EXPORTS = {
    "failures": "Failed runs since the last good one.",
    "age_seconds": "Time since the lake had everything, by its last good run.",
    "lag_seconds": "Age of the oldest archived message that the lake lacks; 0 when it has all.",
    "lag_messages": f"Archived messages that the lake lacks, counted up to {MOST_COUNTED}.",
    "held_messages": "Messages whose retention is over, kept until they are exported.",
}


class QueueCollector(Collector):
    """Collects the metrics of all queues of one database, with a timeout of ``seconds``."""

    def __init__(self, using: str | None = None, seconds: float = 5.0) -> None:
        self._alias = Queue.objects.database(using)
        self._seconds = seconds

    def collect(self) -> Iterator[Metric]:
        depth = GaugeMetricFamily(
            "pgqueue_messages", "Messages in the queue, by state.", labels=["queue", "state"]
        )
        visible = GaugeMetricFamily(
            "pgqueue_visible_messages", "Messages that a read could take now.", labels=["queue"]
        )
        archived = GaugeMetricFamily(
            "pgqueue_archived_messages", "Messages in the archive.", labels=["queue"]
        )
        age = GaugeMetricFamily(
            "pgqueue_oldest_message_age_seconds",
            "Time since the oldest message in the queue was sent; 0 when it is empty.",
            labels=["queue"],
        )
        limit = GaugeMetricFamily(
            "pgqueue_age_limit_seconds",
            "How long a message may be readable without an alert.",
            labels=["queue"],
        )
        failing = GaugeMetricFamily(
            "pgqueue_schedule_failing",
            "1 if the schedule's last tick could not be sent, else 0.",
            labels=["queue", "schedule"],
        )
        late = GaugeMetricFamily(
            "pgqueue_schedule_late_seconds",
            "Time since the schedule's next tick was due; 0 when it is in the future.",
            labels=["queue", "schedule"],
        )
        exports = {
            name: GaugeMetricFamily(f"pgqueue_export_{name}", text, labels=["lake"])
            for name, text in _EXPORTS.items()
        }
        up = GaugeMetricFamily(
            "pgqueue_up", "1 if the database answered in time, else 0.", labels=["database"]
        )
        try:
            with (
                transaction.atomic(using=self._alias),
                connections[self._alias].cursor() as cursor,
                settings_for(cursor, statement_timeout=milliseconds(self._seconds)),
            ):
                found = Message.objects.using(self._alias).metrics_all()
                limits = list(Queue.objects.using(self._alias))
                schedules = list(
                    Schedule.objects.timed(self._alias)
                    .filter(ended_at=None)
                    .select_related("queue")
                )
                lakes = health(self._alias, MOST_COUNTED)
                now = server_time(cursor)
        except DatabaseError:
            up.add_metric([self._alias], 0)
            yield up
            return
        for each in found:
            for state in STATES:
                depth.add_metric([each.queue_name, state], getattr(each, state))
            visible.add_metric([each.queue_name], each.visible)
            archived.add_metric([each.queue_name], each.archived)
            age.add_metric([each.queue_name], each.oldest_age or 0.0)
        for queue in limits:
            limit.add_metric([queue.name], queue.longest_wait)
        for schedule in schedules:
            labels = [schedule.queue.name, schedule.name]
            failing.add_metric(labels, bool(schedule.error))
            overdue = 0.0 if schedule.paused else (now - moment(schedule.tick)).total_seconds()
            late.add_metric(labels, max(0.0, overdue))
        for lake in lakes:
            exports["failures"].add_metric([lake.path], lake.failures)
            exports["age_seconds"].add_metric([lake.path], lake.seconds)
            exports["lag_seconds"].add_metric([lake.path], lake.seconds if lake.behind else 0.0)
            exports["lag_messages"].add_metric([lake.path], lake.behind)
            exports["held_messages"].add_metric([lake.path], lake.held)
        up.add_metric([self._alias], 1)
        yield from (depth, visible, archived, age, limit, failing, late, *exports.values(), up)


def page(using: str | None = None) -> tuple[str, bytes]:
    """Content type and text for Prometheus."""
    registry = CollectorRegistry()
    registry.register(QueueCollector(using))
    return CONTENT_TYPE_LATEST, generate_latest(registry)
