"""A message: written once, in the leaf of its queue."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from asgiref.sync import sync_to_async
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models, transaction
from django.db.models.base import ModelState
from django.utils.functional import cached_property

from django_pgqueue.acks import Ack, Nack, Outcome, Reject
from django_pgqueue.decoding import decode
from django_pgqueue.errors import ImmutableMessage, LeaseLost
from django_pgqueue.models.operations import MessageManager
from django_pgqueue.models.queue import Queue
from django_pgqueue.types import Batch, BatchReceipt, Receipt

__all__ = ["Message"]


class MessageQuerySet(models.QuerySet["Message"]):
    """Messages by the ORM: for looking, bulk_create as a send, and delete."""

    def update(self, **kwargs: Any) -> int:
        raise ImmutableMessage

    def bulk_update(self, *args: Any, **kwargs: Any) -> int:
        raise ImmutableMessage

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete messages wherever they stand, in the queue or in the archive."""
        deleted = 0
        self._for_write = True
        with transaction.atomic(using=self.db):
            rows = self.order_by("queue_id").values_list("queue_id", "pk")
            by_queue: dict[int, list[int]] = {}
            for queue_id, pk in rows:
                by_queue.setdefault(queue_id, []).append(pk)
            for queue in Queue.objects.using(self.db).filter(pk__in=by_queue):
                ids = by_queue[queue.pk]
                deleted += len(self.model.objects.erase(queue, ids))
        return deleted, {self.model._meta.label: deleted}

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]


class Message(models.Model):
    """One message, queued or archived.

    Inserting a row is a send, by whichever way: ``Message.objects.send``, ``bulk_create``, plain
    SQL or COPY. ``id`` is one sequence for all queues, so it names the message for life.

    A message that was read also has ``read_ct`` (deliveries so far), ``attempts`` (how often a
    handler ran before), ``vt`` (the moment the lease runs out) and ``receipt``.
    """

    # The key in the database is (id, queue_id, enqueued_at), as partitions demand; the admin and
    # foreign keys need a single column, and id alone is unique.
    id = models.BigAutoField(primary_key=True)
    enqueued_at = models.DateTimeField(
        db_default=models.Func(function="statement_timestamp", output_field=models.DateTimeField()),
        editable=False,
    )
    scheduled_at = models.DateTimeField(null=True, blank=True)
    queue = models.ForeignKey(
        Queue, models.DO_NOTHING, db_constraint=False, db_index=False, related_name="messages"
    )
    priority = models.SmallIntegerField(default=0)
    group_key = models.TextField(null=True, blank=True)  # noqa: DJ001
    dedup_key = models.TextField(null=True, blank=True)  # noqa: DJ001
    headers: models.JSONField[Any, Any] = models.JSONField(
        null=True, blank=True, encoder=DjangoJSONEncoder
    )
    body: models.JSONField[Any, Any] = models.JSONField(
        null=True, blank=True, encoder=DjangoJSONEncoder
    )

    objects = MessageManager.from_queryset(MessageQuerySet)()

    # Set by a read.
    read_ct: int
    attempts: int
    vt: dt.datetime
    first_read_at: dt.datetime | None
    queue_name: str
    lease_until: float
    _read_from: Queue
    #: The batch it was read in, when that has one lease.
    batch: Batch | None = None

    #: Set by a consumer that learns of it while its handler runs.
    cancelled = False

    #: Set by a consumer while a handler has the message: takes what the handler says of it.
    on_outcome: Callable[[Message, Outcome], None] | None = None
    #: The same for the lease: prolongs it by so many seconds, and says whether it still held.
    on_extend: Callable[[Message, float], bool] | None = None

    class Meta:
        db_table = "pgqueue_message"
        required_db_vendor = "postgresql"

    def __str__(self) -> str:
        return f"message {self.pk}"

    @cached_property
    def _state(self) -> ModelState:  # type: ignore[override]
        """Django's, made when it asks: of most messages that are read it never does."""
        state = ModelState()
        state.adding, state.db = False, self._read_from.alias
        state.fields_cache = {"queue": self._read_from}
        return state

    def __getstate__(self) -> dict[str, Any]:
        self.__dict__["_state"] = self._state  # there Django looks for it
        return super().__getstate__()

    @property
    def receipt(self) -> Receipt:
        """What settles this delivery, and no later one."""
        batch = self.batch
        if batch is None:
            return Receipt(self.id, self.read_ct)
        # As calling the class does, but in half the time.
        receipt = tuple.__new__(BatchReceipt, (self.id, self.read_ct))
        receipt.batch = batch
        return receipt

    @property
    def group(self) -> str | None:
        """The FIFO group, or None."""
        return self.group_key

    def ack(self) -> None:
        """Done: to the archive. Raises LeaseLost when the message was read again since."""
        self._say(Ack())

    def nack(self, delay: float | None = None, reason: str = "") -> None:
        """Try again after ``delay`` seconds; None means at once, or in a handler what its retry
        strategy says. Raises LeaseLost."""
        self._say(Nack(delay, reason))

    def reject(self, reason: str = "rejected") -> None:
        """Failed for good: to the dead-letter queue, or the archive as FAILED. Raises LeaseLost."""
        self._say(Reject(reason))

    def extend(self, seconds: float | None = None) -> None:
        """Hold the message for so many seconds from now, by default the queue's timeout.

        Raises LeaseLost when it was read again since; whatever is still done then, is done twice.
        """
        seconds = self.queue.visibility_timeout if seconds is None else seconds
        if self.on_extend is not None:
            held = self.on_extend(self, seconds)
        else:
            held = not type(self).objects.set_vt(self.queue, self.receipt, seconds).lost
        if not held:
            raise LeaseLost(self.receipt)

    async def aextend(self, seconds: float | None = None) -> None:
        """The async twin of :meth:`extend`."""
        await sync_to_async(self.extend)(seconds)

    def _say(self, outcome: Outcome) -> None:
        if self.on_outcome is not None:
            self.on_outcome(self, outcome)
        elif type(self).objects.settle(self.queue, {self.receipt: outcome}).lost:
            raise LeaseLost(self.receipt)

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise ImmutableMessage
        super().save(*args, **{**kwargs, "force_insert": True})

    def delete(
        self, using: str | None = None, keep_parents: bool = False
    ) -> tuple[int, dict[str, int]]:
        messages = type(self).objects.using(using or self._state.db)
        return messages.filter(pk=self.pk, queue_id=self.queue_id).delete()

    @classmethod
    def from_read(cls, rows: Iterable[Sequence[Any]], queue: Queue) -> list[Message]:
        """Messages from rows of read.sql, without the cost of ``__init__`` and its signals.

        Columns that hardly anybody looks at are left out; Django fetches them when asked for.
        """
        queue_id, queue_name = queue.id, queue.name
        messages = []
        for row in rows:
            headers, body = row[2], row[1]
            message = cls.__new__(cls)
            message.__dict__ = {
                "id": row[0],
                "body": None if body is None else decode(body),
                "headers": None if headers is None else decode(headers),
                "enqueued_at": row[3],
                "priority": row[4],
                "group_key": row[5],
                "read_ct": row[6],
                "attempts": row[7],
                "vt": row[8],
                "first_read_at": row[9],
                "batch": row[10] if len(row) > 10 else None,
                "queue_id": queue_id,
                "queue_name": queue_name,
                "_read_from": queue,
            }
            messages.append(message)
        return messages
