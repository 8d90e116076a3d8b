"""How a batch of a queue is served again that Spark has not committed.

The first time it is served whole: the driver may have died after the sink had it, and a sink knows
a batch by its number. From then on the batch is taken to fail, and a part of it is served, smaller
each time, until one message is alone. If that message has used up its deliveries, it is
dead-lettered. The messages that were not served go back to the queue when the batch is committed,
and their deliveries are not counted.

What a sink may have is what the tasks read last: a sink that finds a batch's number among its own
does not read. So a task records that it reads a smaller part, and only what was recorded is
acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from pyspark import TaskContext

__all__ = ["Serving", "load", "part", "reading", "store"]

#: How often a batch is served whole.
WHOLE = 2
#: Streams that ended are forgotten after this time.
FORGOTTEN_AFTER = "30 days"


@dataclass(frozen=True)
class Serving:
    """How often a batch was served, and how many of its messages are."""

    tries: int = 1
    #: Those that the sink may have: its tasks read them last. None: all.
    served: int | None = None
    #: Whether what became of them is written.
    acknowledged: bool = False
    #: Those that the next tasks read. None: all.
    planned: int | None = None


def part(total: int, tries: int, deliveries: int, most: int) -> int:
    """How many of a batch's messages to serve at this try.

    Arguments:
        deliveries: of the batch's first message, with this one.
        most: how often it may be delivered.

    >>> [part(1000, tries, tries, 20) for tries in (1, 2, 3, 4, 11, 12)]
    [1000, 1000, 500, 250, 1, 1]
    >>> [part(8, tries, tries, 3) for tries in (1, 2, 3)]
    [8, 8, 1]
    """
    if tries <= WHOLE:
        return total
    return 1 if deliveries >= most else max(total >> (tries - WHOLE), 1)


def load(connection: psycopg.Connection[Any], stream: str, number: int) -> Serving:
    """How a batch was served so far."""
    row = connection.execute(
        "SELECT tries, served, acknowledged FROM pgqueue_stream "
        "WHERE id = %s AND number = %s FOR UPDATE",
        [stream, number],
    ).fetchone()
    return Serving() if row is None else Serving(*row)


def store(connection: psycopg.Connection[Any], stream: str, number: int, serving: Serving) -> None:
    """Record how a batch is served."""
    connection.execute(
        "INSERT INTO pgqueue_stream (id, number, tries, served, acknowledged) "
        "VALUES (%s, %s, %s, %s, %s) "
        "ON CONFLICT (id) DO UPDATE SET number = excluded.number, tries = excluded.tries, "
        "served = excluded.served, acknowledged = excluded.acknowledged, tried_at = DEFAULT",
        [stream, number, serving.tries, serving.served, serving.acknowledged],
    )
    connection.execute(
        "DELETE FROM pgqueue_stream WHERE tried_at < statement_timestamp() - %s::interval",
        [FORGOTTEN_AFTER],
    )


def reading(stream: str, number: int, serving: Serving) -> str:
    """The statement by which a task records that it reads the planned part; empty if not needed.

    ``{written}`` stands for :func:`written`.
    """
    if serving.planned is None or serving.planned == serving.served:
        return ""
    return (
        f"UPDATE pgqueue_stream SET served = {serving.planned} WHERE id = '{stream}' "
        f"AND number = {number} AND tries = {serving.tries} "
        f"AND served IS DISTINCT FROM {serving.planned} AND NOT ({{written}})"
    )


def written() -> str:
    """SQL, for a task: whether the sink ``pgqueue`` has this batch. It looks after it has read."""
    context = TaskContext.get()
    query = context and context.getLocalProperty("sql.streaming.queryId")
    batch = context and context.getLocalProperty("streaming.sql.batchId")
    if not (query and batch):
        return "false"
    return (
        f"EXISTS (SELECT FROM pgqueue_spark_txn WHERE app_id = 'stream:{query}' "
        f"AND version >= {int(batch)})"
    )
