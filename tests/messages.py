"""What tests say of messages: their bodies and ids, each way to settle, all that is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django_pgqueue.models import ArchivedMessage, BoundQueue, LiveMessage, Message
from django_pgqueue.types import Settled

__all__ = ["SETTLE", "bodies", "everything", "ids"]

SETTLE: dict[str, Callable[[BoundQueue, Any], Settled]] = {
    "archive": lambda queue, these: queue.archive(these),
    "complete": lambda queue, these: queue.complete(these),
    "delete": lambda queue, these: queue.delete(these),
    "set_vt": lambda queue, these: queue.set_vt(these, 60),
    "retry": lambda queue, these: queue.retry(dict.fromkeys(these, 5.0)),
    "release": lambda queue, these: queue.release(these),
    "fail": lambda queue, these: queue.fail(dict.fromkeys(these, "no")),
}


def bodies(messages: Iterable[Message]) -> list[Any]:
    return [message.body for message in messages]


def ids(messages: Iterable[Message]) -> list[int]:
    return [message.id for message in messages]


def everything() -> tuple[Any, ...]:
    """All stored data about all messages."""
    return tuple(
        list(model.objects.order_by("pk").values_list())
        for model in (Message, LiveMessage, ArchivedMessage)
    )
