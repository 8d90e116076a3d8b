"""Measuring: what a queue holds now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connections, models

from django_pgqueue import ddl, queries
from django_pgqueue.conf import settings
from django_pgqueue.models.operations.base import MessageT, Operations, twin
from django_pgqueue.models.queue import Queue
from django_pgqueue.types import Metrics

__all__ = ["Measuring"]

#: So many queues are measured one by one; more of them in one statement, with closer limits.
FEW = 20
LEAST_COUNTED = 100
#: Of ready messages that the statistics know to be more than are counted.
ENOUGH = 25


class Measuring(Operations[MessageT]):
    """Metrics that stay cheap however long a queue gets."""

    def metrics(self, queue: str | Queue, *, using: str | None = None) -> Metrics:
        """What one queue holds now; see :class:`django_pgqueue.types.Metrics`.

        >>> Message.objects.metrics("orders").ready
        12

        Raises QueueNotFound.
        """
        limit = int(settings.EXACT_COUNT_LIMIT)
        self._flush_statistics(self.resolve(queue, using).alias)
        found, [row] = self._run("metrics", queue, using, {"limit": limit + 1})
        return _metrics(found.name, row, limit, limit)

    def metrics_all(self, *, using: str | None = None) -> list[Metrics]:
        """:meth:`metrics` of every queue, by name.

        With more than a few queues counts are estimated earlier, what is archived comes from
        statistics that lag by seconds, and ages are those of what was counted and of the last
        in line.

        >>> [each.queue_name for each in Message.objects.metrics_all()]
        ['mails', 'orders']
        """
        alias = Queue.objects.database(using or self._db)
        queues = Queue.objects.using(alias)
        counts = dict(queues.order_by().values_list("unlogged").annotate(models.Count("pk")))
        count = sum(counts.values())
        if count <= FEW:
            return [self.metrics(queue, using=alias) for queue in queues.order_by("name")]
        limit = max(LEAST_COUNTED, int(settings.EXACT_COUNT_LIMIT) // count)
        self._flush_statistics(alias)
        rows: list[tuple[Any, ...]] = []
        for unlogged in counts:
            sql = queries.render("metrics_all", ddl.shared_names(unlogged=unlogged))
            with connections[alias].cursor() as cursor:
                cursor.execute(sql, {"limit": limit + 1, "enough": ENOUGH + 1})
                rows += cursor.fetchall()
        return [_metrics(name, row, limit, most - 1) for _place, name, most, *row in sorted(rows)]

    @staticmethod
    def _flush_statistics(alias: str) -> None:
        """What this session has sent so far shall count in the server's statistics."""
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT pg_stat_force_next_flush()")

    def drained(self, queue: str | Queue, *, using: str | None = None) -> bool:
        """Whether nothing is ready, due or waiting to be tried again.

        What is scheduled for later, or in flight, does not count.

        >>> Message.objects.drained("orders")
        True
        """
        _, [row] = self._run("drained", queue, using, {})
        return bool(row[0])

    ametrics = twin(metrics)
    ametrics_all = twin(metrics_all)
    adrained = twin(drained)


def _metrics(name: str, row: Sequence[Any], limit: int, ready_limit: int) -> Metrics:
    """The metrics from a row of metrics.sql: counts beyond the limits are estimated."""
    (
        ready,
        waiting,
        begun,
        begun_later,
        deferred,
        leased,
        due,
        in_flight,
        delayed,
        oldest_age,
        newest_age,
        archived,
        live_estimate,
        archived_estimate,
        inserted,
        scraped_at,
    ) = row
    exact = ready <= ready_limit and max(waiting, deferred, archived) <= limit
    if archived > limit:
        archived = max(archived, archived_estimate)
    # What the statistics know of and the counts do not, goes to the count that stopped.
    uncounted = max(0, live_estimate - archived - ready - deferred - leased - waiting)
    if ready > ready_limit:
        ready += uncounted
    elif waiting > limit:
        waiting += uncounted
    elif deferred > limit:
        # Past the limit only the delayed ones can be many: sorted by vt they come last.
        delayed += uncounted
    ready, delayed = ready + begun, delayed + begun_later
    waiting -= begun + begun_later
    length = ready + waiting + due + in_flight + delayed
    return Metrics(
        queue_name=name,
        length=length,
        ready=ready,
        in_flight=in_flight,
        delayed=delayed,
        waiting=waiting,
        visible=ready + due,
        oldest_age=oldest_age,
        newest_age=newest_age,
        archived=archived,
        total=max(length + archived, inserted),
        scraped_at=scraped_at,
        exact=exact,
    )
