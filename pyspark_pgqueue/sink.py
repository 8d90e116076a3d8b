"""Writes a DataFrame into queues, each row exactly once.

A task stages its rows under a unique token, in COPY's text format, and reports the token to the
driver. The driver sends the staged rows of the successful tasks, in one COPY and one transaction. A
second attempt, a speculative task or a replayed batch has other tokens, and its rows are never
sent. With ``txnAppId`` and ``txnVersion``, which streams set by themselves, a version that was
already written is skipped.

>>> df.write.format("pgqueue").mode("append").option("queue", "orders").save()
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from django_pgqueue import ddl
from django_pgqueue.bare import BareRunner, open_queues
from django_pgqueue.engine.queue import OpenQueue
from django_pgqueue.engine.send.sending import window
from pyspark_pgqueue import planning
from pyspark_pgqueue.errors import InvalidOption, PipelineError, StagingLost
from pyspark_pgqueue.executors import Landing
from pyspark_pgqueue.options import Options

__all__ = ["BatchWriter", "StreamWriter", "sweep"]

#: Rows staged longer ago belong to a dead job.
ORPHANED_AFTER = "1 day"


#: Bytes of lines in a staged row, whatever the size of a message.
PIECE = 64 * 1024

#: Bytes of a batch that are escaped at a time.
SLICE = 1024 * 1024

_TARGETS = {
    "body": "body",
    "queue": "queue_id",
    "headers": "headers",
    "delay": "delay",
    "priority": "priority",
    "group": "group_key",
    "group_key": "group_key",
    "dedup_key": "dedup_key",
}
# Special characters of COPY's text format. The backslash is escaped first.
_ESCAPES = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_TEXT = {"body", "queue", "headers", "group", "group_key", "dedup_key"}
_NUMBERS = {"tinyint", "smallint", "int", "bigint", "float", "double"}
_LONGEST_KEY = 255


@dataclass
class Staged(WriterCommitMessage):
    """The staged rows of one task."""

    token: str
    rows: int
    partition: int
    queues: frozenset[int]
    app_id: str | None


class _Writer(Landing):
    """The common part of the batch and the streaming writer."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidOption(
                "A queue cannot be overwritten: others may hold its messages. Write with "
                '.mode("append"); to empty a queue first, purge it: Message.objects.purge(name).'
            )
        _check(schema, options)
        self.options = options
        self.names = [name for name in schema.names if name != "queue"]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        token, rows, place = uuid.uuid4(), 0, 0
        used: set[int] = set()
        # One transaction: a task that fails or dies leaves nothing staged.
        with psycopg.connect(self.options.url) as connection:
            known = _known_queues(connection)
            copying = "COPY pgqueue_staging (token, place, lines) FROM STDIN (FORMAT binary)"
            with connection.cursor() as cursor, cursor.copy(copying) as copy:
                copy.set_types(["uuid", "int4", "bytea"])
                for batch in (part for whole in iterator for part in _slices(whole)):
                    queue_ids = _queue_ids(batch, known, self.options.queue)
                    lines = _lines(_columns(batch, self.names), queue_ids)
                    for start in range(0, len(lines), PIECE):
                        copy.write_row((token, place, lines[start : start + PIECE]))
                        place += 1
                    rows += batch.num_rows
                    used.update(pc.unique(queue_ids).to_pylist())
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        partition = context.partitionId() if context else 0
        app_id = f"stream:{query}" if query else None
        return Staged(str(token), rows, partition, frozenset(used), app_id)

    def abort(self, messages: list[Any], *_: Any) -> None:
        tokens = [message.token for message in messages if message is not None]
        with planning.connect(self.options.url) as connection:
            connection.execute("DELETE FROM pgqueue_staging WHERE token = ANY(%s)", [tokens])

    def _publish(self, messages: list[Any], app_id: str | None, version: int | None) -> None:
        staged = [message for message in messages if message is not None]
        columns = [*(_TARGETS[name] for name in self.names), "queue_id"]
        publish(self.options.url, staged, columns, app_id, version)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Publishes a write in one transaction."""

    def commit(self, messages: list[Any]) -> None:
        self._publish(messages, self.options.txn_app_id, self.options.txn_version)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Publishes a micro-batch in one transaction. The query and the batch number identify it."""

    def commit(self, messages: list[Any], batchId: int) -> None:
        app_id = self.options.txn_app_id or next(
            (message.app_id for message in messages if message and message.app_id), None
        )
        self._publish(messages, app_id, batchId)


# Functions that run in the tasks


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of a batch, limited in bytes since escaping copies its input."""
    rows = max(batch.num_rows * SLICE // max(batch.nbytes, 1), 1)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _known_queues(connection: psycopg.Connection[Any]) -> dict[str, int]:
    rows = connection.execute("SELECT lower(name), id FROM pgqueue_queue")
    return {name: int(pk) for name, pk in rows}


def _queue_ids(batch: pa.RecordBatch, known: dict[str, int], queue: str | None) -> pa.Array:
    """Each row's queue id."""
    if queue is not None:
        return pa.repeat(_found(known, queue), batch.num_rows)
    names = batch.column("queue").dictionary_encode()
    if names.null_count:
        raise PipelineError("Nothing was sent: in some row the column queue is NULL.")
    return pa.array([_found(known, name) for name in names.dictionary.to_pylist()]).take(
        names.indices
    )


def _found(known: dict[str, int], name: str) -> int:
    if name.lower() not in known:
        raise PipelineError(
            f"Nothing was sent: there is no queue {name!r}. Create it first, or correct the "
            f"column or option queue."
        )
    return known[name.lower()]


def _columns(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[pa.Array]:
    """The columns as text, checked for what the table does not check itself."""
    for name in names:
        column = batch.column(name)
        if name == "priority":
            column = column.cast(pa.int16()).fill_null(0)
        if name == "headers":
            starts = pc.starts_with(pc.utf8_ltrim_whitespace(column), "{")
            if pc.all(starts).as_py() is False:
                raise PipelineError("Nothing was sent: headers must be a JSON object or NULL.")
        if _TARGETS[name] in {"group_key", "dedup_key"}:
            lengths = pc.utf8_length(column)
            if pc.any(pc.or_(pc.less(lengths, 1), pc.greater(lengths, _LONGEST_KEY))).as_py():
                raise PipelineError(
                    f"Nothing was sent: column {name} needs 1 to {_LONGEST_KEY} characters or NULL."
                )
        yield column if pa.types.is_string(column.type) else column.cast(pa.string())


def _lines(columns: Iterable[pa.Array], queue_ids: pa.Array) -> memoryview:
    """The rows as lines for COPY, created without a Python object per row."""
    texts = []
    for text in columns:
        for character, escaped in _ESCAPES:
            text = pc.replace_substring(text, character, escaped)
        texts.append(text.fill_null("\\N"))
    ends = pc.binary_join_element_wise(queue_ids.cast(pa.string()), "\n", "")
    lines = pc.binary_join_element_wise(*texts, ends, "\t")
    # The lines are contiguous in memory.
    length = pc.sum(pc.binary_length(lines)).as_py() or 0
    return memoryview(lines.buffers()[2])[:length]


# Runs on the driver


def publish(
    url: str,
    staged: Sequence[Staged],
    columns: Sequence[str],
    app_id: str | None,
    version: int | None,
) -> None:
    """Send all staged rows, or none if this version was already written."""
    ordered = sorted(staged, key=lambda message: message.partition)
    tokens = [message.token for message in ordered]
    expected = sum(message.rows for message in ordered)
    with planning.connect(url) as connection:
        with connection.transaction():
            if app_id is None or _is_new(connection, app_id, version, expected):
                queues = _still_there(connection, {pk for told in ordered for pk in told.queues})
                if not {"delay", "dedup_key"}.isdisjoint(columns):
                    connection.execute(ARRIVED)
                    _copy(url, connection, tokens, expected, "pgqueue_arrived", columns)
                    for queue in queues:
                        names = ddl.table_names(queue.id)
                        connection.execute(SEND_ONCE.format_map(names), window(queue))
                elif queues:
                    # With one queue, copy into its own table, whose trigger need not look up the
                    # rows' queues.
                    table = queues[0].message_table if len(queues) == 1 else ddl.MESSAGE
                    _copy(url, connection, tokens, expected, table, columns)
            connection.execute("DELETE FROM pgqueue_staging WHERE token = ANY(%s)", [tokens])
        sweep(connection)


def _copy(
    url: str,
    connection: psycopg.Connection[Any],
    tokens: list[str],
    expected: int,
    table: str,
    columns: Sequence[str],
) -> None:
    """Copy the staged lines unchanged. COPY writes page by page; INSERT would write row by row."""
    reading = "SELECT lines FROM pgqueue_staging WHERE token = %s ORDER BY place"
    with planning.connect(url) as reader, reader.transaction(), connection.cursor() as cursor:
        with cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as copy:
            for token in tokens:
                with reader.cursor("pgqueue_staging", binary=True) as pieces:
                    for (lines,) in pieces.execute(reading, [token]):
                        copy.write(lines)
        if cursor.rowcount != expected:
            raise StagingLost(cursor.rowcount, expected)


ARRIVED = """
CREATE TEMPORARY TABLE pgqueue_arrived (
    place bigint GENERATED ALWAYS AS IDENTITY,
    queue_id integer,
    delay double precision CHECK (delay < 'Infinity' AND delay > '-Infinity'),
    priority smallint DEFAULT 0,
    group_key text,
    dedup_key text,
    headers jsonb,
    body jsonb
) ON COMMIT DROP
"""

# Skips rows with a known dedup key, as send_batch does. The trigger of the queue's own table makes
# the others ready and wakes consumers.
SEND_ONCE = """
WITH arrived AS MATERIALIZED (
    SELECT row_number() OVER (ORDER BY place) AS place,
           delay, priority, group_key, dedup_key, headers, body
    FROM pgqueue_arrived WHERE queue_id = {queue_id}
),
claimed AS MATERIALIZED (
    SELECT * FROM pgqueue_claim_keys(
        {queue_id}, (SELECT array_agg(dedup_key ORDER BY place) FROM arrived),
        %(window)s::interval)
)
INSERT INTO {message}
    (id, queue_id, scheduled_at, priority, group_key, dedup_key, headers, body)
SELECT c.id, {queue_id},
       CASE WHEN delay > 0 THEN statement_timestamp() + delay * interval '1 second' END,
       a.priority, a.group_key, a.dedup_key, a.headers, a.body
FROM arrived a JOIN claimed c USING (place)
WHERE c.is_new
ORDER BY c.id
"""


def _is_new(
    connection: psycopg.Connection[Any], app_id: str, version: int | None, rows: int
) -> bool:
    return (
        connection.execute(
            """
            INSERT INTO pgqueue_spark_txn AS t (app_id, version, sent) VALUES (%s, %s, %s)
            ON CONFLICT (app_id) DO UPDATE
            SET version = excluded.version, sent = excluded.sent, committed_at = DEFAULT
            WHERE t.version < excluded.version
            RETURNING app_id
            """,
            [app_id, version, rows],
        ).fetchone()
        is not None
    )


def _still_there(connection: psycopg.Connection[Any], ids: set[int]) -> list[OpenQueue]:
    found = open_queues(BareRunner(connection), "id = ANY(%(ids)s)", {"ids": list(ids)})
    if len(found) < len(ids):
        raise PipelineError("Nothing was sent: a queue was dropped during the write.")
    return sorted(found, key=lambda queue: queue.id)


def sweep(connection: psycopg.Connection[Any], older_than: str = ORPHANED_AFTER) -> int:
    """Delete rows staged by dead jobs; returns how many."""
    return connection.execute(
        "DELETE FROM pgqueue_staging WHERE staged_at < statement_timestamp() - %s::interval",
        [older_than],
    ).rowcount


def _check(schema: StructType, options: Options) -> None:
    names = schema.names
    unknown = sorted(set(names) - set(_TARGETS))
    if unknown:
        raise InvalidOption(
            f"A queue has no column {', '.join(unknown)}: select some of {', '.join(_TARGETS)}."
        )
    if "body" not in names:
        raise InvalidOption('There is no column body: add one, as in to_json(struct("*")).')
    if options.queue is None and "queue" not in names:
        raise InvalidOption("Say which queue: option queue, or a column queue.")
    targets = [_TARGETS[name] for name in names]
    if len(set(targets)) < len(targets):
        raise InvalidOption("There are two columns for the group: keep group or group_key.")
    for field in schema.fields:
        found = field.dataType.simpleString()
        if field.name in _TEXT and found != "string":
            hint = (
                ": write JSON text, as with to_json()" if field.name in {"body", "headers"} else ""
            )
            raise InvalidOption(f"Column {field.name} is {found}, not string{hint}.")
        if field.name in {"delay", "priority"} and not (
            found in _NUMBERS or found.startswith("decimal")
        ):
            raise InvalidOption(f"Column {field.name} is {found}, not a number.")
