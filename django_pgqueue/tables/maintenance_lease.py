"""The maintenance lease: in each database one consumer process at a time runs maintenance."""

from __future__ import annotations

import uuid

from django.db import models

from django_pgqueue.tables import columns


class MaintenanceLease(models.Model):
    """The maintenance lease, the table's only row: the process that holds it, its start and end.

    ``process`` is the host and process id, such as ``web1:4711``.
    :mod:`django_pgqueue.maintenance.lease` writes the row.
    """

    id: columns.SmallInteger = models.SmallIntegerField(primary_key=True, default=1)
    token: models.UUIDField[uuid.UUID, uuid.UUID] = models.UUIDField()
    process: columns.Text = models.TextField()
    since: columns.Time = models.DateTimeField(db_default=columns.NOW)
    until: columns.Time = models.DateTimeField()

    class Meta(columns.Meta):
        db_table = "pgqueue_maintenance"

    def __str__(self) -> str:
        return self.process
