"""A consumer process writes what it did in the present minute."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable
from typing import Any

from django.db import connections, transaction

from django_pgqueue.ddl.locks import milliseconds
from django_pgqueue.engine.statements import load

__all__ = ["record"]

#: Seconds that the write may wait for a lock, and take in all.
LOCK, LONGEST = 0.2, 1.0


def record(
    alias: str, process_id: int, rows: Callable[[dt.datetime], Iterable[dict[str, Any]]]
) -> None:
    """Write the rows of a process for the minute that the server's clock shows.

    Arguments:
        rows: takes that minute; returns for each queue what was counted in it so far, by column.

    Raises DatabaseError: after a second at the latest, since heartbeats wait for it.
    """
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT date_trunc('minute', statement_timestamp(), 'UTC'), "
            "set_config('lock_timeout', %s, true), set_config('statement_timeout', %s, true)",
            [milliseconds(LOCK), milliseconds(LONGEST)],
        )
        minute = cursor.fetchone()[0]
        if told := list(rows(minute)):
            params = {"minute": minute, "process_id": process_id, "rows": json.dumps(told)}
            cursor.execute(load("history/record"), params)
