"""Lakes, the targets of the archive's export; export runs; and marks of what was removed."""

from __future__ import annotations

import datetime as dt
from typing import Any, ClassVar

from django.db import models
from django.utils.translation import gettext_lazy

from django_pgqueue.models.clock import NOW
from django_pgqueue.models.queue import Queue

__all__ = ["ExportRun", "Lake", "PurgeMark"]


class Lake(models.Model):
    """A lake: a directory of Parquet files, and the position up to which it is exported."""

    id: models.AutoField[int, int] = models.AutoField(primary_key=True)
    path: models.TextField[str, str] = models.TextField(unique=True, editable=False)
    queues: models.JSONField[Any, Any] = models.JSONField(
        default=list,
        blank=True,
        help_text="Names of the queues it takes; empty: all.",
    )
    holds_retention: models.BooleanField[bool, bool] = models.BooleanField(
        default=False,
        help_text="Retention waits until archived messages are exported here.",
    )
    exported_below: models.BigIntegerField[int, int] = models.BigIntegerField(
        default=0,
        editable=False,
        help_text="The transaction before which everything is exported.",
    )
    exported_at: models.DateTimeField[dt.datetime | None, dt.datetime | None] = (
        models.DateTimeField(
            null=True,
            editable=False,
            help_text="What was archived before is exported; empty until a run was published.",
        )
    )
    system: models.TextField[str, str] = models.TextField(
        default="",
        editable=False,
        help_text="The server whose transactions these are.",
    )
    iceberg: models.TextField[str, str] = models.TextField(
        default="", editable=False, help_text="The Iceberg table that it is, if it is one."
    )
    body_schemas: models.JSONField[Any, Any] = models.JSONField(
        default=dict,
        editable=False,
        help_text="By queue, the fields of its bodies that are columns.",
    )
    created_at: models.DateTimeField[dt.datetime, dt.datetime] = models.DateTimeField(
        db_default=NOW, editable=False
    )

    class Meta:
        verbose_name: ClassVar[Any] = gettext_lazy("lake")
        verbose_name_plural: ClassVar[Any] = gettext_lazy("lakes")
        default_permissions: ClassVar[tuple[str, ...]] = ("view", "change")
        db_table = "pgqueue_lake"
        ordering: ClassVar[tuple[str, ...]] = ("path",)
        required_db_vendor = "postgresql"

    def __str__(self) -> str:
        return self.path


class ExportRun(models.Model):
    """One run of an export: a range of transactions, and the files with their rows."""

    class Kind(models.TextChoices):
        EXPORT = "EXPORT"
        COMPACT = "COMPACT"

    class State(models.TextChoices):
        RUNNING = "RUNNING"  # files are written to a directory that readers ignore
        PUBLISHING = "PUBLISHING"  # files are moved to their final directory
        FAILED = "FAILED"  # another run exports its range
        DONE = "DONE"

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    # The migration adds the constraint with ON DELETE CASCADE, which also covers plain SQL.
    lake: models.ForeignKey[Lake, Lake] = models.ForeignKey(
        Lake, models.CASCADE, related_name="runs", db_constraint=False
    )
    kind: models.TextField[str, str] = models.TextField(choices=Kind.choices, default=Kind.EXPORT)
    state: models.TextField[str, str] = models.TextField(
        choices=State.choices, default=State.RUNNING
    )
    from_xid: models.BigIntegerField[int, int] = models.BigIntegerField(default=0)
    to_xid: models.BigIntegerField[int, int] = models.BigIntegerField(default=0)
    rows: models.BigIntegerField[int, int] = models.BigIntegerField(default=0)
    files: models.IntegerField[int, int] = models.IntegerField(default=0)
    bytes: models.BigIntegerField[int, int] = models.BigIntegerField(default=0)
    manifest: models.JSONField[Any, Any] = models.JSONField(default=dict)
    checksums: models.JSONField[Any, Any] = models.JSONField(null=True)
    verified_at: models.DateTimeField[dt.datetime | None, dt.datetime | None] = (
        models.DateTimeField(null=True)
    )
    error: models.TextField[str, str] = models.TextField(
        default="", blank=True, help_text="The error and its traceback."
    )
    resumed_by: models.ForeignKey[ExportRun | None, ExportRun | None] = models.ForeignKey(
        "self", models.SET_NULL, null=True, related_name="+"
    )
    started_at: models.DateTimeField[dt.datetime, dt.datetime] = models.DateTimeField(
        db_default=NOW
    )
    finished_at: models.DateTimeField[dt.datetime | None, dt.datetime | None] = (
        models.DateTimeField(null=True)
    )

    class Meta:
        verbose_name: ClassVar[Any] = gettext_lazy("export run")
        verbose_name_plural: ClassVar[Any] = gettext_lazy("export runs")
        default_permissions: ClassVar[tuple[str, ...]] = ("view",)
        db_table = "pgqueue_export_run"
        ordering: ClassVar[tuple[str, ...]] = ("-id",)
        required_db_vendor = "postgresql"
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
    """The position up to which a queue's archived messages may have been removed."""

    queue: models.OneToOneField[Queue, Queue] = models.OneToOneField(
        Queue,
        models.DO_NOTHING,
        db_constraint=False,
        primary_key=True,
        related_name="purge_mark",
    )
    below_xid: models.BigIntegerField[int, int] = models.BigIntegerField()
    dropped: models.TextField[str, str] = models.TextField(
        default="", help_text="The queue's name, once it is dropped."
    )
    purged_at: models.DateTimeField[dt.datetime, dt.datetime] = models.DateTimeField(db_default=NOW)

    class Meta:
        default_permissions: ClassVar[tuple[str, ...]] = ()
        db_table = "pgqueue_purge_mark"
        required_db_vendor = "postgresql"

    def __str__(self) -> str:
        return f"{self.queue_id}: below {self.below_xid}"
