"""Chooses the part of a batch to serve when Spark repeats the batch.

Spark repeats a batch that it has not committed. The first repetition has the whole batch, since the
driver may have died after the sink stored it. Later ones have a part, smaller each time, until one
message is alone. If that message has no deliveries left, it is dead-lettered. When the batch is
committed, messages that were not served return to the queue, and their deliveries are not counted.

A sink may have stored the part that the last tasks read. Then it recognises the batch's number, and
reads nothing. So a task that reads a smaller part records the part's size, and only the recorded
part is acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from pyspark import TaskContext

from pyspark_pgqueue.source import database
from pyspark_pgqueue.source.columns import literal

#: How often a batch is served whole.
WHOLE = 2


@dataclass(frozen=True)
class Serving:
    """How often a batch was served, and which part of it."""

    tries: int = 1
    #: The number of messages that the last tasks read. The sink may have stored them. None: all.
    served: int | None = None
    #: Whether the messages' outcomes are written.
    acknowledged: bool = False
    #: The number of messages that the next tasks read. None: all.
    planned: int | None = None


def part(total: int, tries: int, deliveries: int, most: int) -> int:
    """The number of a batch's messages to serve in this try.

    Arguments:
        deliveries: the deliveries of the batch's first message, including this one.
        most: the queue's ``max_deliveries``.

    >>> [part(1000, tries, tries, 20) for tries in (1, 2, 3, 4, 11, 12)]
    [1000, 1000, 500, 250, 1, 1]
    >>> [part(8, tries, tries, 3) for tries in (1, 2, 3)]
    [8, 8, 1]
    """
    if tries <= WHOLE:
        return total
    return 1 if deliveries >= most else max(total >> (tries - WHOLE), 1)


def load(connection: psycopg.Connection[Any], stream: str, number: int) -> Serving:
    """Load a batch's Serving, and lock its row."""
    row = connection.execute(database.sql("consume/serving/load"), [stream, number]).fetchone()
    return Serving() if row is None else Serving(*row)


def store(connection: psycopg.Connection[Any], stream: str, number: int, serving: Serving) -> None:
    """Store a batch's Serving. Deletes the rows of streams that ended long ago."""
    given = [stream, number, serving.tries, serving.served, serving.acknowledged]
    connection.execute(database.sql("consume/serving/store"), given)
    connection.execute(database.sql("consume/serving/forget"))


def reading(stream: str, number: int, serving: Serving) -> str:
    """SQL by which a task records that it reads the planned part.

    Empty if the whole batch is planned, or if the part is already recorded.

    ``{written}`` stands for :func:`written`.
    """
    if serving.planned is None or serving.planned == serving.served:
        return ""
    return (
        f"UPDATE pgqueue_stream SET served = {serving.planned} WHERE id = {literal(stream)} "
        f"AND number = {number} AND tries = {serving.tries} "
        f"AND served IS DISTINCT FROM {serving.planned} AND NOT ({{written}})"
    )


def written() -> str:
    """SQL for a task: whether the sink ``pgqueue`` has already written this batch.

    Other sinks do not read a batch that they have written. This sink reads it, and then discards
    the rows.
    """
    context = TaskContext.get()
    query = context and context.getLocalProperty("sql.streaming.queryId")
    batch = context and context.getLocalProperty("streaming.sql.batchId")
    if not (query and batch):
        return "false"
    return (
        f"EXISTS (SELECT FROM pgqueue_spark_txn WHERE app_id = {literal(f'stream:{query}')} "
        f"AND version >= {int(batch)})"
    )
