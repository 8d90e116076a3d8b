"""Roll-ups of messages by queue and span of time. The admin's charts show them."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.utils.translation import gettext, gettext_lazy

from django_pgqueue.engine.arguments import INT4
from django_pgqueue.tables import columns


class Rollup(models.Model):
    """The roll-up of one queue over one span of time.

    ``sent`` counts messages sent in the span; the other counts are of messages that ended in it.
    Times are in seconds. A wait lasts from readable to the first delivery, a run from the last
    delivery to the end. Percentiles are exact, but cannot be merged across spans. The histograms
    ``waits`` and ``runs`` can be merged; their keys are bucket numbers: see
    :func:`django_pgqueue.history.histograms.bucket`.
    """

    id: columns.BigAutoKey = models.BigAutoField(primary_key=True)
    queue_name: columns.Text = models.TextField()
    seconds: columns.Integer = models.IntegerField(help_text="The length of the span.")
    bucket: columns.Time = models.DateTimeField(help_text="The start of the span.")
    sent: columns.BigInteger = models.BigIntegerField(default=0)
    completed: columns.BigInteger = models.BigIntegerField(default=0)
    failed: columns.BigInteger = models.BigIntegerField(default=0)
    retried: columns.BigInteger = models.BigIntegerField(
        default=0, help_text="Number of failed attempts that were retried, of messages that ended."
    )
    dead_lettered: columns.BigInteger = models.BigIntegerField(default=0)
    backlog: columns.BigInteger = models.BigIntegerField(
        default=0, help_text="Messages in the queue at the end of the span."
    )
    busy: columns.Float = models.FloatField(
        default=0,
        help_text="The sum of run times. Divided by the span's length: the number of busy workers.",
    )
    wait_p50: columns.FloatOrNull = models.FloatField(null=True)
    wait_p95: columns.FloatOrNull = models.FloatField(null=True)
    wait_p99: columns.FloatOrNull = models.FloatField(null=True)
    run_p50: columns.FloatOrNull = models.FloatField(null=True)
    run_p95: columns.FloatOrNull = models.FloatField(null=True)
    run_p99: columns.FloatOrNull = models.FloatField(null=True)
    waits: columns.JSON = models.JSONField(default=dict)
    runs: columns.JSON = models.JSONField(default=dict)
    groups: columns.BigInteger = models.BigIntegerField(
        default=0, help_text="Number of FIFO groups with messages that ended."
    )
    top_group: columns.JSON = models.JSONField(
        null=True, help_text="The largest group and its count."
    )
    poison: columns.JSON = models.JSONField(
        default=list, help_text="The messages with the most deliveries."
    )
    top_errors: columns.JSON = models.JSONField(default=list)
    computed_at: columns.Time = models.DateTimeField(db_default=columns.NOW)

    class Meta(columns.Meta):
        verbose_name: ClassVar[Any] = gettext_lazy("roll-up")
        verbose_name_plural: ClassVar[Any] = gettext_lazy("roll-ups")
        default_permissions: ClassVar[tuple[str, ...]] = ("view",)
        db_table = "pgqueue_rollup"
        constraints: ClassVar[tuple[models.BaseConstraint, ...]] = (
            models.UniqueConstraint(
                fields=("queue_name", "seconds", "bucket"), name="pgqueue_rollup_unique"
            ),
            *columns.within("pgqueue_rollup", (1, INT4), "seconds"),
        )

    def __str__(self) -> str:
        return f"{self.queue_name} {self.bucket:%Y-%m-%d %H:%M}"

    @property
    def utilisation(self) -> float:
        """The average number of busy workers.

        >>> Rollup(seconds=3600, busy=7200.0).utilisation
        2.0
        """
        return self.busy / self.seconds


class RollupRun(models.Model):
    """One run of the roll-up job."""

    id: columns.BigAutoKey = models.BigAutoField(primary_key=True)
    seconds: columns.Integer = models.IntegerField()
    from_at: columns.Time = models.DateTimeField()
    to_at: columns.Time = models.DateTimeField()
    below_xid: columns.BigInteger = models.BigIntegerField(
        help_text="Messages archived by transactions before this one are counted."
    )
    buckets: columns.Integer = models.IntegerField()
    removed: columns.Integer = models.IntegerField(default=0)
    system: columns.Text = models.TextField(
        default="", help_text="The identifier of the server that assigned the transaction ids."
    )
    started_at: columns.Time = models.DateTimeField()
    finished_at: columns.Time = models.DateTimeField(db_default=columns.NOW)

    class Meta(columns.Meta):
        verbose_name: ClassVar[Any] = gettext_lazy("roll-up run")
        verbose_name_plural: ClassVar[Any] = gettext_lazy("roll-up runs")
        default_permissions: ClassVar[tuple[str, ...]] = ("view",)
        db_table = "pgqueue_rollup_run"
        ordering: ClassVar[tuple[str, ...]] = ("-id",)

    def __str__(self) -> str:
        return gettext("roll-up %s") % self.pk
