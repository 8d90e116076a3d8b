"""The queryset of messages."""

from __future__ import annotations

from typing import Any

from django.db import models, transaction

from django_pgqueue.engine.settle import settling
from django_pgqueue.errors import ImmutableMessage, InvalidArgument
from django_pgqueue.models.queue import Queue

__all__ = ["MessageQuerySet"]


class MessageQuerySet(models.QuerySet[Any]):
    """Queries messages, sends them with create or bulk_create, and deletes them."""

    def create(self, *args: Any, **columns: Any) -> Any:
        """Send a message with one INSERT. Raises InvalidArgument without a Queue."""
        if args or not (isinstance(columns.get("queue"), Queue) or columns.get("queue_id")):
            raise InvalidArgument(
                "Message.objects.create() takes the columns of a message by name, and queue as a "
                'Queue. To send by the name of a queue: queue("orders").send(body). To make a '
                'queue: Message.objects.create_queue("orders")'
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
                ids = by_queue[queue.pk]
                deleted += len(settling.erase(queue.opened, ids))
        return deleted, {self.model._meta.label: deleted}

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]
