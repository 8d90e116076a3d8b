"""Signal receivers that make ``loaddata`` work for queues, messages and the archive.

``loaddata`` does not call ``save()``, so a receiver makes the tables of a loaded queue. Inserting a
message also inserts a live row; another receiver deletes that row if the message is archived.

``loaddata`` would overwrite rows of other queues and messages that have the fixture's keys by
chance. Receivers refuse these. Natural keys name a queue instead of giving its key.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db import connections
from django.db.models.signals import post_save, pre_save
from django.utils.timezone import is_aware

from django_pgqueue.engine.names import ARCHIVE, own_table
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.queues.archive import ArchivedMessage
from django_pgqueue.queues.message import Message
from django_pgqueue.tables import columns
from django_pgqueue.tables.loading import is_of_subscription
from django_pgqueue.tables.queue import Queue

#: Fixtures in JSON cut times to milliseconds.
_MILLISECOND = dt.timedelta(milliseconds=1)


def connect() -> None:
    pre_save.connect(_refuse_another_queue, Queue, dispatch_uid="pgqueue-check-queue")
    post_save.connect(_make_tables, Queue, dispatch_uid="pgqueue-load-queue")
    for model in (Message, ArchivedMessage):
        pre_save.connect(_keep_time, model, dispatch_uid=f"pgqueue-time-{model.__name__}")
        post_save.connect(_leave_archived, model, dispatch_uid=f"pgqueue-load-{model.__name__}")


def _refuse_another_queue(instance: Queue, raw: bool, using: str, **kwargs: Any) -> None:
    """Raise InvalidArgument if the queue's key or name is that of another queue."""
    if not raw:
        return
    queues = Queue.objects.using(using)
    known, same = queues.filter(pk=instance.pk).first(), queues.named(instance.name).first()
    if known is not None and known.name.lower() != instance.name.lower():
        found = f"the key {instance.pk} is that of queue {known.name!r}"
    elif same is not None and same.pk != instance.pk:
        found = f"queue {instance.name!r} has the key {same.pk}, not {instance.pk}"
    else:
        return
    raise InvalidArgument(
        f"In database {using!r} {found}: the fixture comes from another database. Make a fixture "
        f"that names the queues: dumpdata --natural-primary --natural-foreign. Or load this one "
        f"into a database without queues"
    )


def _make_tables(instance: Queue, created: bool, raw: bool, using: str, **kwargs: Any) -> None:
    if raw and created:
        instance.make_tables(using)
        Queue.objects.forget(instance.name, using)


def _keep_time(instance: Message | ArchivedMessage, raw: bool, using: str, **kwargs: Any) -> None:
    """Copy ``enqueued_at``, a key column, from the stored row: fixtures cut off microseconds.

    Raises InvalidArgument if the stored row is another message, with the same key by chance.
    """
    if not raw or is_of_subscription(instance, using):
        return
    for model in (Message, ArchivedMessage):
        # A subscription's copy has the same key, and is no other message.
        found = model._base_manager.using(using).filter(pk=instance.pk, queue__source=None)
        for queue, time in found.values_list("queue_id", "enqueued_at"):
            given: Any = instance.enqueued_at
            comparable = isinstance(given, dt.datetime) and is_aware(given) == is_aware(time)
            if queue != instance.queue_id or (comparable and abs(time - given) >= _MILLISECOND):
                raise InvalidArgument(
                    f"In database {using!r} message {instance.pk} is another one, sent to the "
                    f"queue with the key {queue} at {time.isoformat()}: load the fixture into a "
                    f"database without this message"
                )
            instance.enqueued_at = time
            return
    if isinstance(instance, Message) and instance.queue.subscriptions.exists():
        # The message is new here, so subscriptions read it by the transaction that loads it.
        instance.enqueued_xid = columns.XID  # type: ignore[assignment]


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
