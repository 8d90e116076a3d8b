"""The model of the audit log: who did what to which queue."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import connections, models
from django.utils.translation import gettext_lazy

from django_pgqueue.conf import settings
from django_pgqueue.database.home import HomeManager
from django_pgqueue.tables import columns

#: Maximum number of entries that one statement deletes.
_BATCH = 10_000


class AuditManager(HomeManager["AuditEntry"]):
    """Finds entries of the log, and deletes old ones."""

    def prune(self, using: str) -> None:
        """Delete the entries older than ``AUDIT_DAYS``, if the database role may delete."""
        if settings.AUDIT_DAYS is None:
            return
        with connections[using].cursor() as cursor:
            deleted = _BATCH
            while deleted == _BATCH:
                cursor.execute(
                    "DELETE FROM pgqueue_audit WHERE id = ANY(ARRAY("
                    "SELECT id FROM pgqueue_audit WHERE at < now() - make_interval(secs => %s) "
                    "LIMIT %s)) AND has_table_privilege('pgqueue_audit', 'DELETE')",
                    [settings.AUDIT_DAYS * 86_400, _BATCH],
                )
                deleted = cursor.rowcount


class AuditEntry(models.Model):
    """One operation on a queue: who, from where, what, and on how many messages.

    - ``who``: the user of the admin, the name given by :func:`django_pgqueue.audit.acting_as`, or
      else the operating system's user; ``role``: the database role.
    - ``place``: "admin", "command", "code", or "sql" for a client without this package;
      ``program`` and ``host``: where it ran.
    - ``operation`` and ``arguments``: what was done, without bodies. ``queue_name`` stays when the
      queue is dropped.
    - ``count``: the number of messages; ``ended_at``: None if the operation still runs, or was
      interrupted after ``count`` messages.
    """

    id: columns.BigAutoKey = models.BigAutoField(primary_key=True)
    at: columns.Time = models.DateTimeField(db_default=columns.NOW)
    operation: columns.Text = models.TextField()
    queue_id: columns.IntegerOrNull = models.IntegerField(null=True)
    queue_name: columns.Text = models.TextField(default="")
    arguments: columns.JSON = models.JSONField(default=dict)
    count: columns.BigIntegerOrNull = models.BigIntegerField(null=True)
    ended_at: columns.TimeOrNull = models.DateTimeField(null=True)
    who: columns.Text = models.TextField()
    place: columns.Text = models.TextField()
    program: columns.Text = models.TextField(default="")
    host: columns.Text = models.TextField(default="")
    role: columns.Text = models.TextField(
        db_default=models.Func(template="CURRENT_USER", output_field=models.TextField())
    )

    objects: ClassVar[AuditManager] = AuditManager()

    class Meta(columns.Meta):
        verbose_name: ClassVar[Any] = gettext_lazy("audit entry")
        verbose_name_plural: ClassVar[Any] = gettext_lazy("audit log")
        default_permissions: ClassVar[tuple[str, ...]] = ("view",)
        db_table = "pgqueue_audit"
        ordering: ClassVar[tuple[str, ...]] = ("-id",)
        indexes: ClassVar[tuple[models.Index, ...]] = (
            models.Index(fields=["at"], name="pgqueue_audit_at"),
            models.Index(fields=["queue_id", "-id"], name="pgqueue_audit_queue"),
        )

    def __str__(self) -> str:
        return f"{self.operation} {self.queue_name}".strip()
