"""The part of a write that runs in Spark's tasks: stages rows as COPY's text (:mod:`.writing`)."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_pgqueue.errors import PipelineError
from pyspark_pgqueue.source.columns import SENT

#: Bytes in a staged row. It may contain many messages, or a part of one.
PIECE = 64 * 1024
#: Bytes of a batch that are escaped at a time.
SLICE = 1024 * 1024
# Special characters of COPY's text format. The backslash is escaped first.
_ESCAPES = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_LONGEST_KEY = 255


def stage(
    url: str, names: Sequence[str], queue: str | None, batches: Iterable[pa.RecordBatch]
) -> tuple[str, int, dict[int, int]]:
    """Stage a task's rows. Returns their token, their number, and their number by queue id.

    ``names`` are the columns to send, without ``queue``. ``queue`` is the queue for all rows; None:
    the column ``queue`` names each row's queue.
    """
    token, rows, place = uuid.uuid4(), 0, 0
    used = Counter[int]()
    # One transaction: a task that fails or dies leaves nothing staged.
    with psycopg.connect(url) as connection:
        queues = connection.execute(
            "SELECT lower(name), CASE WHEN source_id IS NULL THEN id END FROM pgqueue_queue"
        )
        known: dict[str, int | None] = dict(queues.fetchall())
        copying = "COPY pgqueue_staging (token, place, lines) FROM STDIN (FORMAT binary)"
        with connection.cursor() as cursor, cursor.copy(copying) as copy:
            copy.set_types(["uuid", "int4", "bytea"])
            for batch in (part for whole in batches for part in _slices(whole)):
                queue_ids = _queue_ids(batch, known, queue)
                lines = _lines(_columns(batch, names), queue_ids)
                for start in range(0, len(lines), PIECE):
                    copy.write_row((token, place, lines[start : start + PIECE]))
                    place += 1
                rows += batch.num_rows
                found = pc.value_counts(queue_ids)
                used.update(dict(zip(*(part.to_pylist() for part in found.flatten()), strict=True)))
    return str(token), rows, dict(used)


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of a batch, limited in bytes since escaping copies its input."""
    rows = max(batch.num_rows * SLICE // max(batch.nbytes, 1), 1)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _queue_ids(batch: pa.RecordBatch, known: dict[str, int | None], queue: str | None) -> pa.Array:
    """Each row's queue id."""
    if queue is not None:
        return pa.repeat(_found(known, queue), batch.num_rows)
    names = batch.column("queue").dictionary_encode()
    if names.null_count:
        raise PipelineError(
            "Nothing was sent: a row has NULL in the column 'queue'. Name a queue in each row, "
            "or set the option 'queue'."
        )
    return pa.array([_found(known, name) for name in names.dictionary.to_pylist()]).take(
        names.indices
    )


def _found(known: dict[str, int | None], name: str) -> int:
    """Return the id of a queue. ``known`` has None for a subscription."""
    found = known.get(name.lower())
    if found is None and name.lower() in known:
        raise PipelineError(
            f"Nothing was sent: queue {name!r} is a subscription. Send to its source, and each of "
            f"its subscriptions gets the messages."
        )
    if found is None:
        raise PipelineError(
            f"Nothing was sent: there is no queue {name!r}. Create it first, or correct its name "
            f"in the column 'queue' or the option 'queue'."
        )
    return found


def _columns(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[pa.Array]:
    """Yield the columns as text. Checks only conditions that no table constraint checks."""
    for name in names:
        column = batch.column(name)
        if name == "priority":
            column = column.cast(pa.int16()).fill_null(0)
        if name == "headers":
            starts = pc.starts_with(pc.utf8_ltrim_whitespace(column), "{")
            if pc.all(starts).as_py() is False:
                raise PipelineError("Nothing was sent: headers must be a JSON object or NULL.")
        if SENT[name] in {"group_key", "unique_key"}:
            lengths = pc.utf8_length(column)
            if pc.any(pc.or_(pc.less(lengths, 1), pc.greater(lengths, _LONGEST_KEY))).as_py():
                raise PipelineError(
                    f"Nothing was sent: column {name} must have 1 to {_LONGEST_KEY} characters, or "
                    f"be NULL."
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
