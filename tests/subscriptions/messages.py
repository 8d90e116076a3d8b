"""Messages of the tests of subscriptions: to send them, and to compare what was read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django_pgqueue.models import BoundQueue, Message

__all__ = ["bodies", "numbers", "send"]


def send(source: BoundQueue, *sent: int, **settings: Any) -> list[int]:
    """Send a message ``{"n": number}`` for each number; returns the ids."""
    return source.send_batch([{"n": n} for n in sent], **settings)


def numbers(messages: Iterable[Message]) -> list[int]:
    """The numbers of messages from :func:`send`."""
    return [message.body["n"] for message in messages]


def bodies(messages: Iterable[Message]) -> list[Any]:
    return [message.body for message in messages]
