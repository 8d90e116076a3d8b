"""Our handlers: what ``manage.py runconsumer`` runs in the consumer scenarios."""

from __future__ import annotations

from typing import Any

from django.db import connection

from benchmarks.notes import note
from django_pgqueue import consumer

EFFECTS = "CREATE TABLE IF NOT EXISTS benchmark_effect (message_id bigint NOT NULL)"


@consumer("drain")
def nothing(message: Any) -> None:
    """A handler that does nothing."""


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
