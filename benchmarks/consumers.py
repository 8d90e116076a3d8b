"""Our handlers: what ``manage.py runconsumer`` runs in the consumer scenarios."""

from __future__ import annotations

import time
from typing import Any

from django.db import connection

from benchmarks.notes import note
from django_pgqueue import consumer

EFFECTS = "CREATE TABLE IF NOT EXISTS benchmark_effect (message_id bigint NOT NULL)"


@consumer("drain")
def nothing(message: Any) -> None:
    """A handler that does nothing."""


@consumer("drain-20ms")
def wait_20ms(message: Any) -> None:
    time.sleep(0.02)


@consumer("drain-50ms")
def wait_50ms(message: Any) -> None:
    time.sleep(0.05)


@consumer("ordered")
def nothing_in_order(message: Any) -> None:
    """A handler that does nothing, for the messages of FIFO groups."""


@consumer("batch", batch=True)
def nothing_at_once(messages: list[Any]) -> None:
    """The same for a list of messages."""


@consumer("latency")
def note_the_delay(message: Any) -> None:
    note(message.body["sent"])


@consumer("transactional", ack_policy="TRANSACTIONAL")
def write_a_row(message: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO benchmark_effect VALUES (%s)", [message.id])
