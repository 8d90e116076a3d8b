"""The recent history of each queue: counts and times per minute or hour."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

from django_pgqueue.models import columns
from django_pgqueue.models.queue import Queue

__all__ = ["History"]


class History(models.Model):
    """The history of one queue in one minute, or in one hour that is over.

    Each consumer process writes its own rows, with the id of its ``Process``. Maintenance writes
    ``sent``, ``depth``, ``oldest`` and ``total`` to a row with process id 0. It later merges all
    rows of a minute, and then of an hour, into that row. Times are in seconds. The keys of the
    histograms are the numbers of :func:`django_pgqueue.history.histograms.bucket`.
    """

    pk = models.CompositePrimaryKey("queue_id", "bucket", "seconds", "process_id")
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.CASCADE, db_constraint=False, db_index=False, related_name="history"
    )
    bucket: columns.Time = models.DateTimeField(help_text="When the span begins.")
    seconds: columns.Integer = models.IntegerField(help_text="How long the span is: 60 or 3600.")
    process_id: columns.Integer = models.IntegerField(default=0)
    completed: columns.BigInteger = models.BigIntegerField(default=0)
    retried: columns.BigInteger = models.BigIntegerField(
        default=0, help_text="Failed attempts, to be tried again."
    )
    failed: columns.BigInteger = models.BigIntegerField(
        default=0, help_text="To the archive, as FAILED."
    )
    dead_lettered: columns.BigInteger = models.BigIntegerField(
        default=0, help_text="To the dead-letter queue."
    )
    lost: columns.BigInteger = models.BigIntegerField(
        default=0, help_text="Leases that ran out while a consumer held them."
    )
    busy: columns.Float = models.FloatField(default=0, help_text="Run times of handlers, added up.")
    waits: columns.JSON = models.JSONField(
        default=dict, help_text="Times from readable to the first delivery, as a histogram."
    )
    runs: columns.JSON = models.JSONField(
        default=dict, help_text="Run times of handlers, as a histogram."
    )
    sent: columns.BigInteger = models.BigIntegerField(
        default=0, help_text="Messages sent, from sample to sample."
    )
    depth: columns.BigIntegerOrNull = models.BigIntegerField(
        null=True, help_text="The largest number of messages in a sample."
    )
    oldest: columns.FloatOrNull = models.FloatField(
        null=True, help_text="The largest age of a message in a sample, in seconds."
    )
    total: columns.BigIntegerOrNull = models.BigIntegerField(
        null=True, help_text="All messages ever sent, at the last sample."
    )

    class Meta(columns.Meta):
        db_table = "pgqueue_history"
        verbose_name_plural: ClassVar[Any] = "history"
        indexes: ClassVar[tuple[models.Index, ...]] = (
            models.Index(fields=["seconds", "bucket"], name="pgqueue_history_bucket"),
        )

    def __str__(self) -> str:
        return f"{self.queue_id} {self.bucket:%Y-%m-%d %H:%M}"
