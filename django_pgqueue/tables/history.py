"""The recent history of each queue: counts and times per minute or hour."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

from django_pgqueue.engine.arguments import INT4
from django_pgqueue.tables import columns
from django_pgqueue.tables.queue import Queue


class History(models.Model):
    """The history of one queue in one minute, or in one past hour.

    Each consumer process writes its own rows, with the id of its ``Process``:

    - ``completed``, ``failed`` (to the archive), ``dead_lettered``, ``expired``: messages with this
      outcome;
    - ``lost``: messages whose lease was lost; ``retried``: failed attempts that were retried;
    - ``busy``: the sum of run times; ``runs``: a histogram of run times;
    - ``waits``: a histogram of the times from readable to the first delivery.

    Maintenance samples the queue, and writes a row with process id 0: the messages ``sent`` since
    the last sample, the largest ``depth`` and age (``oldest``), and the ``total`` of all messages
    ever sent. It later merges all rows of a minute, and then of an hour, into one row with process
    id 0, whose ``by_process`` has the number of messages that each process ended, by its id.

    Times are in seconds. The keys of the histograms are bucket numbers: see
    :func:`django_pgqueue.history.histograms.bucket`.
    """

    pk = models.CompositePrimaryKey("queue_id", "bucket", "seconds", "process_id")
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.CASCADE, db_constraint=False, db_index=False, related_name="history"
    )
    bucket: columns.Time = models.DateTimeField()
    seconds: columns.Integer = models.IntegerField()
    process_id: columns.Integer = models.IntegerField(default=0)
    completed: columns.BigInteger = models.BigIntegerField(default=0)
    retried: columns.BigInteger = models.BigIntegerField(default=0)
    failed: columns.BigInteger = models.BigIntegerField(default=0)
    dead_lettered: columns.BigInteger = models.BigIntegerField(default=0)
    expired: columns.BigInteger = models.BigIntegerField(default=0)
    lost: columns.BigInteger = models.BigIntegerField(default=0)
    busy: columns.Float = models.FloatField(default=0)
    waits: columns.JSON = models.JSONField(default=dict)
    runs: columns.JSON = models.JSONField(default=dict)
    by_process: columns.JSON = models.JSONField(null=True)
    sent: columns.BigInteger = models.BigIntegerField(default=0)
    depth: columns.BigIntegerOrNull = models.BigIntegerField(null=True)
    oldest: columns.FloatOrNull = models.FloatField(null=True)
    total: columns.BigIntegerOrNull = models.BigIntegerField(null=True)

    class Meta(columns.Meta):
        db_table = "pgqueue_history"
        verbose_name_plural: ClassVar[Any] = "history"
        constraints: ClassVar[tuple[models.BaseConstraint, ...]] = (
            *columns.within("pgqueue_history", (1, INT4), "seconds"),
            *columns.tally("pgqueue_history", "waits", "runs", "by_process"),
        )
        indexes: ClassVar[tuple[models.Index, ...]] = (
            models.Index(fields=["seconds", "bucket"], name="pgqueue_history_bucket"),
        )

    def __str__(self) -> str:
        return f"{self.queue_id} {self.bucket:%Y-%m-%d %H:%M}"
