"""Writes a DataFrame into queues, each row exactly once.

A task stages its rows under a unique token, in COPY's text format, and reports the token to the
driver. The driver sends the staged rows of the successful tasks, in one COPY and one transaction. A
second attempt, a speculative task or a replayed batch has other tokens, and its rows are never
sent. With ``txnAppId`` and ``txnVersion``, which streams set by themselves, a version that was
already written is skipped.

>>> df.write.format("pgqueue").mode("append").option("queue", "orders").save()
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import psycopg
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import NumericType, StructType

from django_pgqueue.audit import acting_as
from django_pgqueue.bare import BareRunner, open_queues
from django_pgqueue.engine.audit.entry import record
from django_pgqueue.engine.names import MESSAGE, table_names
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.send.once import claim
from pyspark_pgqueue.errors import InvalidOption, PipelineError, StagingLost
from pyspark_pgqueue.source import database
from pyspark_pgqueue.source.columns import GIVEN, SENT
from pyspark_pgqueue.source.landing import Landing
from pyspark_pgqueue.source.options import Options

_NUMBERS = {"delay", "expires", "priority"}


@dataclass
class Staged(WriterCommitMessage):
    """The staged rows of one task."""

    token: str
    rows: int
    queues: dict[int, int]  # The number of rows by queue id.
    partition: int
    app_id: str | None


class _Writer(Landing):
    """The common part of the batch and the streaming writer."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidOption(
                "A queue cannot be overwritten: consumers may be working on its messages. Write "
                'with .mode("append"). To empty the queue first, call Message.objects.purge(name).'
            )
        _check(schema, options)
        self.options = options
        self.names = [name for name in schema.names if name != "queue"]
        self.columns = [*(SENT[name] for name in self.names), "queue_id"]

    def write(self, iterator: Iterator[Any]) -> Staged:
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        partition = context.partitionId() if context else 0
        # Imported in tasks only, and not in the process in which Spark plans the write.
        stage = import_module("pyspark_pgqueue.sink.staging").stage
        told = stage(self.options.url, self.names, self.options.queue, iterator)
        return Staged(*told, partition, f"stream:{query}" if query else None)

    def abort(self, messages: list[Any], *_: Any) -> None:
        with database.connect(self.options.url) as connection:
            _unstage(connection, [message.token for message in messages if message])

    # Runs on the driver

    def _publish(self, messages: list[Any], app_id: str | None, version: int | None) -> None:
        """Send all staged rows, or none if this version was already written."""
        staged: list[Staged] = sorted(filter(None, messages), key=lambda each: each.partition)
        tokens, rows = [each.token for each in staged], sum(each.rows for each in staged)
        with database.connect(self.options.url) as connection:
            with connection.transaction():
                if app_id is None or _is_new(connection, app_id, version, rows):
                    counts = sum((Counter(each.queues) for each in staged), Counter[int]())
                    queues = _still_there(connection, set(counts))
                    self._send(connection, queues, tokens, rows, counts)
                    if self.options.audit is not None:
                        _record(connection, json.loads(self.options.audit), queues, counts)
                _unstage(connection, tokens)
            # Rows staged more than a day ago belong to a dead job.
            connection.execute(
                "DELETE FROM pgqueue_staging "
                "WHERE staged_at < statement_timestamp() - interval '1 day'"
            )

    def _send(
        self,
        connection: psycopg.Connection[Any],
        queues: list[OpenQueue],
        tokens: list[str],
        rows: int,
        counts: Counter[int],
    ) -> None:
        """Send the staged rows. Corrects ``counts`` if a unique key keeps rows from being sent."""
        if not {"delay", "expires", "unique_key"}.isdisjoint(self.columns):
            given = ", ".join(f"{name} {kind}" for name, kind in GIVEN.items())
            connection.execute(database.sql("sink/writing/arrived", given=given))
            self._copy(connection, "pgqueue_arrived", tokens, rows)
            until, on_conflict = self.options.until, self.options.on_conflict
            for queue in queues:
                params = claim(queue.unique_window, "column", until, on_conflict, None, None)
                text = database.sql(
                    "sink/writing/once", **table_names(queue.id), given=", ".join(GIVEN)
                )
                sent = connection.execute(text, params)
                counts[queue.id] = sent.rowcount
        elif queues:
            # With one queue, copy into its own table, whose trigger need not look up the rows'
            # queues.
            table = queues[0].message_table if len(queues) == 1 else MESSAGE
            self._copy(connection, table, tokens, rows)

    def _copy(
        self, connection: psycopg.Connection[Any], table: str, tokens: list[str], rows: int
    ) -> None:
        """Copy the staged lines unchanged. COPY writes pages; INSERT would write row by row."""
        reading = "SELECT lines FROM pgqueue_staging WHERE token = %s ORDER BY place"
        writing = f"COPY {table} ({', '.join(self.columns)}) FROM STDIN"
        url = self.options.url
        with database.connect(url) as reader, reader.transaction(), connection.cursor() as cursor:
            with cursor.copy(writing) as copy:
                for token in tokens:
                    with reader.cursor("pgqueue_staging", binary=True) as pieces:
                        for (lines,) in pieces.execute(reading, [token]):
                            copy.write(lines)
            if cursor.rowcount != rows:
                raise StagingLost(cursor.rowcount, rows)


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


def _is_new(
    connection: psycopg.Connection[Any], app_id: str, version: int | None, rows: int
) -> bool:
    params = {"app_id": app_id, "version": version, "rows": rows}
    return connection.execute(database.sql("sink/writing/is_new"), params).rowcount == 1


def _record(
    connection: psycopg.Connection[Any],
    told: Mapping[str, Any],
    queues: Sequence[OpenQueue],
    counts: Mapping[int, int],
) -> None:
    """Record a write in the audit log: an entry for each queue, to which later writes add."""
    operation, given, actor = told["operation"], told["arguments"], told["actor"]
    params = {
        "operation": operation,
        "id": json.dumps({"id": given["id"]}),
        "who": actor["who"],
    }
    still_open = database.sql("sink/writing/open")
    add = database.sql("sink/writing/add", open=still_open)
    with acting_as(**actor):
        for queue in queues:
            count = counts[queue.id]
            found = connection.execute(add, {**params, "count": count, "queue_id": queue.id})
            if count and not found.rowcount:
                place = queue.id, queue.name
                record(BareRunner(connection), operation, place, given, count, ended=False)
    if told["ended"]:
        connection.execute(database.sql("sink/writing/end", open=still_open), params)


def _still_there(connection: psycopg.Connection[Any], ids: set[int]) -> list[OpenQueue]:
    found = open_queues(BareRunner(connection), "id = ANY(%(ids)s)", {"ids": list(ids)})
    if len(found) < len(ids):
        raise PipelineError(
            "Nothing was sent: a queue was dropped during the write. Create it again, or leave its "
            "rows out; then run the write again."
        )
    return sorted(found, key=lambda queue: queue.id)


def _unstage(connection: psycopg.Connection[Any], tokens: list[str]) -> None:
    connection.execute("DELETE FROM pgqueue_staging WHERE token = ANY(%s)", [tokens])


def _check(schema: StructType, options: Options) -> None:
    names = schema.names
    unknown = sorted(set(names) - set(SENT))
    if unknown:
        raise InvalidOption(
            f"A queue has no column {', '.join(unknown)}. Its columns are {', '.join(SENT)}."
        )
    if "body" not in names:
        raise InvalidOption(
            'There is no column body. Add one, for example to_json(struct("*")).alias("body").'
        )
    if (options.until or options.on_conflict != "skip") and "unique_key" not in names:
        raise InvalidOption("The options until and onConflict need a column unique_key.")
    if options.queue is None and "queue" not in names:
        raise InvalidOption(
            "No destination queue: set the option 'queue', or add a column 'queue'."
        )
    targets = [SENT[name] for name in names]
    if len(set(targets)) < len(targets):
        raise InvalidOption("The columns group and group_key mean the same: keep only one of them.")
    for field in schema.fields:
        found = field.dataType.simpleString()
        if field.name in _NUMBERS:
            if not isinstance(field.dataType, NumericType):
                raise InvalidOption(f"Column {field.name} must be a number, not {found}.")
        elif found != "string":
            is_json = field.name in {"body", "headers"}
            hint = " Convert it to JSON text, with to_json()." if is_json else ""
            raise InvalidOption(f"Column {field.name} must be a string, not {found}.{hint}")
