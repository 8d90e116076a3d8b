"""The model of the view ``pgqueue_live``: the messages in queues."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.db.models.expressions import RawSQL

from django_pgqueue.engine.statements import compose
from django_pgqueue.tables import columns
from django_pgqueue.tables.queue import Queue
from django_pgqueue.types import State


class LiveManager(models.Manager["LiveMessage"]):
    def one(self, queue_id: int, pk: int, *, using: str) -> models.QuerySet[LiveMessage]:
        """Return a queryset of one message, with ``in_flight``: whether it is leased.

        The conditions on ``rank`` and ``turn`` let PostgreSQL use the index of ready rows.
        """
        rank = models.Func(
            models.F("priority"),
            template="-%(expressions)s",
            output_field=models.SmallIntegerField(),
        )
        own = "FROM pgqueue_message m WHERE queue_id = %s AND id = %s"
        turn = compose("places/turn", {"of": "m.queue_id"})
        in_flight = RawSQL(compose("places/in_flight", {}), [], output_field=models.BooleanField())
        live = self.using(using).alias(rank=rank, turn=RawSQL("turn", []))
        live = live.annotate(in_flight=in_flight)  # type: ignore[no-redef]
        return live.filter(
            queue=queue_id,
            pk=pk,
            rank=RawSQL(f"SELECT -priority {own}", [queue_id, pk]),
            turn__in=[pk << 20, RawSQL(f"SELECT {turn} {own}", [queue_id, pk])],
        )


class LiveMessage(models.Model):
    """The view ``pgqueue_live``: one row per message in a queue, from all live tables.

    The admin, the commands and tests query it. Frequent operations use the tables directly.
    """

    id: columns.BigInteger = models.BigIntegerField(primary_key=True)
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.DO_NOTHING, db_constraint=False, related_name="live"
    )
    state: columns.Text = models.TextField(
        choices=[(s.value, s.value.title()) for s in State if not s.is_terminal]
    )
    vt: columns.Time = models.DateTimeField()
    read_ct: columns.Integer = models.IntegerField()
    attempts: columns.Integer = models.IntegerField()
    priority: columns.SmallInteger = models.SmallIntegerField()
    group_key: columns.TextOrNull = models.TextField(null=True)  # noqa: DJ001
    enqueued_at: columns.Time = models.DateTimeField()
    first_read_at: columns.TimeOrNull = models.DateTimeField(null=True)
    last_read_at: columns.TimeOrNull = models.DateTimeField(null=True)
    process_id: columns.IntegerOrNull = models.IntegerField(null=True)

    #: Whether the message is leased. Set by LiveManager.one.
    in_flight: bool

    objects: ClassVar[LiveManager] = LiveManager()

    class Meta:
        default_permissions: ClassVar[tuple[str, ...]] = ()
        db_table = "pgqueue_live"
        managed = False

    def __str__(self) -> str:
        return f"{self.state.lower()} message {self.pk}"

    def _save_table(self, raw: bool = False, *args: Any, **kwargs: Any) -> bool:
        # loaddata (raw=True) must skip these rows, since loading the messages writes them. No
        # public method that loaddata calls could skip a row, so this overrides a private one.
        return not raw and super()._save_table(raw, *args, **kwargs)  # type: ignore[misc]
