"""Lakes that the archive is exported to, the runs that did it, and what retention has taken."""

from __future__ import annotations

from typing import Any

from django.db import connections, models

from django_pgqueue.models.queue import Queue

__all__ = ["ExportRun", "Lake", "PurgeMark"]

_now = models.Func(function="statement_timestamp", output_field=models.DateTimeField())


class LakeManager(models.Manager["Lake"]):
    """Lakes, and how far they are."""

    use_in_migrations = False

    def exported_below(self, queue: Queue) -> int | None:
        """Retention may take archived messages with a smaller ``archive_xid``; None: all of them.

        That is how far the slowest of the lakes is which hold this queue back.
        """
        marks = [
            lake.exported_below
            for lake in self.using(queue.alias).filter(holds_retention=True)
            if lake.takes(queue)
        ]
        return min(marks, default=None)


class Lake(models.Model):
    """A directory of Parquet files, and how much of the archive is in it."""

    id = models.AutoField(primary_key=True)
    path = models.TextField(unique=True, editable=False)
    queues = models.JSONField(
        default=list, blank=True, help_text="Names of the queues it takes; empty: all."
    )
    holds_retention = models.BooleanField(
        default=False, help_text="Retention waits until archived messages are exported here."
    )
    exported_below = models.BigIntegerField(
        default=0, editable=False, help_text="The transaction before which everything is exported."
    )
    system = models.TextField(
        default="", editable=False, help_text="The server whose transactions these are."
    )
    created_at = models.DateTimeField(db_default=_now, editable=False)

    objects = LakeManager()

    class Meta:
        default_permissions = ("view", "change")
        db_table = "pgqueue_lake"
        ordering = ("path",)
        required_db_vendor = "postgresql"

    def __str__(self) -> str:
        return self.path

    def takes(self, queue: Queue) -> bool:
        names = [str(name).lower() for name in self.queues]
        return not names or queue.name.lower() in names


class ExportRun(models.Model):
    """One run of an export: a span of transactions, and the files it became."""

    class Kind(models.TextChoices):
        EXPORT = "EXPORT"
        COMPACT = "COMPACT"

    class State(models.TextChoices):
        RUNNING = "RUNNING"  # files are written where no reader looks
        PUBLISHING = "PUBLISHING"  # files are moved to their places
        DONE = "DONE"

    id = models.BigAutoField(primary_key=True)
    lake = models.ForeignKey(Lake, models.CASCADE, related_name="runs")
    kind = models.TextField(choices=Kind.choices, default=Kind.EXPORT)
    state = models.TextField(choices=State.choices, default=State.RUNNING)
    from_xid = models.BigIntegerField(default=0)
    to_xid = models.BigIntegerField(default=0)
    rows = models.BigIntegerField(default=0)
    files = models.IntegerField(default=0)
    bytes = models.BigIntegerField(default=0)
    manifest = models.JSONField(default=dict)
    checksums = models.JSONField(null=True)
    verified_at = models.DateTimeField(null=True)
    error = models.TextField(default="", blank=True)
    started_at = models.DateTimeField(db_default=_now)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        default_permissions = ("view",)
        db_table = "pgqueue_export_run"
        ordering = ("-id",)
        required_db_vendor = "postgresql"
        constraints = (
            models.UniqueConstraint(
                fields=("lake",),
                condition=~models.Q(state="DONE"),
                name="pgqueue_export_run_unfinished",
            ),
        )

    def __str__(self) -> str:
        return f"{self.kind.lower()} {self.pk} of {self.lake}"


class PurgeMarkManager(models.Manager["PurgeMark"]):
    """What retention tells those who read the archive."""

    use_in_migrations = False

    def raise_to(self, queue: Queue, below_xid: int) -> None:
        """Note that archived messages of transactions before that one may be gone.

        In the transaction that removes them, so that a stream which has not read them stops.
        """
        with connections[queue.alias].cursor() as cursor:
            cursor.execute(
                "INSERT INTO pgqueue_purge_mark AS p (queue_id, below_xid) VALUES (%s, %s) "
                "ON CONFLICT (queue_id) DO UPDATE "
                "SET below_xid = greatest(p.below_xid, excluded.below_xid), purged_at = DEFAULT",
                [queue.pk, below_xid],
            )


class PurgeMark(models.Model):
    """Up to where archived messages of a queue may have been removed."""

    queue = models.OneToOneField(
        Queue,
        models.DO_NOTHING,
        db_constraint=False,
        primary_key=True,
        related_name="purge_mark",
    )
    below_xid = models.BigIntegerField()
    purged_at = models.DateTimeField(db_default=_now)

    objects = PurgeMarkManager()

    class Meta:
        default_permissions = ()
        db_table = "pgqueue_purge_mark"
        required_db_vendor = "postgresql"

    def __str__(self) -> str:
        return f"{self.queue_id}: below {self.below_xid}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Raise the mark; it never falls."""
        type(self).objects.raise_to(self.queue, self.below_xid)
