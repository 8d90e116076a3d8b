"""The result of one message: asked for, or waited for."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from asgiref.sync import sync_to_async

from django_pgqueue import arguments
from django_pgqueue.errors import (
    InvalidArgument,
    MessageCancelled,
    MessageFailed,
    MessageNotFound,
    ResultNotReady,
)
from django_pgqueue.models.archive import ArchivedMessage
from django_pgqueue.models.live import LiveMessage
from django_pgqueue.models.message import Message
from django_pgqueue.models.queue import Queue
from django_pgqueue.types import State

__all__ = ["aresult", "result"]

# Seconds between two looks: soon after the send first, then ever more seldom.
_FIRST, _LONGEST = 0.01, 0.5


def result(queue: Queue, message_id: int, timeout: float | None = 0) -> Any:
    """The value that a message's handler returned, after a wait of up to ``timeout`` seconds.

    Raises MessageFailed, MessageNotFound and ResultNotReady.
    """
    deadline = _deadline(timeout)
    pause = _FIRST
    while True:
        try:
            return _look(queue, message_id)
        except ResultNotReady:
            pause = _next(pause, deadline)
            if pause <= 0:
                raise
        time.sleep(pause)


async def aresult(queue: Queue, message_id: int, timeout: float | None = 0) -> Any:
    """The async twin of :func:`result`; other tasks of the loop run while it waits."""
    deadline = _deadline(timeout)
    pause = _FIRST
    while True:
        try:
            return await sync_to_async(_look)(queue, message_id)
        except ResultNotReady:
            pause = _next(pause, deadline)
            if pause <= 0:
                raise
        await asyncio.sleep(pause)


def _deadline(timeout: float | None) -> float:
    if timeout is None:
        return float("inf")
    seconds = arguments.duration(timeout, "timeout").total_seconds()
    if seconds < 0:
        raise InvalidArgument(f"timeout must be zero seconds or more, or None, not {timeout!r}")
    return time.monotonic() + seconds


def _next(pause: float, deadline: float) -> float:
    return min(pause * 1.5, _LONGEST, deadline - time.monotonic())


def _look(queue: Queue, message_id: int) -> Any:
    if type(message_id) is not int:
        raise InvalidArgument(f"the id of a message is a whole number, not {message_id!r}")
    archive = ArchivedMessage.objects.using(queue.alias)
    live = LiveMessage.objects.using(queue.alias)
    # The archive twice: between two looks the message may have moved there.
    for _look_again in range(2):
        done = archive.filter(queue=queue, pk=message_id).only("state", "error", "result").first()
        if done is not None:
            if done.state == State.COMPLETED:
                return done.result
            if done.state == State.CANCELLED:
                raise MessageCancelled(queue.name, message_id)
            raise MessageFailed(queue.name, message_id, done.error or "")
        state = live.filter(queue=queue, pk=message_id).values_list("state", flat=True).first()
        if state is not None:
            raise ResultNotReady(queue.name, message_id, state)
    if queue.dead_letter_queue_id is not None:
        dead = (
            Message.objects.using(queue.alias)
            .filter(queue_id=queue.dead_letter_queue_id, pk=message_id)
            .values_list("headers", flat=True)
            .first()
        )
        if dead is not None:
            raise MessageFailed(queue.name, message_id, _reason(dead))
    raise MessageNotFound(queue.name, message_id)


def _reason(headers: Any) -> str:
    letter = headers.get("x-dead-letter") if isinstance(headers, dict) else None
    return str(letter.get("error") or letter.get("reason") or "") if letter else ""
