"""The model of messages."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connections, models
from django.db.models.base import ModelState
from django.utils.functional import cached_property
from django.utils.translation import gettext, gettext_lazy

from django_pgqueue.acks import Ack, Nack, Outcome, Reject
from django_pgqueue.engine.decoding import decode
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.rows import Delivery
from django_pgqueue.engine.settle import outcomes, settling
from django_pgqueue.engine.times import moment
from django_pgqueue.errors import ImmutableMessage, LeaseLost, NeverRead
from django_pgqueue.flows.durable import Durable
from django_pgqueue.queues.announcing import announce_ended
from django_pgqueue.queues.manager import MessageManager, MessageQuerySet
from django_pgqueue.tables import columns
from django_pgqueue.tables.loading import OncePerQueue
from django_pgqueue.tables.queue import Queue
from django_pgqueue.types import Batch, Receipt, Wait, receipt_of


class Message(Durable, OncePerQueue, models.Model):
    """One message, queued or archived.

    Inserting a row sends the message, whether by ``Message.objects.send``, ``bulk_create``, plain
    SQL or COPY.
    ``id`` comes from one sequence for all queues: it is unique, and never changes.

    A message that was read also has ``read_ct`` (deliveries so far), ``attempts`` (earlier runs of
    a handler), ``vt`` (the end of the lease) and ``receipt``.
    """

    # The database's key is (id, queue_id, enqueued_at), as partitions require. The admin and
    # foreign keys need a single column; id alone is unique.
    id: columns.BigAutoKey = models.BigAutoField(primary_key=True)
    enqueued_at: columns.Time = models.DateTimeField(db_default=columns.NOW, editable=False)
    scheduled_at: columns.TimeOrNull = models.DateTimeField(null=True, blank=True)
    expires_at: columns.TimeOrNull = models.DateTimeField(null=True, blank=True)
    # The id of the sending transaction. With it a reader can follow the table as a gapless log.
    enqueued_xid: columns.BigInteger = models.BigIntegerField(
        db_default=columns.XID, editable=False
    )
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.DO_NOTHING, db_constraint=False, db_index=False, related_name="messages"
    )
    priority: columns.SmallInteger = models.SmallIntegerField(default=0)
    group_key: columns.TextOrNull = models.TextField(null=True, blank=True)  # noqa: DJ001
    unique_key: columns.TextOrNull = models.TextField(null=True, blank=True)  # noqa: DJ001
    headers: columns.JSON = models.JSONField(null=True, blank=True, encoder=DjangoJSONEncoder)
    body: columns.JSON = models.JSONField(null=True, blank=True, encoder=DjangoJSONEncoder)

    objects: ClassVar[MessageManager[Message]] = MessageManager()  # type: ignore[assignment]

    # Set by a read. Times are in microseconds since 1970.
    read_ct: int
    attempts: int
    read_at: int
    _vt: int
    _first_read_at: int | None
    lease_until: float
    #: Seconds from the end of the lease to the message's expiry; may be negative. None: it never
    #: expires.
    expires_after_lease: float | None = None
    #: The time.monotonic() from which on no handler may start on the message. Set by the consumer.
    start_until: float = float("inf")
    _read_from: OpenQueue
    #: The batch that the message was leased in, stored as one row; None: leased alone.
    batch: Batch | None = None

    #: Why the message is not delivered now, and until when. Set by ``peek(blocked=True)``.
    wait: Wait | None = None

    #: The module path of the task that the message runs. Set before the run.
    task: str | None = None

    #: True if the message was cancelled during the run. Set by the consumer.
    cancelled = False
    #: True once the consumer has sent ``messages_cancelled`` or ``leases_lost`` for the message.
    lease_gone = False

    #: Called with the outcome that the handler sets, such as by :meth:`ack`. Set by the consumer.
    on_outcome: Callable[[Message, Outcome], None] | None = None
    #: Extends the lease, for :meth:`extend`. Returns False if the lease was lost. Set by the
    #: consumer.
    on_extend: Callable[[Message, float], bool] | None = None

    class Meta(columns.Meta):
        verbose_name: ClassVar[Any] = gettext_lazy("message")
        verbose_name_plural: ClassVar[Any] = gettext_lazy("messages")
        default_permissions: ClassVar[tuple[str, ...]] = ("view", "delete")
        permissions: ClassVar[tuple[tuple[str, str], ...]] = (
            ("send_message", "Can send messages"),
            ("settle_message", "Can make messages readable and archive them"),
            ("redrive_message", "Can redrive dead letters"),
        )
        db_table = "pgqueue_message"

    def __str__(self) -> str:
        return gettext("message %s") % self.pk

    @cached_property
    def _state(self) -> ModelState:  # type: ignore[override]
        """Django's model state, created on first use: most read messages never need it."""
        state = ModelState()
        state.adding, state.db = False, self._read_from.alias
        state.fields_cache = {"queue": self._read_from.source}
        return state

    def __getstate__(self) -> dict[str, Any]:
        self.__dict__["_state"] = self._state  # for Django's __getstate__
        return super().__getstate__()

    @property
    def queue_name(self) -> str:
        """The name of the queue from which the message was read."""
        return self._read_from.name

    @property
    def vt(self) -> dt.datetime:
        """The time at which this delivery's lease ends."""
        return _moment(self._vt, self._read_from.alias)

    @property
    def first_read_at(self) -> dt.datetime | None:
        """The time of the first delivery; None before it."""
        first = self._first_read_at
        return None if first is None else _moment(first, self._read_from.alias)

    @property
    def waited(self) -> float | None:
        """Seconds from becoming readable to the first delivery; None at later deliveries."""
        if self.read_ct != 1 or self._first_read_at is None:
            return None
        since = self.enqueued_at
        if (scheduled := self.__dict__.get("scheduled_at")) is not None:
            since = max(since, scheduled)
        return self._first_read_at / 1_000_000 - since.timestamp()

    @property
    def leased_for(self) -> float:
        """Seconds from the first delivery to the end of the current lease."""
        first = self._first_read_at
        return 0.0 if first is None else (self._vt - first) / 1_000_000

    @property
    def receipt(self) -> Receipt:
        """The receipt of this delivery. Operations take it to settle the message."""
        return receipt_of(self.id, self.read_ct, self.read_at, self.batch)

    @property
    def group(self) -> str | None:
        """The FIFO group, or None."""
        return self.group_key

    def ack(self) -> None:
        """Complete the message: move it to the archive as COMPLETED.

        Raises LeaseLost if the message was read again since, and NeverRead if it was only peeked
        at.
        """
        self._settle(Ack())

    def nack(self, delay: float | None = None, reason: str = "") -> None:
        """Retry the message after ``delay`` seconds, and store ``reason`` as its error.

        Without a delay the message is readable at once; in a consumer's handler, the retry strategy
        sets the delay. Raises LeaseLost, NeverRead.
        """
        self._settle(Nack(delay, reason))

    def reject(self, reason: str = "rejected") -> None:
        """Fail the message: move it to the dead-letter queue, or archive it if there is none.

        Its state in the archive is FAILED. Raises LeaseLost, NeverRead.
        """
        self._settle(Reject(reason))

    def extend(self, seconds: float | None = None) -> None:
        """Extend the lease to ``seconds`` from now, by default the queue's visibility timeout.

        Raises NeverRead, and LeaseLost if the message was read again: the caller should stop then,
        because the new reader does the same work.
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

    async def aack(self) -> None:
        """The async twin of :meth:`ack`."""
        await self._asettle(Ack())

    async def anack(self, delay: float | None = None, reason: str = "") -> None:
        """The async twin of :meth:`nack`."""
        await self._asettle(Nack(delay, reason))

    async def areject(self, reason: str = "rejected") -> None:
        """The async twin of :meth:`reject`."""
        await self._asettle(Reject(reason))

    def _settle(self, outcome: Outcome) -> None:
        if self.on_outcome is not None:
            self.on_outcome(self, outcome)
            return
        try:
            settled = outcomes.settle(self._leased_from, {self.receipt: outcome})
        except SynchronousOnlyOperation as error:
            name = type(outcome).__name__.lower()
            raise SynchronousOnlyOperation(
                f"message.{name}() runs a query, which Django refuses in async code: await "
                f"message.a{name}(...)"
            ) from error
        if settled.lost:
            raise LeaseLost(self.receipt)

    async def _asettle(self, outcome: Outcome) -> None:
        if self.on_outcome is not None:
            self.on_outcome(self, outcome)  # does not wait
        else:
            await sync_to_async(self._settle)(outcome)

    @property
    def _leased_from(self) -> OpenQueue:
        """The queue from which the message was leased. Raises NeverRead."""
        if not self.__dict__.get("read_at"):
            raise NeverRead(self.pk)
        return self._read_from

    def refresh_from_db(
        self,
        using: str | None = None,
        fields: Iterable[str] | None = None,
        from_queryset: models.QuerySet[Message] | None = None,
    ) -> None:
        """Reload the message, as Django does.

        Searches its own queue first; then its other queues, without the copies of subscriptions;
        then all queues.
        """
        queue_id = self.__dict__.get("queue_id")
        fields = None if fields is None else list(fields)
        if from_queryset is None and queue_id is not None:
            manager = type(self)._base_manager.db_manager(using, hints={"instance": self})
            for rows in (manager.filter(queue_id=queue_id), manager.filter(queue__source=None)):
                try:
                    return super().refresh_from_db(using, fields, rows)
                except type(self).DoesNotExist:
                    pass  # it is its source's, has moved to another queue, or is gone
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
    def from_deliveries(cls, queue: OpenQueue, found: Sequence[Delivery]) -> list[Message]:
        """Build messages from the rows of a read, without the cost of ``__init__`` and its signals.

        Rarely used columns are left out; Django fetches them on access. Also sends the signals for
        messages that the read found exhausted or expired.
        """
        announce_ended(queue, found)
        queue_id = queue.id
        messages = []
        for (
            _note,
            pk,
            read_ct,
            read_at,
            enqueued_at,
            priority,
            group_key,
            attempts,
            vt,
            first_read_at,
            body,
            headers,
            scheduled_at,
            expires_at,
            _turn,
            batch,
            wait,
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
                "expires_at": None,
                "batch": batch,
                "queue_id": queue_id,
                "_read_from": queue,
            }
            if scheduled_at is not None:
                message.__dict__["scheduled_at"] = scheduled_at
            if expires_at is not None:
                message.__dict__["expires_at"] = _moment(expires_at, queue.alias)
                message.expires_after_lease = (expires_at - vt) / 1_000_000
            if wait is not None:
                message.wait = wait
            messages.append(message)
        return messages


def _moment(microseconds: int, alias: str) -> dt.datetime:
    """Convert a time to the datetime that Django would read: aware, or naive without USE_TZ."""
    connection, found = connections[alias], moment(microseconds)
    if connection.timezone is None:
        return found.astimezone(zoneinfo.ZoneInfo(connection.timezone_name)).replace(tzinfo=None)
    return found.astimezone(connection.timezone)
