"""A queue by name, for daily use: ``queue("orders").send(…)``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

from django_pgqueue import arguments
from django_pgqueue.models import results
from django_pgqueue.models.attempt import Attempt
from django_pgqueue.models.message import Message
from django_pgqueue.models.operations import MessageManager
from django_pgqueue.models.operations.base import twin

__all__ = ["BoundQueue", "queue"]

P = ParamSpec("P")
R = TypeVar("R")


def _bound(
    method: Callable[Concatenate[MessageManager, str, P], R],
) -> Callable[Concatenate[BoundQueue, P], R]:
    @wraps(method)
    def run(self: BoundQueue, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.using is not None:
            kwargs.setdefault("using", self.using)
        return method(Message.objects, self.name, *args, **kwargs)

    return run


class BoundQueue:
    """The operations of ``Message.objects`` with the name filled in.

    >>> orders = queue("orders")
    >>> orders.send({"order": 7})
    1
    >>> [message] = orders.read()
    >>> orders.archive(message)
    [1]
    """

    def __init__(self, name: str, *, using: str | None = None) -> None:
        self.name = arguments.queue_name(name)
        self.using = using

    def __repr__(self) -> str:
        using = f", using={self.using!r}" if self.using else ""
        return f"queue({self.name!r}{using})"

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, BoundQueue) and (self.name.lower(), self.using) == (
            other.name.lower(),
            other.using,
        )

    def __hash__(self) -> int:
        return hash((self.name.lower(), self.using))

    def result(self, message_id: int, *, timeout: float | None = 0) -> Any:
        """The value that a message's handler returned, where its consumer has ``keep_result``.

        Waits up to ``timeout`` seconds for the message to be done; None waits for ever.

        >>> orders.result(7, timeout=5)
        {'charged': True}

        Raises ResultNotReady (a TimeoutError), MessageFailed and MessageNotFound.
        """
        return results.result(Message.objects.resolve(self.name, self.using), message_id, timeout)

    async def aresult(self, message_id: int, *, timeout: float | None = 0) -> Any:
        """The async twin of :meth:`result`."""
        found = await sync_to_async(Message.objects.resolve)(self.name, self.using)
        return await results.aresult(found, message_id, timeout)

    def wait(self, message_id: int, timeout: float | None = None) -> Any:
        """Wait for a message to be done: :meth:`result` with a ``timeout``, by default endless.

        >>> orders.wait(orders.send({"order": 7}), timeout=5)
        {'charged': True}
        """
        return self.result(message_id, timeout=timeout)

    def attempts(self, message_id: int) -> list[Attempt]:
        """The failed attempts of a message, oldest first: when, where and why.

        >>> [attempt.error_class for attempt in orders.attempts(7)]
        ['builtins.ConnectionError']
        """
        found = Message.objects.resolve(self.name, self.using)
        return Attempt.objects.of(message_id, using=found.alias)

    aattempts = twin(attempts)

    create = _bound(MessageManager.create_queue)
    drop = _bound(MessageManager.drop_queue)
    purge = _bound(MessageManager.purge)
    send = _bound(MessageManager.send)
    send_batch = _bound(MessageManager.send_batch)
    read = _bound(MessageManager.read)
    read_with_poll = _bound(MessageManager.read_with_poll)
    read_grouped = _bound(MessageManager.read_grouped)
    read_grouped_with_poll = _bound(MessageManager.read_grouped_with_poll)
    read_grouped_rr = _bound(MessageManager.read_grouped_rr)
    read_grouped_rr_with_poll = _bound(MessageManager.read_grouped_rr_with_poll)
    read_grouped_head = _bound(MessageManager.read_grouped_head)
    read_grouped_head_with_poll = _bound(MessageManager.read_grouped_head_with_poll)
    peek = _bound(MessageManager.peek)
    pop = _bound(MessageManager.pop)
    archive = _bound(MessageManager.archive)
    archive_and_read = _bound(MessageManager.archive_and_read)
    cancel = _bound(MessageManager.cancel)
    delete = _bound(MessageManager.delete)
    set_vt = _bound(MessageManager.set_vt)
    redrive = _bound(MessageManager.redrive)
    replay = _bound(MessageManager.replay)
    metrics = _bound(MessageManager.metrics)
    maintain = _bound(MessageManager.maintain)
    repartition = _bound(MessageManager.repartition)

    acreate = twin(create)
    adrop = twin(drop)
    apurge = twin(purge)
    asend = twin(send)
    asend_batch = twin(send_batch)
    aread = twin(read)
    aread_with_poll = twin(read_with_poll)
    aread_grouped = twin(read_grouped)
    aread_grouped_with_poll = twin(read_grouped_with_poll)
    aread_grouped_rr = twin(read_grouped_rr)
    aread_grouped_rr_with_poll = twin(read_grouped_rr_with_poll)
    aread_grouped_head = twin(read_grouped_head)
    aread_grouped_head_with_poll = twin(read_grouped_head_with_poll)
    apeek = twin(peek)
    apop = twin(pop)
    aarchive = twin(archive)
    aarchive_and_read = twin(archive_and_read)
    acancel = twin(cancel)
    adelete = twin(delete)
    aset_vt = twin(set_vt)
    aredrive = twin(redrive)
    areplay = twin(replay)
    ametrics = twin(metrics)
    amaintain = twin(maintain)
    arepartition = twin(repartition)


def queue(name: str, *, using: str | None = None) -> BoundQueue:
    """The queue of that name, in the database ``using`` or the one the routers choose.

    Makes no query: whether the queue exists shows at the first operation.

    >>> queue("orders").send({"order": 7}, delay=60)
    1

    Raises InvalidQueueName.
    """
    return BoundQueue(name, using=using)
