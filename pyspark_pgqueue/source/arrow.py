"""Rows from PostgreSQL as Arrow batches, in exactly the schema that Spark expects.

ADBC reads with a binary COPY and creates no Python object per row.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructType

from pyspark_pgqueue.errors import ReplicaLags, TableRewritten
from pyspark_pgqueue.source import bodies, purges
from pyspark_pgqueue.source.columns import CORRUPT, JSON, literal
from pyspark_pgqueue.source.options import Options
from pyspark_pgqueue.source.planning import Task

# Allow only nested loops: they look messages up by key. Other joins would read all messages in each
# task. Tasks that are cut by id allow merge joins again (planning.MERGING).
SETUP = (
    "SET enable_hashjoin = off",
    "SET enable_mergejoin = off",
    "SET jit = off",
    "SET max_parallel_workers_per_gather = 0",
    "SET application_name = 'pgqueue spark'",
)

# Bytes per batch. With ADBC's default of 16 MB, a worker takes several times as much memory.
BATCH = {"adbc.postgresql.batch_size_hint_bytes": str(2 * 1024 * 1024)}


def arrow_schema(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


def read(
    options: Options, schema: StructType, partition: InputPartition | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition's task in Spark's schema."""
    # For an empty list of partitions, Spark passes one partition without a value.
    if partition is not None and partition.value is not None:
        yield from fitted(batches(options.url, partition.value, options.replica_timeout), schema)


def fitted(rows: Iterable[pa.RecordBatch], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Convert rows to Spark's schema."""
    wanted = arrow_schema(schema)
    for batch in rows:
        yield _fit(batch, schema, wanted)


def batches(url: str, task: Task, replica_timeout: float = 60.0) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task in PostgreSQL's types."""
    with _connect(url) as connection, connection.cursor() as cursor:
        for statement in SETUP:
            cursor.execute(statement)
        _wait_for_replica(cursor, task.reach, replica_timeout)
        if task.first:
            cursor.execute(task.first)
        # Read rows and purge marks in one snapshot: if rows are missing, the marks show it.
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if task.guard is not None:
            cursor.execute(purges.purged(task.guard.queue_ids))
            task.guard.check(map(purges.Mark._make, cursor.fetchall()))
        cursor.adbc_statement.set_options(**BATCH)
        for statement in task.statements:
            _check_files(cursor, task)
            cursor.execute(statement)
            yield from cursor.fetch_record_batch()
        _check_files(cursor, task)
        cursor.execute("COMMIT")


class _Database:
    """ADBC's handle of a database, with the database's types.

    Opening a handle reads the whole catalog of types and columns, including those of each queue's
    tables. With one queue, this takes 60 ms in this process and 40 ms in the server. A worker
    process therefore opens a handle once, and keeps it open when a connection is closed.
    """

    def __init__(self, url: str) -> None:
        import adbc_driver_postgresql

        self.opened = adbc_driver_postgresql.connect(url)

    def close(self) -> None:
        """Do nothing: each connection calls this when it closes, and the database stays open."""


_database = lru_cache(maxsize=4)(_Database)


def _connect(url: str) -> Any:
    # Imported late: this import takes longer than all others, since it loads pandas and Polars if
    # they are installed. Spark's processes that plan a read never need it.
    from adbc_driver_manager import AdbcConnection, dbapi

    database: Any = _database(url)
    return dbapi.Connection(database, AdbcConnection(database.opened), autocommit=True)


def _check_files(cursor: Any, task: Task) -> None:
    for table, filenode in task.files:
        cursor.execute(f"SELECT pg_relation_filenode(to_regclass({literal(table)}))::bigint")
        if cursor.fetchone() != (filenode,):
            raise TableRewritten(table)


def _wait_for_replica(cursor: Any, reach: int, seconds: float) -> None:
    """Wait until the server shows everything that the planner saw. A primary always does."""
    until = time.monotonic() + seconds
    while True:
        cursor.execute(
            "SELECT NOT pg_is_in_recovery() "
            f"OR pg_snapshot_xmin(pg_current_snapshot())::text::bigint >= {reach}"
        )
        if cursor.fetchone() == (True,):
            return
        if time.monotonic() > until:
            raise ReplicaLags(seconds)
        time.sleep(0.1)


def _fit(batch: pa.RecordBatch, schema: StructType, wanted: pa.Schema) -> pa.RecordBatch:
    if batch.schema.equals(wanted):
        return batch
    found: dict[str, pa.Array] = {}
    for field, target in zip(schema.fields, wanted, strict=True):
        if field.name != CORRUPT:
            column = batch.column(field.name)
            if field.name in JSON and not isinstance(field.dataType, StringType):
                column, corrupt = bodies.parsed(column, field.dataType, target.type)
                if field.name == "body":
                    found[CORRUPT] = corrupt
            found[field.name] = column if column.type == target.type else column.cast(target.type)
    return pa.RecordBatch.from_arrays([found[name] for name in schema.names], schema=wanted)
