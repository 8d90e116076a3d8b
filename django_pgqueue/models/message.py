"""A message: written once, in the partition of its queue."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from asgiref.sync import sync_to_async
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.models.base import ModelState
from django.utils.functional import cached_property
from django.utils.translation import gettext, gettext_lazy

from django_pgqueue.acks import Ack, Nack, Outcome, Reject
from django_pgqueue.decoding import decode
from django_pgqueue.engine.rows import Delivery, moment
from django_pgqueue.engine.session import OpenQueue
from django_pgqueue.engine.settle import outcomes, settling
from django_pgqueue.errors import ImmutableMessage, LeaseLost, NeverRead
from django_pgqueue.models.clock import NOW
from django_pgqueue.models.methods import MessageManager
from django_pgqueue.models.queryset import MessageQuerySet
from django_pgqueue.models.queue import Queue
from django_pgqueue.types import Batch, BatchReceipt, Receipt

__all__ = ["Message"]


class Message(models.Model):
    """One message, queued or archived.

    Inserting a row is a send, by whichever way: ``Message.objects.send``, ``bulk_create``, plain
    SQL or COPY. ``id`` is one sequence for all queues, so it names the message for life.

    A message that was read also has ``read_ct`` (deliveries so far), ``attempts`` (how often a
    handler ran before), ``vt`` (the moment the lease runs out) and ``receipt``.
    """

    # The key in the database is (id, queue_id, enqueued_at), as partitions demand; the admin and
    # foreign keys need a single column, and id alone is unique.
    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    enqueued_at: models.DateTimeField[dt.datetime, dt.datetime] = models.DateTimeField(
        db_default=NOW,
        editable=False,
    )
    scheduled_at: models.DateTimeField[dt.datetime | None, dt.datetime | None] = (
        models.DateTimeField(null=True, blank=True)
    )
    # The sending transaction: with it the table can be read as a log, without a gap.
    enqueued_xid: models.BigIntegerField[int, int] = models.BigIntegerField(
        db_default=models.Func(
            template="pg_current_xact_id()::text::bigint", output_field=models.BigIntegerField()
        ),
        editable=False,
    )
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.DO_NOTHING, db_constraint=False, db_index=False, related_name="messages"
    )
    priority: models.SmallIntegerField[int, int] = models.SmallIntegerField(default=0)
    group_key: models.TextField[str | None, str | None] = models.TextField(null=True, blank=True)  # noqa: DJ001
    dedup_key: models.TextField[str | None, str | None] = models.TextField(null=True, blank=True)  # noqa: DJ001
    headers: models.JSONField[Any, Any] = models.JSONField(
        null=True, blank=True, encoder=DjangoJSONEncoder
    )
    body: models.JSONField[Any, Any] = models.JSONField(
        null=True, blank=True, encoder=DjangoJSONEncoder
    )

    objects: ClassVar[MessageManager] = MessageManager()

    # Set by a read; moments are in microseconds since 1970.
    read_ct: int
    attempts: int
    read_at: int
    _vt: int
    _first_read_at: int | None
    lease_until: float
    _read_from: OpenQueue
    #: The batch that it was leased with as one row, if it was.
    batch: Batch | None = None

    #: Set by a consumer that learns of it while its handler runs.
    cancelled = False

    #: Set by a consumer while a handler has the message: takes the outcome that the handler names.
    on_outcome: Callable[[Message, Outcome], None] | None = None
    #: The same for the lease: makes it last that many seconds, and returns whether it still held.
    on_extend: Callable[[Message, float], bool] | None = None

    class Meta:
        verbose_name: ClassVar[Any] = gettext_lazy("message")
        verbose_name_plural: ClassVar[Any] = gettext_lazy("messages")
        default_permissions: ClassVar[tuple[str, ...]] = ("view", "delete")
        permissions: ClassVar[tuple[tuple[str, str], ...]] = (
            ("send_message", "Can send messages"),
            ("settle_message", "Can make messages readable and archive them"),
            ("redrive_message", "Can redrive dead letters"),
        )
        db_table = "pgqueue_message"
        required_db_vendor = "postgresql"

    def __str__(self) -> str:
        return gettext("message %s") % self.pk

    @cached_property
    def _state(self) -> ModelState:  # type: ignore[override]
        """Django's, made when it asks: of most messages that are read it never does."""
        state = ModelState()
        state.adding, state.db = False, self._read_from.alias
        state.fields_cache = {"queue": self._read_from.source}
        return state

    def __getstate__(self) -> dict[str, Any]:
        self.__dict__["_state"] = self._state  # there Django looks for it
        return super().__getstate__()

    @property
    def queue_name(self) -> str:
        """The name of the queue that it was read from."""
        return self._read_from.name

    @property
    def vt(self) -> dt.datetime:
        """The moment at which the lease of this delivery runs out."""
        return moment(self._vt, self._read_from.connection)

    @property
    def first_read_at(self) -> dt.datetime | None:
        """The moment of the first delivery; None before it."""
        first = self._first_read_at
        return None if first is None else moment(first, self._read_from.connection)

    @property
    def waited(self) -> float | None:
        """For how many seconds it could have been read before its first delivery, which this is;
        None at a later one."""
        if self.read_ct != 1 or self._first_read_at is None:
            return None
        since = self.enqueued_at
        if (scheduled := self.__dict__.get("scheduled_at")) is not None:
            since = max(since, scheduled)
        return self._first_read_at / 1_000_000 - since.timestamp()

    @property
    def leased_for(self) -> float:
        """Seconds from the first delivery to the end of this lease, by the server's clock."""
        first = self._first_read_at
        return 0.0 if first is None else (self._vt - first) / 1_000_000

    @property
    def receipt(self) -> Receipt:
        """Settles this delivery, and no other one."""
        batch = self.batch
        if batch is None:
            return Receipt(self.id, self.read_ct, self.read_at)
        # As calling the class does, but in half the time.
        receipt = tuple.__new__(BatchReceipt, (self.id, self.read_ct, self.read_at))
        receipt.batch = batch
        return receipt

    @property
    def group(self) -> str | None:
        """The FIFO group, or None."""
        return self.group_key

    def ack(self) -> None:
        """Done: to the archive.

        Raises LeaseLost when the message was read again since, and NeverRead when it was only
        peeked at.
        """
        self._say(Ack())

    def nack(self, delay: float | None = None, reason: str = "") -> None:
        """Try again after ``delay`` seconds; None means at once, or in a handler as its retry
        strategy says. ``reason`` is kept as the last error. Raises LeaseLost, NeverRead."""
        self._say(Nack(delay, reason))

    def reject(self, reason: str = "rejected") -> None:
        """Failed for good: to the dead-letter queue, or the archive as FAILED.

        Raises LeaseLost, NeverRead.
        """
        self._say(Reject(reason))

    def extend(self, seconds: float | None = None) -> None:
        """Hold the message for ``seconds`` from now, by default the queue's visibility timeout.

        Raises NeverRead, and LeaseLost when it was read again since; work that goes on then is
        done twice.
        """
        if seconds is None:
            seconds = self._leased_from.visibility_timeout
        if self.on_extend is not None:
            held = self.on_extend(self, seconds)
        else:
            held = not settling.set_vt(self._leased_from, self.receipt, seconds).lost
        if not held:
            raise LeaseLost(self.receipt)

    async def aextend(self, seconds: float | None = None) -> None:
        """The async twin of :meth:`extend`."""
        await sync_to_async(self.extend)(seconds)

    def _say(self, outcome: Outcome) -> None:
        if self.on_outcome is not None:
            self.on_outcome(self, outcome)
        elif outcomes.settle(self._leased_from, {self.receipt: outcome}).lost:
            raise LeaseLost(self.receipt)

    @property
    def _leased_from(self) -> OpenQueue:
        """The queue that holds the lease. Raises NeverRead."""
        if not self.__dict__.get("read_at"):
            raise NeverRead(self.pk)
        return self._read_from

    def refresh_from_db(
        self,
        using: str | None = None,
        fields: Iterable[str] | None = None,
        from_queryset: models.QuerySet[Message] | None = None,
    ) -> None:
        """Django's, which also fetches columns that were left out; looks in its queue first."""
        queue_id = self.__dict__.get("queue_id")
        fields = None if fields is None else list(fields)
        if from_queryset is None and queue_id is not None:
            manager = type(self)._base_manager.db_manager(using, hints={"instance": self})
            try:
                return super().refresh_from_db(using, fields, manager.filter(queue_id=queue_id))
            except type(self).DoesNotExist:
                pass  # it has moved to another queue, or is gone
        super().refresh_from_db(using, fields, from_queryset)

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise ImmutableMessage
        super().save(*args, **{**kwargs, "force_insert": True})

    def delete(
        self, using: str | None = None, keep_parents: bool = False
    ) -> tuple[int, dict[str, int]]:
        messages = MessageQuerySet(type(self), using=using or self._state.db)
        return messages.filter(pk=self.pk, queue_id=self.queue_id).delete()

    @classmethod
    def from_deliveries(cls, queue: OpenQueue, found: Iterable[Delivery]) -> list[Message]:
        """Messages as a read found them, without the cost of ``__init__`` and its signals.

        Columns that are seldom looked at are left out; Django fetches them when asked for.
        """
        queue_id = queue.id
        messages = []
        for (
            _note,
            pk,
            read_ct,
            read_at,
            body,
            headers,
            enqueued_at,
            priority,
            group_key,
            attempts,
            vt,
            first_read_at,
            scheduled_at,
            batch,
        ) in found:
            message = cls.__new__(cls)
            message.__dict__ = {
                "id": pk,
                "read_ct": read_ct,
                "read_at": read_at,
                "body": None if body is None else decode(body),
                "headers": None if headers is None else decode(headers),
                "enqueued_at": enqueued_at,
                "priority": priority,
                "group_key": group_key,
                "attempts": attempts,
                "_vt": vt,
                "_first_read_at": first_read_at,
                "batch": batch,
                "queue_id": queue_id,
                "_read_from": queue,
            }
            if scheduled_at is not None:
                message.__dict__["scheduled_at"] = scheduled_at
            messages.append(message)
        return messages
