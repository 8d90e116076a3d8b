"""The one list of operations, as the methods of ``Message.objects`` and of ``queue("orders")``.

Type checkers and editors read ``methods.pyi`` in its place, which has the signatures written out;
``python -m tools.signatures`` writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.db import models

from django_pgqueue.engine.metrics import measuring
from django_pgqueue.engine.read import grouped, polling, reading
from django_pgqueue.engine.redrive import redriving
from django_pgqueue.engine.settle import outcomes, settling
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.models import announcing, attempt, maintaining, queues, results, topics
from django_pgqueue.models.operation import Method, on_database, operation
from django_pgqueue.models.queryset import MessageQuerySet
from django_pgqueue.models.queue import Queue

__all__ = ["MessageManager", "QueueOperations"]


def _messages(act: Callable[..., Any]) -> tuple[Method, Method]:
    """An operation that returns messages, built from deliveries."""
    return operation(
        act,
        lambda self, queue, found: self.model.from_deliveries(queue, found),
        returns="list[Message]",
    )


class Operations:
    """All operations on a queue, each with its async twin."""

    #: The class of messages.
    model: Any

    send, asend = operation(announcing.send)
    send_batch, asend_batch = operation(announcing.send_batch)

    read, aread = _messages(reading.read)
    read_with_poll, aread_with_poll = _messages(polling.read_with_poll)
    read_grouped, aread_grouped = _messages(grouped.read_grouped)
    read_grouped_with_poll, aread_grouped_with_poll = _messages(polling.read_grouped_with_poll)
    read_grouped_rr, aread_grouped_rr = _messages(grouped.read_grouped_rr)
    read_grouped_rr_with_poll, aread_grouped_rr_with_poll = _messages(
        polling.read_grouped_rr_with_poll
    )
    # PGMQ's names. They are plain reads, which take at most one message of each group.
    read_grouped_head, aread_grouped_head = _messages(reading.read)
    read_grouped_head_with_poll, aread_grouped_head_with_poll = _messages(polling.read_with_poll)
    peek, apeek = _messages(reading.peek)
    pop, apop = _messages(reading.pop)
    next_due, anext_due = operation(reading.next_due)
    drained, adrained = operation(reading.drained)

    archive, aarchive = operation(settling.archive)
    cancel, acancel = operation(settling.cancel)
    delete, adelete = operation(settling.delete)
    set_vt, aset_vt = operation(settling.set_vt)
    complete, acomplete = operation(outcomes.complete)
    retry, aretry = operation(outcomes.retry)
    release, arelease = operation(outcomes.release)
    fail, afail = operation(outcomes.fail)
    settle, asettle = operation(outcomes.settle)
    purge, apurge = operation(settling.purge)

    result, _ = operation(results.result)
    wait, _ = operation(results.wait)
    attempts, aattempts = operation(attempt.attempts)

    redrive, aredrive = operation(redriving.redrive)
    replay, areplay = operation(redriving.replay)

    metrics, ametrics = operation(measuring.metrics)

    maintain, amaintain = operation(maintaining.maintain)
    repartition, arepartition = operation(maintaining.repartition)

    async def aresult(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The async twin of :meth:`result`; other tasks of the loop run while it waits."""
        queue, args = self._queue(args, kwargs)
        found = await sync_to_async(Queue.objects.resolve)(queue, self._using)
        return await results.aresult(found.opened, *args, **kwargs)


class QueueOperations(Operations):
    """The operations of ``queue("orders")``."""

    create, acreate = on_database(queues.create_queue)
    drop, adrop = on_database(queues.drop_queue)


class MessageManager(Operations, models.Manager[Any]):
    """All operations on queues, with the queue as first argument, and operations on databases.

    ``using("replica")`` gives the same manager for another database.

    Example::

        Message.objects.create_queue("orders")
        Message.objects.send("orders", {"order": 7}, delay=60)
        for message in Message.objects.read("orders", qty=10):
            ...
        await Message.objects.asend("orders", {"order": 8})
    """

    use_in_migrations = False

    create_queue, acreate_queue = on_database(queues.create_queue)
    list_queues, alist_queues = on_database(queues.list_queues)
    drop_queue, adrop_queue = on_database(queues.drop_queue)
    metrics_all, ametrics_all = on_database(queues.metrics_all)
    maintain_all, amaintain_all = on_database(maintaining.maintain_all)

    bind, abind = on_database(topics.bind)
    unbind, aunbind = on_database(topics.unbind)
    list_bindings, alist_bindings = on_database(topics.list_bindings)
    test_routing, atest_routing = on_database(topics.test_routing)
    publish, apublish = on_database(topics.publish)
    publish_batch, apublish_batch = on_database(topics.publish_batch)

    def get_queryset(self) -> MessageQuerySet:
        """A queryset of messages."""
        return MessageQuerySet(self.model, using=self._db, hints=self._hints)  # type: ignore[attr-defined]

    def using(self, alias: str | None) -> MessageManager:  # type: ignore[override]
        """A manager with the same operations in another database."""
        return self.db_manager(alias)

    def resolve(self, queue: str | Queue, using: str | None = None) -> Queue:
        """The queue with this name. Raises QueueNotFound."""
        return Queue.objects.resolve(queue, using or self._db)

    @property
    def _using(self) -> str | None:
        return self._db

    def _queue(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
        if args:
            return args[0], args[1:]
        if "queue" not in kwargs:
            raise InvalidArgument('name the queue first: Message.objects.send("orders", body)')
        return kwargs.pop("queue"), args

    def _name_of_queue(self) -> tuple[str, ...]:
        return ()
