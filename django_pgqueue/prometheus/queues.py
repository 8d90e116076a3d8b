"""The contents of the queues, read from the database at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import DatabaseError, connections, transaction
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from django_pgqueue.ddl.locks import milliseconds, settings_for
from django_pgqueue.models import Message, Queue

__all__ = ["STATES", "QueueCollector", "page"]

STATES = ("ready", "in_flight", "delayed", "waiting")


class QueueCollector(Collector):
    """The metrics of all queues of one database, within ``seconds`` or not at all."""

    def __init__(self, using: str | None = None, seconds: float = 5.0) -> None:
        self._alias = Queue.objects.database(using)
        self._seconds = seconds

    def collect(self) -> Iterator[Metric]:
        depth = GaugeMetricFamily(
            "pgqueue_messages", "Messages in the queue, by state.", labels=["queue", "state"]
        )
        visible = GaugeMetricFamily(
            "pgqueue_visible_messages", "What a read could take now.", labels=["queue"]
        )
        archived = GaugeMetricFamily(
            "pgqueue_archived_messages", "Messages in the archive.", labels=["queue"]
        )
        age = GaugeMetricFamily(
            "pgqueue_oldest_message_age_seconds",
            "Since the oldest message in the queue was sent; 0 when it is empty.",
            labels=["queue"],
        )
        limit = GaugeMetricFamily(
            "pgqueue_age_limit_seconds",
            "For how long a message of the queue may be readable without an alert.",
            labels=["queue"],
        )
        up = GaugeMetricFamily(
            "pgqueue_up", "Whether the database answered in time.", labels=["database"]
        )
        try:
            with (
                transaction.atomic(using=self._alias),
                connections[self._alias].cursor() as cursor,
                settings_for(cursor, statement_timeout=milliseconds(self._seconds)),
            ):
                found = Message.objects.using(self._alias).metrics_all()
                limits = list(Queue.objects.using(self._alias))
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
        up.add_metric([self._alias], 1)
        yield from (depth, visible, archived, age, limit, up)


def page(using: str | None = None) -> tuple[str, bytes]:
    """The content type and the text that Prometheus scrapes."""
    registry = CollectorRegistry()
    registry.register(QueueCollector(using))
    return CONTENT_TYPE_LATEST, generate_latest(registry)
