"""A test helper that advances time for the queues."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from typing import Any

from django.db import connections, models, transaction

from django_pgqueue.engine import arguments
from django_pgqueue.errors import QueueNotFound
from django_pgqueue.handlers import autodiscover
from django_pgqueue.models import Batch, Queue, Schedule
from django_pgqueue.schedules import declared
from django_pgqueue.testing import rates

_MOMENTS = (
    ("message", "expires_at"),
    ("deferred", "vt"),
    ("lease", "vt"),
    ("waiting", "vt"),
    ("group", "free_at"),
    ("claim", "until"),
    ("claim", "first_at"),
    ("wait", "until"),
    ("signal", "keep_until"),
    ("batch", "open_until"),
    ("batch", "looked_at"),
)

# The delays of messages that subscriptions have not read.
_UNREAD = """
UPDATE pgqueue_message SET scheduled_at = scheduled_at - %s
WHERE scheduled_at IS NOT NULL
  AND queue_id IN (SELECT source_id FROM pgqueue_queue WHERE source_id IS NOT NULL)
"""


def travel(span: float | dt.timedelta, *, using: str | None = None) -> int:
    """Advance time for the queues by ``span``, seconds or a timedelta.

    Returns the number of messages that schedules sent.

    Delays, planned retries, leases, unique windows and the waits of a rate end earlier by the span,
    messages expire earlier, and schedules send the messages that are then due, those that the code
    declares with ``@schedule`` too. The clock itself does not change.

    >>> queue("orders").send({"order": 7}, delay=3600)
    1
    >>> travel(3600)
    0
    >>> [message.body for message in drain("orders", charge)]
    [{'order': 7}]

    Raises InvalidArgument for a negative span.
    """
    length = arguments.duration(span, "span", least=0)
    alias = Queue.objects.database(using)
    _declare(alias)
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        values: list[Any] = [length]
        for table, column in _MOMENTS:
            cursor.execute(
                f"UPDATE pgqueue_{table} SET {column} = {column} - %s WHERE {column} IS NOT NULL",
                values,
            )
        cursor.execute(_UNREAD, values)
        rates.travelled(length, alias)
        Schedule.objects.using(alias).update(next_run_at=models.F("next_run_at") - length)
    sent = 0
    while ticks := Schedule.objects.send_due(using=alias):
        sent += ticks
    Batch.objects.count_out(Batch.objects.due(using=alias), using=alias)
    return sent


def _declare(alias: str) -> None:
    """Save the declared schedules, as a consumer does when it starts."""
    autodiscover()
    for declaration in declared():
        with suppress(QueueNotFound):  # a test may lack the queues that it does not need
            declaration.save(alias)
