"""The operation that returns a message's result, and its async twin."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from math import inf
from typing import Any

from django.db import connections

from django_pgqueue.engine import arguments
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.errors import (
    InvalidArgument,
    MessageCancelled,
    MessageExpired,
    MessageFailed,
    MessageNotFound,
    ResultNotReady,
)
from django_pgqueue.tables.live import LiveMessage
from django_pgqueue.types import State

# Seconds between two polls: the first pause, and the longest to which it grows.
_FIRST, _LONGEST = 0.01, 0.5

_DEAD_LETTER = """
SELECT coalesce(headers #>> '{x-dead-letter,error}', headers #>> '{x-dead-letter,reason}', '')
FROM pgqueue_message WHERE queue_id = %s AND id = %s
"""

# A dead letter of a subscription has another id than the message.
_DEAD_LETTER_OF = """
SELECT coalesce(headers #>> '{x-dead-letter,error}', headers #>> '{x-dead-letter,reason}', '')
FROM pgqueue_message
WHERE queue_id = %s AND headers ? 'x-dead-letter'
  AND headers #> '{x-dead-letter,id}' = to_jsonb(%s::bigint) AND source_id = %s
"""


def result(queue: OpenQueue, message_id: int, *, timeout: float | None = 0) -> Any:
    """The return value of a message's handler, if its consumer has ``keep_result``.

    Waits up to ``timeout`` seconds until the message is done; with None it waits for ever.

    >>> queue("orders").result(7, timeout=5)
    {'charged': True}

    Raises ResultNotReady (a TimeoutError), MessageFailed and MessageNotFound.
    """
    for pause in _pauses(timeout):
        try:
            return look(queue, message_id)
        except ResultNotReady:
            if not pause:
                raise
        time.sleep(pause)


async def aresult(look: Callable[[], Awaitable[Any]], *, timeout: float | None = 0) -> Any:
    """The async twin of :func:`result`; other tasks of the loop run while it waits."""
    for pause in _pauses(timeout):
        try:
            return await look()
        except ResultNotReady:
            if not pause:
                raise
        await asyncio.sleep(pause)


def _pauses(timeout: float | None) -> Iterator[float]:
    """Yield the seconds to wait before the next poll. They grow, and are 0 after the timeout."""
    left = inf if timeout is None else arguments.duration(timeout, "timeout").total_seconds()
    if left < 0:
        raise InvalidArgument(f"timeout must be zero seconds or more, or None, not {timeout!r}")
    deadline, pause = time.monotonic() + left, _FIRST
    while True:
        yield max(0.0, min(pause, deadline - time.monotonic()))
        pause = min(pause * 1.5, _LONGEST)


def look(queue: OpenQueue, message_id: int) -> Any:
    """Return the message's result, or raise what :func:`result` raises."""
    [message_id] = arguments.ids([message_id])
    is_copy = queue.source_id is not None
    live = LiveMessage.objects.one(queue.id, message_id, using=queue.alias)
    # Look twice: the message may be archived after the look in the archive, before the one in the
    # queue.
    for _look_again in range(2):
        for state, error, kept in queue.run("settle/result", {"id": message_id}):
            end = State(state)
            if end.is_success:
                return None if kept is None else json.loads(kept)
            if end.is_failure:
                raise MessageFailed(queue.name, message_id, error or "")
            if end is State.EXPIRED:
                raise MessageExpired(queue.name, message_id)
            raise MessageCancelled(queue.name, message_id, error)
        state = live.values_list("state", flat=True).first()
        if state is None and is_copy:
            # It may be unread, or in a batch lease: then the source has it.
            for reason, _until, in_flight in queue.run("read/why_reader", {"id": message_id}):
                is_later = State.SCHEDULED if reason == "scheduled" else State.PENDING
                state = State.PROCESSING if in_flight else is_later
        if state is not None:
            raise ResultNotReady(queue.name, message_id, state)
    if queue.dead_letter_queue_id is not None:
        given = [queue.dead_letter_queue_id, message_id]
        with connections[queue.alias].cursor() as cursor:
            if is_copy:
                cursor.execute(_DEAD_LETTER_OF, [*given, queue.id])
            else:
                cursor.execute(_DEAD_LETTER, given)
            dead = cursor.fetchone()
        if dead is not None:
            (reason,) = dead
            raise MessageFailed(queue.name, message_id, reason)
    raise MessageNotFound(queue.name, message_id, archives=queue.archive_completed or not is_copy)
