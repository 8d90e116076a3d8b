"""Signal receivers that make ``loaddata`` work for queues, messages and the archive.

``loaddata`` does not call ``save()``, so a receiver makes the tables of a loaded queue. Inserting a
message also inserts a live row; another receiver deletes that row if the message is archived.
"""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.models.signals import post_save, pre_save

from django_pgqueue.engine.names import ARCHIVE, own_table
from django_pgqueue.queues.archive import ArchivedMessage
from django_pgqueue.queues.message import Message
from django_pgqueue.tables.queue import Queue


def connect() -> None:
    post_save.connect(_make_tables, Queue, dispatch_uid="pgqueue-load-queue")
    for model in (Message, ArchivedMessage):
        pre_save.connect(_keep_time, model, dispatch_uid=f"pgqueue-time-{model.__name__}")
        post_save.connect(_leave_archived, model, dispatch_uid=f"pgqueue-load-{model.__name__}")


def _make_tables(instance: Queue, created: bool, raw: bool, using: str, **kwargs: Any) -> None:
    if raw and created:
        instance.make_tables(using)
        Queue.objects.forget(instance.name, using)


def _keep_time(instance: Message | ArchivedMessage, raw: bool, using: str, **kwargs: Any) -> None:
    """Copy ``enqueued_at``, a key column, from the stored row: fixtures cut off microseconds."""
    if not raw:
        return
    for model in (Message, ArchivedMessage):
        found = model._base_manager.using(using).filter(pk=instance.pk, queue=instance.queue_id)
        for time in found.values_list("enqueued_at", flat=True):
            instance.enqueued_at = time
            return


def _leave_archived(
    instance: Message | ArchivedMessage, raw: bool, using: str, **kwargs: Any
) -> None:
    """Delete the live row of a loaded message, if its archive row is loaded too."""
    if not raw:
        return
    archive = own_table(ARCHIVE, instance.queue_id)
    params = {"id": instance.pk, "queue_id": instance.queue_id}
    with connections[using].cursor() as cursor:
        for table in ("ready", "deferred", "waiting"):
            cursor.execute(
                f"DELETE FROM pgqueue_{table} WHERE id = %(id)s AND queue_id = %(queue_id)s "
                f"AND EXISTS (SELECT FROM {archive} WHERE id = %(id)s)",
                params,
            )
