"""The models of messages in a queue: ready rows, deferred rows, and a view of both."""

from __future__ import annotations

import datetime as dt
from typing import Any, ClassVar

from django.db import models
from django.db.models.expressions import RawSQL

from django_pgqueue.engine.statements import compose
from django_pgqueue.models.queue import Queue
from django_pgqueue.types import State

__all__ = ["Deferred", "LiveMessage", "Ready"]


class NotLoaded(models.Model):
    """A base of models that loaddata skips: an INSERT of a message writes their rows."""

    class Meta:
        abstract = True

    def _save_table(self, raw: bool = False, *args: Any, **kwargs: Any) -> bool:
        # loaddata (raw=True) calls this private method, and no public hook that could skip a row.
        return not raw and super()._save_table(raw, *args, **kwargs)  # type: ignore[misc]


class Ready(NotLoaded):
    """A readable message that was never read."""

    id: models.BigIntegerField[int, int] = models.BigIntegerField(primary_key=True)
    enqueued_at: models.DateTimeField[dt.datetime, dt.datetime] = models.DateTimeField()
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    priority: models.SmallIntegerField[int, int] = models.SmallIntegerField()
    group_key: models.TextField[str | None, str | None] = models.TextField(null=True)  # noqa: DJ001

    class Meta:
        default_permissions: ClassVar[tuple[str, ...]] = ()
        db_table = "pgqueue_ready"
        required_db_vendor = "postgresql"

    def __str__(self) -> str:
        return f"ready message {self.pk}"


class Deferred(NotLoaded):
    """A message that becomes readable at ``vt``: scheduled, leased or waiting to retry."""

    id: models.BigIntegerField[int, int] = models.BigIntegerField(primary_key=True)
    vt: models.DateTimeField[dt.datetime, dt.datetime] = models.DateTimeField()
    enqueued_at: models.DateTimeField[dt.datetime, dt.datetime] = models.DateTimeField()
    first_read_at: models.DateTimeField[dt.datetime | None, dt.datetime | None] = (
        models.DateTimeField(null=True)
    )
    last_read_at: models.DateTimeField[dt.datetime | None, dt.datetime | None] = (
        models.DateTimeField(null=True)
    )
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    read_ct: models.IntegerField[int, int] = models.IntegerField(default=0)
    attempts: models.IntegerField[int, int] = models.IntegerField(default=0)
    process_id: models.IntegerField[int | None, int | None] = models.IntegerField(null=True)
    priority: models.SmallIntegerField[int, int] = models.SmallIntegerField()
    state: models.TextField[str, str] = models.TextField()
    group_key: models.TextField[str | None, str | None] = models.TextField(null=True)  # noqa: DJ001
    error: models.TextField[str | None, str | None] = models.TextField(null=True)  # noqa: DJ001

    class Meta:
        default_permissions: ClassVar[tuple[str, ...]] = ()
        db_table = "pgqueue_deferred"
        required_db_vendor = "postgresql"

    def __str__(self) -> str:
        return f"{self.state.lower()} message {self.pk}"


class LiveManager(models.Manager["LiveMessage"]):
    use_in_migrations = False

    def one(self, queue_id: int, pk: int, *, using: str) -> models.QuerySet[LiveMessage]:
        """The row of one message, with ``in_flight``: whether it is leased.

        Found by index. The index of ready rows starts with priority.
        """
        rank = models.Func(
            models.F("priority"),
            template="-%(expressions)s",
            output_field=models.SmallIntegerField(),
        )
        own = RawSQL(
            "SELECT -priority FROM pgqueue_message WHERE queue_id = %s AND id = %s", [queue_id, pk]
        )
        in_flight = RawSQL(compose("places/in_flight", {}), [], output_field=models.BooleanField())
        live = self.using(using).alias(rank=rank)
        live = live.annotate(in_flight=in_flight)  # type: ignore[no-redef]
        return live.filter(queue=queue_id, pk=pk, rank=own)


class LiveMessage(NotLoaded):
    """The view ``pgqueue_live``: one row per message in a queue, from all live tables.

    For the admin, commands and tests. Operations on the hot path use the tables.
    """

    id: models.BigIntegerField[int, int] = models.BigIntegerField(primary_key=True)
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.DO_NOTHING, db_constraint=False, related_name="live"
    )
    state: models.TextField[str, str] = models.TextField(
        choices=[(s.value, s.value.title()) for s in State]
    )
    vt: models.DateTimeField[dt.datetime, dt.datetime] = models.DateTimeField()
    read_ct: models.IntegerField[int, int] = models.IntegerField()
    attempts: models.IntegerField[int, int] = models.IntegerField()
    priority: models.SmallIntegerField[int, int] = models.SmallIntegerField()
    group_key: models.TextField[str | None, str | None] = models.TextField(null=True)  # noqa: DJ001
    enqueued_at: models.DateTimeField[dt.datetime, dt.datetime] = models.DateTimeField()
    first_read_at: models.DateTimeField[dt.datetime | None, dt.datetime | None] = (
        models.DateTimeField(null=True)
    )
    last_read_at: models.DateTimeField[dt.datetime | None, dt.datetime | None] = (
        models.DateTimeField(null=True)
    )
    process_id: models.IntegerField[int | None, int | None] = models.IntegerField(null=True)

    #: Whether the message is leased. Set by LiveManager.one.
    in_flight: bool

    objects: ClassVar[LiveManager] = LiveManager()

    class Meta:
        default_permissions: ClassVar[tuple[str, ...]] = ()
        db_table = "pgqueue_live"
        managed = False

    def __str__(self) -> str:
        return f"{self.state.lower()} message {self.pk}"
