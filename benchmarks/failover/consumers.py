"""Handlers with effects inside and outside of the database."""

from __future__ import annotations

from typing import Any

from django.db import connection

from benchmarks.failover.notes import note
from django_pgqueue import consumer

EFFECTS = "CREATE TABLE failover_effect (queue text NOT NULL, op text NOT NULL)"


def effect(message: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO failover_effect VALUES (%s, %s)", [message.queue_name, message.body["op"]]
        )
    note("handled", message.body["op"])


@consumer("transactional", ack_policy="TRANSACTIONAL")
def in_one_transaction(message: Any) -> None:
    effect(message)


@consumer("plain")
def at_least_once(message: Any) -> None:
    effect(message)
