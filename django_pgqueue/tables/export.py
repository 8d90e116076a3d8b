"""The models of the export: lakes, export runs, and the purge mark of each queue."""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.exceptions import ValidationError
from django.db import models
from django.utils.translation import gettext_lazy

from django_pgqueue.tables import columns
from django_pgqueue.tables.queue import Queue
from django_pgqueue.validators import validate_names


class Lake(models.Model):
    """A directory of Parquet files.

    It has the rows that were archived by transactions before ``exported_below``.
    """

    id: columns.AutoKey = models.AutoField(primary_key=True)
    path: columns.Text = models.TextField(unique=True, editable=False)
    queues: columns.JSON = models.JSONField(
        default=list,
        blank=True,
        help_text="Names of the exported queues. Empty: all.",
    )
    holds_retention: columns.Boolean = models.BooleanField(
        default=False, help_text="Retention keeps archived messages until they are exported here."
    )
    exported_below: columns.BigInteger = models.BigIntegerField(
        default=0,
        editable=False,
        help_text="Messages archived by transactions before this one are exported.",
    )
    exported_at: columns.TimeOrNull = models.DateTimeField(
        null=True,
        editable=False,
        help_text=(
            "Messages archived before this time are exported. Empty until a run was published."
        ),
    )
    system: columns.Text = models.TextField(
        default="",
        editable=False,
        help_text="The identifier of the server that assigned the transaction ids.",
    )
    iceberg: columns.Text = models.TextField(
        default="", editable=False, help_text="The Iceberg table, if the lake is one."
    )
    body_schemas: columns.JSON = models.JSONField(
        default=dict,
        editable=False,
        help_text="For each queue, the fields of bodies that have columns of their own.",
    )
    created_at: columns.Time = models.DateTimeField(db_default=columns.NOW, editable=False)

    class Meta(columns.Meta):
        verbose_name: ClassVar[Any] = gettext_lazy("lake")
        verbose_name_plural: ClassVar[Any] = gettext_lazy("lakes")
        default_permissions: ClassVar[tuple[str, ...]] = ("view", "change")
        db_table = "pgqueue_lake"
        ordering: ClassVar[tuple[str, ...]] = ("path",)
        constraints: ClassVar[tuple[models.BaseConstraint, ...]] = (
            *columns.listing("pgqueue_lake", "string", "queues"),
        )

    def __str__(self) -> str:
        return self.path

    def clean(self) -> None:
        # A field's validators do not see {} and None, which count as empty.
        try:
            validate_names(self.queues)
        except ValidationError as error:
            raise ValidationError({"queues": error}) from error


class ExportRun(models.Model):
    """One run of an export: the range of transaction ids, and the files that it wrote."""

    class Kind(models.TextChoices):
        EXPORT = "EXPORT"
        COMPACT = "COMPACT"

    class State(models.TextChoices):
        RUNNING = "RUNNING"  # files are written to a directory that readers ignore
        PUBLISHING = "PUBLISHING"  # files are moved to their final directory
        FAILED = "FAILED"  # a later run exports the same range
        DONE = "DONE"

    id: columns.BigAutoKey = models.BigAutoField(primary_key=True)
    # The migration adds a foreign key with ON DELETE CASCADE, so plain SQL can delete a lake.
    lake: models.ForeignKey[Lake, Lake] = models.ForeignKey(
        Lake, models.CASCADE, related_name="runs", db_constraint=False
    )
    kind: columns.Text = models.TextField(choices=Kind.choices, default=Kind.EXPORT)
    state: columns.Text = models.TextField(choices=State.choices, default=State.RUNNING)
    from_xid: columns.BigInteger = models.BigIntegerField(default=0)
    to_xid: columns.BigInteger = models.BigIntegerField(default=0)
    rows: columns.BigInteger = models.BigIntegerField(default=0)
    files: columns.Integer = models.IntegerField(default=0)
    bytes: columns.BigInteger = models.BigIntegerField(default=0)
    manifest: columns.JSON = models.JSONField(default=dict)
    checksums: columns.JSON = models.JSONField(null=True)
    verified_at: columns.TimeOrNull = models.DateTimeField(null=True)
    error: columns.Text = models.TextField(
        default="", blank=True, help_text="The error and its traceback."
    )
    resumed_by: models.ForeignKey[ExportRun | None, ExportRun | None] = models.ForeignKey(
        "self", models.SET_NULL, null=True, related_name="+"
    )
    started_at: columns.Time = models.DateTimeField(db_default=columns.NOW)
    finished_at: columns.TimeOrNull = models.DateTimeField(null=True)

    class Meta(columns.Meta):
        verbose_name: ClassVar[Any] = gettext_lazy("export run")
        verbose_name_plural: ClassVar[Any] = gettext_lazy("export runs")
        default_permissions: ClassVar[tuple[str, ...]] = ("view",)
        db_table = "pgqueue_export_run"
        ordering: ClassVar[tuple[str, ...]] = ("-id",)
        constraints: ClassVar[tuple[models.BaseConstraint, ...]] = (
            models.UniqueConstraint(
                fields=("lake",),
                condition=models.Q(state__in=("RUNNING", "PUBLISHING")),
                name="pgqueue_export_run_unfinished",
            ),
        )

    def __str__(self) -> str:
        return f"{self.kind.lower()} {self.pk} of {self.lake}"


class PurgeMark(models.Model):
    """A queue's mark: rows archived before transaction ``below_xid`` may have been removed."""

    queue: models.OneToOneField[Queue, Queue] = models.OneToOneField(
        Queue,
        models.DO_NOTHING,
        db_constraint=False,
        primary_key=True,
        related_name="purge_mark",
    )
    below_xid: columns.BigInteger = models.BigIntegerField()
    dropped: columns.Text = models.TextField(
        default="", help_text="The queue's name, once it is dropped."
    )
    purged_at: columns.Time = models.DateTimeField(db_default=columns.NOW)

    class Meta(columns.Meta):
        db_table = "pgqueue_purge_mark"

    def __str__(self) -> str:
        return f"{self.queue_id}: below {self.below_xid}"
