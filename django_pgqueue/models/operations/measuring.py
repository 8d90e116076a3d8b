"""Measuring: what a queue holds now."""

from __future__ import annotations

from django.db import connections

from django_pgqueue.conf import settings
from django_pgqueue.models.operations.base import MessageT, Operations, twin
from django_pgqueue.models.queue import Queue
from django_pgqueue.types import Metrics

__all__ = ["Measuring"]


class Measuring(Operations[MessageT]):
    """Metrics that stay cheap however long a queue gets."""

    def metrics(self, queue: str | Queue, *, using: str | None = None) -> Metrics:
        """What one queue holds now; see :class:`django_pgqueue.types.Metrics`.

        >>> Message.objects.metrics("orders").ready
        12

        Raises QueueNotFound.
        """
        limit = int(settings.EXACT_COUNT_LIMIT)
        # What this session has sent so far shall count in the statistics read below.
        with connections[self.resolve(queue, using).alias].cursor() as cursor:
            cursor.execute("SELECT pg_stat_force_next_flush()")
        found, [row] = self._run("metrics", queue, using, {"limit": limit + 1})
        (
            ready,
            deferred,
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
        exact = max(ready, deferred, archived) <= limit
        if archived > limit:
            archived = max(archived, archived_estimate)
        if deferred > limit and ready <= limit:
            # Past the limit only the delayed ones can be many: sorted by vt they come last.
            delayed += max(0, live_estimate - archived - ready - deferred)
        elif ready > limit:
            ready = max(ready, live_estimate - archived - deferred)
        length = ready + due + in_flight + delayed
        return Metrics(
            queue_name=found.name,
            length=length,
            ready=ready,
            in_flight=in_flight,
            delayed=delayed,
            visible=ready + due,
            oldest_age=oldest_age,
            newest_age=newest_age,
            archived=archived,
            total=max(length + archived, inserted),
            scraped_at=scraped_at,
            exact=exact,
        )

    def metrics_all(self, *, using: str | None = None) -> list[Metrics]:
        """:meth:`metrics` of every queue, by name.

        >>> [each.queue_name for each in Message.objects.metrics_all()]
        ['mails', 'orders']
        """
        alias = Queue.objects.database(using or self._db)
        queues = Queue.objects.using(alias).order_by("name")
        return [self.metrics(queue, using=alias) for queue in queues]

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
