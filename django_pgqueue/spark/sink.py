"""DataFrame → queue, each row once.

A task stages its rows under a token of its own and tells the driver. The driver sends what the
tasks that counted have staged, in one transaction: a second attempt, a speculative one or a
replay of the whole batch with other partitions has other tokens, and is never sent. With
``txnAppId`` and ``txnVersion``, which a stream has of itself, a version that was written before
is recognised and changes nothing.

>>> df.write.format("pgqueue").mode("append").option("queue", "orders").save()
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator, Sequence
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

from django_pgqueue.spark import planning
from django_pgqueue.spark.errors import InvalidOption, PipelineError, StagingLost
from django_pgqueue.spark.options import Options

__all__ = ["BatchWriter", "StreamWriter", "sweep"]

#: Rows staged for longer belong to a job that is gone.
ORPHANED_AFTER = "1 day"

#: Of queues that name none; as in the operations.
DEDUP_WINDOW = dt.timedelta(minutes=5)

_TARGETS = {
    "body": "body",
    "queue": "queue",
    "headers": "headers",
    "delay": "delay",
    "priority": "priority",
    "group": "group_key",
    "group_key": "group_key",
    "dedup_key": "dedup_key",
}
# What COPY's text format gives a meaning of its own; the backslash first.
_ESCAPES = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_TEXT = {"body", "queue", "headers", "group", "group_key", "dedup_key"}
_NUMBERS = {"tinyint", "smallint", "int", "bigint", "float", "double"}


@dataclass
class Staged(WriterCommitMessage):
    """What one task has staged."""

    token: str
    rows: int
    partition: int
    app_id: str | None


class _Writer:
    """What the batch and the streaming writer share."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidOption(
                "A queue cannot be overwritten: others may hold its messages. Write with "
                '.mode("append"); to empty a queue first, purge it: Message.objects.purge(name).'
            )
        _check(schema, options)
        self.options = options
        self.targets = [_TARGETS[name] for name in schema.names]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        token, rows = str(uuid.uuid4()), 0
        # One transaction: a task that fails or dies has staged nothing.
        with psycopg.connect(self.options.url) as connection:
            connection.execute("SELECT set_config('pgqueue.token', %s, false)", [token])
            copying = f"COPY pgqueue_staging ({', '.join(self.targets)}) FROM STDIN"
            with connection.cursor() as cursor, cursor.copy(copying) as copy:
                for batch in iterator:
                    copy.write(_lines(batch))
                    rows += batch.num_rows
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        partition = context.partitionId() if context else 0
        return Staged(token, rows, partition, f"stream:{query}" if query else None)

    def abort(self, messages: list[Any], *_: Any) -> None:
        tokens = [message.token for message in messages if message is not None]
        with planning.connect(self.options.url) as connection:
            connection.execute("DELETE FROM pgqueue_staging WHERE token = ANY(%s)", [tokens])

    def _publish(self, messages: list[Any], app_id: str | None, version: int | None) -> None:
        staged = [message for message in messages if message is not None]
        with planning.connect(self.options.url) as connection:
            publish(
                connection,
                staged,
                self.options.queue,
                app_id,
                version,
                has_keys="dedup_key" in self.targets,
            )
            sweep(connection)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """One write is one transaction."""

    def commit(self, messages: list[Any]) -> None:
        self._publish(messages, self.options.txn_app_id, self.options.txn_version)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """One micro-batch is one transaction; its query and number say whether it was written."""

    def commit(self, messages: list[Any], batchId: int) -> None:
        app_id = self.options.txn_app_id or next(
            (message.app_id for message in messages if message and message.app_id), None
        )
        self._publish(messages, app_id, batchId)


def publish(
    connection: psycopg.Connection[Any],
    staged: Sequence[Staged],
    queue: str | None,
    app_id: str | None,
    version: int | None,
    *,
    has_keys: bool = False,
) -> int:
    """Send staged rows, all or none; returns how many. Zero if this version was written before.

    With dedup keys, what its key says was sent before is left out, as by ``send_batch``.
    """
    ordered = sorted(staged, key=lambda message: message.partition)
    tokens = [message.token for message in ordered]
    expected = sum(message.rows for message in ordered)
    found = sent = 0
    with connection.transaction():
        # Without statistics of rows this young: the index has them in their order.
        connection.execute("SET LOCAL enable_seqscan = off")
        connection.execute("SET LOCAL enable_bitmapscan = off")
        if app_id is None or _is_new(connection, app_id, version, expected):
            for target in _queues_of(connection, tokens, queue):
                params = {"tokens": tokens, "queue": queue, **target}
                if has_keys:
                    row = connection.execute(SEND_ONCE.format_map(target), params).fetchone()
                    assert row is not None
                    found, sent = found + row[0], sent + row[1]
                    continue
                for token in tokens:
                    sending = SEND.format_map(target)
                    count = connection.execute(sending, {**params, "token": token}).rowcount
                    found, sent = found + count, sent + count
            if found != expected:
                raise StagingLost(found, expected)
        connection.execute("DELETE FROM pgqueue_staging WHERE token = ANY(%s)", [tokens])
    return sent


_ROWS = """
SELECT s.delay, coalesce(s.priority, 0) AS priority, s.group_key, s.dedup_key, s.headers, s.body
FROM pgqueue_staging s
WHERE s.token = ANY(%(tokens)s::uuid[])
  AND (%(queue)s::text IS NOT NULL OR lower(s.queue) = lower(%(name)s))
ORDER BY array_position(%(tokens)s::uuid[], s.token), s.seq
"""
_DUE = "CASE WHEN delay > 0 THEN statement_timestamp() + delay * interval '1 second' END"

_ROWS_OF_ONE = """
SELECT s.delay, coalesce(s.priority, 0) AS priority, s.group_key, s.dedup_key, s.headers, s.body
FROM pgqueue_staging s
WHERE s.token = %(token)s::uuid
  AND (%(queue)s::text IS NOT NULL OR lower(s.queue) = lower(%(name)s))
ORDER BY s.seq
"""

# The trigger of the queue's own table makes the rows readable and wakes consumers.
SEND = f"""
INSERT INTO pgqueue_message_q{{id}}
    (queue_id, scheduled_at, priority, group_key, dedup_key, headers, body)
SELECT {{id}}, {_DUE}, priority, group_key, dedup_key, headers, body FROM ({_ROWS_OF_ONE}) staged
"""

SEND_ONCE = f"""
WITH staged AS MATERIALIZED (
    SELECT nextval('pgqueue_message_id_seq') AS id, * FROM ({_ROWS}) ordered
),
claimed AS (
    INSERT INTO {{dedup}} AS d (queue_id, dedup_key, id, until)
    SELECT DISTINCT ON (dedup_key) {{id}}, dedup_key, id,
           statement_timestamp() + %(window)s::interval
    FROM staged WHERE dedup_key IS NOT NULL
    ORDER BY dedup_key, id
    ON CONFLICT (queue_id, dedup_key) DO UPDATE
    SET id = CASE WHEN d.until <= statement_timestamp() THEN excluded.id ELSE d.id END,
        until = CASE WHEN d.until <= statement_timestamp() THEN excluded.until ELSE d.until END
    RETURNING dedup_key, id
),
sent AS (
    INSERT INTO pgqueue_message_q{{id}}
        (id, queue_id, scheduled_at, priority, group_key, dedup_key, headers, body)
    SELECT s.id, {{id}}, {_DUE}, s.priority, s.group_key, s.dedup_key, s.headers, s.body
    FROM staged s LEFT JOIN claimed c USING (dedup_key)
    WHERE c.id IS NULL OR c.id = s.id
    ORDER BY s.id
    RETURNING 1
)
SELECT (SELECT count(*) FROM staged), (SELECT count(*) FROM sent)
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


def _queues_of(
    connection: psycopg.Connection[Any], tokens: list[str], queue: str | None
) -> list[dict[str, Any]]:
    """The queues that staged rows go to."""
    if queue is not None:
        wanted = [queue]
    else:
        wanted = [
            name
            for (name,) in connection.execute(
                "SELECT DISTINCT queue FROM pgqueue_staging WHERE token = ANY(%s)", [tokens]
            )
        ]
    found = connection.execute(
        "SELECT id, name, unlogged, coalesce(dedup_window, %s) FROM pgqueue_queue "
        "WHERE lower(name) = ANY(%s) ORDER BY id",
        [DEDUP_WINDOW, [name.lower() for name in wanted if name]],
    ).fetchall()
    missing = {name and name.lower() for name in wanted} - {row[1].lower() for row in found}
    if missing:
        raise PipelineError(
            f"Nothing was sent: there is no queue {', '.join(map(repr, missing))}. "
            f"Create it first, or correct the column or option queue."
        )
    return [
        {
            "id": int(pk),
            "name": name,
            "dedup": f"pgqueue_dedup{'_unlogged' if unlogged else ''}",
            "window": window,
        }
        for pk, name, unlogged, window in found
    ]


def sweep(connection: psycopg.Connection[Any], older_than: str = ORPHANED_AFTER) -> int:
    """Remove rows that a job staged and, dead since, will never send; returns how many."""
    return connection.execute(
        "DELETE FROM pgqueue_staging WHERE staged_at < statement_timestamp() - %s::interval",
        [older_than],
    ).rowcount


def _lines(batch: pa.RecordBatch) -> memoryview:
    """As COPY takes it, without a Python object for any row."""
    columns = []
    for column in batch.columns:
        text = column if pa.types.is_string(column.type) else column.cast(pa.string())
        for character, escaped in _ESCAPES:
            text = pc.replace_substring(text, character, escaped)
        columns.append(text.fill_null("\\N"))
    joined = columns[0]
    if len(columns) > 1:
        joined = pc.binary_join_element_wise(*columns, "\t")
    lines = pc.binary_join_element_wise(joined, "\n", "")
    # One after the other in memory already.
    length = pc.sum(pc.binary_length(lines)).as_py() or 0
    return memoryview(lines.buffers()[2])[:length]


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
