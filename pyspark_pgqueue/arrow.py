"""Rows from PostgreSQL as Arrow batches, in the very schema that Spark expects.

ADBC reads by COPY in binary and makes no Python object of any row.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructType, VariantType, VariantVal

from pyspark_pgqueue import planning
from pyspark_pgqueue.columns import JSON
from pyspark_pgqueue.errors import ReplicaLags, TableRewritten
from pyspark_pgqueue.planning import Task

__all__ = ["arrow_schema", "batches", "read"]

# A message is found by its key: every other join would read all messages for each task.
SETUP = (
    "SET enable_hashjoin = off",
    "SET enable_mergejoin = off",
    "SET jit = off",
    "SET max_parallel_workers_per_gather = 0",
    "SET application_name = 'pgqueue spark'",
)

# Bytes of a batch. The driver's own 16 MB are several times as many in a worker's memory.
BATCH = {"adbc.postgresql.batch_size_hint_bytes": str(2 * 1024 * 1024)}


def arrow_schema(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


def read(
    url: str, task: Task, schema: StructType, replica_timeout: float = 60.0
) -> Iterator[pa.RecordBatch]:
    """The rows of a task, for Spark."""
    wanted = arrow_schema(schema)
    for batch in batches(url, task, replica_timeout):
        yield _fit(batch, schema, wanted)


def batches(url: str, task: Task, replica_timeout: float = 60.0) -> Iterator[pa.RecordBatch]:
    """The rows of a task, as PostgreSQL gives them."""
    with adbc.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in SETUP:
            cursor.execute(statement)
        _wait_for_replica(cursor, task.reach, replica_timeout)
        # One snapshot: a removal is in all of the task, where the guard sees it, or in none of it.
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if task.guard is not None:
            cursor.execute(planning.purged(task.guard.queue_ids))
            task.guard.check(cursor.fetchall())
        cursor.adbc_statement.set_options(**BATCH)
        for statement in task.statements:
            _check_files(cursor, task)
            cursor.execute(statement)
            yield from cursor.fetch_record_batch()
        _check_files(cursor, task)
        cursor.execute("COMMIT")


def _check_files(cursor: Any, task: Task) -> None:
    for table, filenode in task.files:
        cursor.execute(f"SELECT pg_relation_filenode(to_regclass('{table}'))::bigint")
        if cursor.fetchone() != (filenode,):
            raise TableRewritten(table)


def _wait_for_replica(cursor: Any, reach: int, seconds: float) -> None:
    """Until the server shows all that the planner saw; a primary does at once."""
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
    arrays = []
    for column, field, target in zip(batch.columns, schema.fields, wanted, strict=True):
        if field.name in JSON and not isinstance(field.dataType, StringType):
            column = _parsed(column, field.dataType, target.type)
        arrays.append(column if column.type == target.type else column.cast(target.type))
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _parsed(column: pa.Array, spark_type: Any, arrow_type: pa.DataType) -> pa.Array:
    """JSON text as the type that a schema asks for; what does not fit is NULL, as in from_json."""
    texts = column.to_pylist()
    if isinstance(spark_type, VariantType):
        variants = [None if text is None else VariantVal.parseJson(text) for text in texts]
        return pa.array(
            [v and {"value": bytes(v.value), "metadata": bytes(v.metadata)} for v in variants],
            type=arrow_type,
        )
    values = [None if text is None else json.loads(text) for text in texts]
    try:
        return pa.array(values, type=arrow_type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return pa.array([_or_none(value, arrow_type) for value in values], type=arrow_type)


def _or_none(value: Any, arrow_type: pa.DataType) -> Any:
    try:
        pa.array([value], type=arrow_type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return None
    return value
