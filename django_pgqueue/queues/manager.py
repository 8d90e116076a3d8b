"""The manager of messages, ``Message.objects.send("orders", …)``, and their queryset."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from django.db import models, transaction

from django_pgqueue.engine.audit.entry import record_settled
from django_pgqueue.engine.settle import settling
from django_pgqueue.engine.settle.settling import Target
from django_pgqueue.errors import ImmutableMessage, InvalidArgument
from django_pgqueue.queues.all_queues import QueuesManager
from django_pgqueue.queues.decorators import documented
from django_pgqueue.queues.operations import M, Operations
from django_pgqueue.tables.queue import Queue
from django_pgqueue.types import Delay, Metrics, OnConflict, Sent, Settled, Until


class MessageQuerySet(models.QuerySet[Any]):
    """Queries messages, sends them with create or bulk_create, and deletes them."""

    def create(self, *args: Any, **columns: Any) -> Any:
        """Send a message with one INSERT. Raises InvalidArgument without a Queue."""
        if args or not (isinstance(columns.get("queue"), Queue) or columns.get("queue_id")):
            raise InvalidArgument(
                "Message.objects.create() takes a message's columns as keyword arguments, with a "
                'Queue object as queue. To send by queue name: queue("orders").send(body). To '
                'make a queue: Message.objects.create_queue("orders")'
            )
        return super().create(**columns)

    def update(self, **kwargs: Any) -> int:
        raise ImmutableMessage

    def bulk_update(self, *args: Any, **kwargs: Any) -> int:
        raise ImmutableMessage

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete messages, queued or archived, with their archive rows."""
        deleted = 0
        self._for_write = True
        with transaction.atomic(using=self.db):
            rows = self.order_by("queue_id").values_list("queue_id", "pk")
            by_queue: dict[int, list[int]] = {}
            for queue_id, pk in rows:
                by_queue.setdefault(queue_id, []).append(pk)
            for queue in Queue.objects.using(self.db).filter(pk__in=by_queue):
                erased = settling.erase(queue.opened, by_queue[queue.pk])
                record_settled(queue.opened, "discard", erased)
                deleted += len(erased)
        return deleted, {self.model._meta.label: deleted}

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]


class MessageManager(QueuesManager[M]):
    """The operations on all queues, and the most used ones on one queue.

    ``queue("orders")`` has all operations on one queue, and their async twins.

    ``using("replica")`` gives the same manager for another database.

    Example::

        Message.objects.create_queue("orders")
        Message.objects.send("orders", {"order": 7}, delay=60)
        for message in Message.objects.read("orders", qty=10):
            ...
    """

    @documented(Operations.send)
    def send(
        self,
        /,
        queue: str | Queue,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        delay: Delay | None = 0,
        expires: Delay | None = None,
        priority: int = 0,
        group: str | None = None,
        unique: str | None = None,
        until: Until | None = None,
        on_conflict: OnConflict = "skip",
        max_wait: float | dt.timedelta | None = None,
        **unknown: NoReturn,
    ) -> Sent:
        return self._bound(queue).send(
            body,
            headers=headers,
            delay=delay,
            expires=expires,
            priority=priority,
            group=group,
            unique=unique,
            until=until,
            on_conflict=on_conflict,
            max_wait=max_wait,
            **unknown,
        )

    @documented(Operations.send_batch)
    def send_batch(
        self,
        /,
        queue: str | Queue,
        bodies: Sequence[Any],
        *,
        headers: Sequence[dict[str, Any] | None] | dict[str, Any] | None = None,
        delay: Delay | None = 0,
        expires: Delay | None = None,
        priority: int = 0,
        group: Sequence[str | None] | str | None = None,
        unique: Sequence[str | None] | None = None,
        until: Until | None = None,
        on_conflict: OnConflict = "skip",
        max_wait: float | dt.timedelta | None = None,
        **unknown: NoReturn,
    ) -> list[Sent]:
        return self._bound(queue).send_batch(
            bodies,
            headers=headers,
            delay=delay,
            expires=expires,
            priority=priority,
            group=group,
            unique=unique,
            until=until,
            on_conflict=on_conflict,
            max_wait=max_wait,
            **unknown,
        )

    @documented(Operations.read)
    def read(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        conditional: dict[str, Any] | None = None,
        in_transaction: bool = False,
    ) -> list[M]:
        return self._bound(queue).read(
            vt=vt, qty=qty, conditional=conditional, in_transaction=in_transaction
        )

    @documented(Operations.read_with_poll)
    def read_with_poll(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
        conditional: dict[str, Any] | None = None,
    ) -> list[M]:
        return self._bound(queue).read_with_poll(
            vt=vt,
            qty=qty,
            max_poll_seconds=max_poll_seconds,
            poll_interval_ms=poll_interval_ms,
            conditional=conditional,
        )

    @documented(Operations.pop)
    def pop(self, queue: str | Queue, qty: int | None = 1) -> list[M]:
        return self._bound(queue).pop(qty)

    @documented(Operations.archive)
    def archive(
        self,
        queue: str | Queue,
        receipts_or_ids: Target | Iterable[Target],
        *,
        in_flight: bool = True,
    ) -> Settled:
        return self._bound(queue).archive(receipts_or_ids, in_flight=in_flight)

    @documented(Operations.delete)
    def delete(
        self,
        queue: str | Queue,
        receipts_or_ids: Target | Iterable[Target],
        *,
        in_flight: bool = True,
    ) -> Settled:
        return self._bound(queue).delete(receipts_or_ids, in_flight=in_flight)

    @documented(Operations.set_vt)
    def set_vt(
        self,
        queue: str | Queue,
        receipts_or_ids: Target | Iterable[Target],
        vt: float | dt.timedelta | dt.datetime,
        *,
        in_flight: bool = True,
    ) -> Settled:
        return self._bound(queue).set_vt(receipts_or_ids, vt, in_flight=in_flight)

    @documented(Operations.purge)
    def purge(self, queue: str | Queue, *, progress: Any = None) -> int:
        return self._bound(queue).purge(progress=progress)

    @documented(Operations.metrics)
    def metrics(self, queue: str | Queue) -> Metrics:
        return self._bound(queue).metrics()

    def get_queryset(self) -> MessageQuerySet:
        return MessageQuerySet(self.model, using=self._db, hints=self._hints)  # type: ignore[attr-defined]

    def using(self, alias: str | None) -> MessageManager[M]:  # type: ignore[override]
        """A manager with the same operations in another database."""
        return self.db_manager(alias)

    def resolve(self, queue: str | Queue, using: str | None = None) -> Queue:
        """The queue with this name. Raises QueueNotFound."""
        return Queue.objects.resolve(queue, using or self._db)

    def _bound(self, queue: str | Queue) -> Operations[M]:
        bound: Operations[M] = Operations._of(queue, self._db)
        bound._model = self.model
        return bound
