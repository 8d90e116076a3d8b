"""Sends messages of a lake again, or sends rows of Parquet, JSON or CSV files.

Each call has an id. To continue a call that died, repeat it with the same id. Repeating a finished
call changes nothing.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import Window
from pyspark.sql import functions as f

from django_pgqueue.audit import actor
from django_pgqueue.engine.columns import KEPT
from pyspark_pgqueue.errors import InvalidOption, in_one_line
from pyspark_pgqueue.jobs.progress import Progress, quiet
from pyspark_pgqueue.lake import reading
from pyspark_pgqueue.source import database
from pyspark_pgqueue.source.columns import SENT

#: With a rate, one write sends the messages of this many seconds.
SLICE_SECONDS = 1.0
#: The version of a call's last write. Rows added to the lake later are not part of that call.
FINISHED = 2**62
#: The condition that every row meets.
_EVERY = ("where", "true")
#: Number of rows that each task sorts.
_RANGE = 500_000


class _Call(NamedTuple):
    """A call, as the audit log has it, and the order in which it sends its rows."""

    operation: str
    id: str
    given: dict[str, Any]
    order: tuple[str, ...]

    def entry(self, *, ended: bool) -> str:
        """Return the value of the option ``auditEntry``. The write runs in another process."""
        given = {k: v for k, v in self.given.items() if v is not None and (k, v) != _EVERY}
        who = actor()
        by = {"who": who.who, "place": who.place, "program": who.program}
        told = {"operation": self.operation, "arguments": given, "actor": by, "ended": ended}
        return json.dumps(told)


@dataclass(frozen=True)
class Summary:
    """The result of a replay: ``counts`` has the number of messages by source queue."""

    id: str
    counts: dict[str, int]
    dry_run: bool
    seconds: float

    @property
    def rows(self) -> int:
        return sum(self.counts.values())

    def __str__(self) -> str:
        would = "would be sent (dry run)" if self.dry_run else "sent"
        parts = ", ".join(f"{name}: {count:,}" for name, count in self.counts.items())
        return f"{self.id}: {self.rows:,} messages {would} ({parts}), {self.seconds:.1f} s."


def replay(
    spark: Any,
    url: str,
    path: str,
    *,
    queue: str | None = None,
    to: str | None = None,
    where: str = "true",
    rate: float | None = None,
    dry_run: bool = False,
    replay_id: str | None = None,
    progress: Progress = quiet,
) -> Summary:
    """Send messages of a lake again; ``where`` is a condition in Spark's SQL.

    They come from ``queue``, or from every queue, and are sent to the queue ``to``, or back to the
    queue they came from. ``rate`` is messages a second. The header ``x-replay`` contains the call's
    id and the original message's id.

    >>> replay(spark, url, "/lake", queue="orders", where="state = 'FAILED'", dry_run=True).rows
    12
    """
    rows = _chosen(reading.read(spark, path), where)
    if queue is not None:
        rows = rows.where(rows.queue == queue)
    name = replay_id or f"replay-{uuid.uuid4().hex[:12]}"
    # JSON is concatenated as text: parsing it would change how numbers are written.
    rows = rows.selectExpr(
        "archive_xid",
        "id",
        "queue",
        "CASE WHEN headers IS NULL OR headers = '{}' THEN '{' "
        "ELSE concat(substr(headers, 1, length(headers) - 1), ', ') END || "
        f'\'"x-replay": {{"id": \' || id || \', "by": "{_plain(name)}"}}}}\' AS headers',
        *(column.name for column in KEPT),
    )
    given = {"id": name, "lake": path, "queue": queue, "to": to, "where": where, "rate": rate}
    call = _Call("replay", name, given, ("archive_xid", "id"))
    return _send(url, rows, to, rate, dry_run, call, progress)


def load(
    spark: Any,
    url: str,
    path: str,
    *,
    to: str | None = None,
    format: str = "parquet",
    where: str = "true",
    rate: float | None = None,
    dry_run: bool = False,
    load_id: str | None = None,
    progress: Progress = quiet,
) -> Summary:
    """Send the rows of Parquet, JSON or CSV files.

    A column ``body`` is sent unchanged. The columns headers, delay, expires, priority, group and
    unique_key are sent with it, and the column queue names the queue unless ``to`` is given.
    Without a column ``body``, each whole row becomes a body.

    >>> load(spark, url, "/data/orders.csv", to="orders", format="csv").rows
    100
    """
    if format not in {"parquet", "json", "csv"}:
        raise InvalidOption(f"format must be parquet, json or csv, not {format!r}.")
    options = {"header": "true"} if format == "csv" else {}
    try:
        rows = spark.read.format(format).options(**options).load(path)
    except AnalysisException as error:
        raise InvalidOption(
            f"{path} cannot be read as {format}: {in_one_line(error)} "
            f"Correct the path, or --format."
        ) from error
    rows = _chosen(rows, where)
    if "body" not in rows.columns:
        rows = rows.selectExpr("to_json(struct(*)) AS body")
    rows = rows.select(*[name for name in rows.columns if name in SENT])
    if to is None and "queue" not in rows.columns:
        raise InvalidOption(
            "No destination queue: pass --to, or add a column 'queue' to the files."
        )
    name = load_id or f"load-{uuid.uuid4().hex[:12]}"
    # Ordered by all columns: files may come in another order when the call is repeated.
    given = {"id": name, "path": path, "format": format, "to": to, "where": where, "rate": rate}
    call = _Call("load", name, given, tuple(rows.columns))
    return _send(url, rows, to, rate, dry_run, call, progress)


def _chosen(rows: Any, where: str) -> Any:
    try:
        return rows.where(where)
    except AnalysisException as error:
        raise InvalidOption(
            f"--where is not a valid condition on these rows: {in_one_line(error)} "
            f"The columns are {', '.join(rows.columns)}."
        ) from error


def _send(
    url: str,
    rows: Any,
    to: str | None,
    rate: float | None,
    dry_run: bool,
    call: _Call,
    progress: Progress,
) -> Summary:
    """Send the rows slice by slice, from the first row that is not sent yet.

    A slice's version is the number of its last row, whatever the rate. The last slice's version is
    ``FINISHED``.
    """
    started = time.monotonic()
    if to is not None and "queue" not in rows.columns:
        counts = {to: rows.count()}
    else:
        counts = dict(rows.groupBy("queue").count().orderBy("queue").collect())
    total = sum(counts.values())
    size = max(total if rate is None else int(rate * SLICE_SECONDS), 1)
    columns = [column for column in rows.columns if column in SENT]
    done = FINISHED if dry_run else _version(url, call.id)
    is_cut = done < total and (done > 0 or size < total)
    if is_cut:
        rows = _numbered(rows, call.order, total)
    for start in range(done, total, size):
        began, end = time.monotonic(), min(start + size, total)
        part = rows.where((rows["_place"] >= start) & (rows["_place"] < end)) if is_cut else rows
        version = FINISHED if end == total else end
        writer = part.select(*columns).write.format("pgqueue").mode("append")
        writer = writer.options(url=url, txnAppId=call.id, txnVersion=str(version))
        writer = writer.option("auditEntry", call.entry(ended=end == total))
        if to is not None:
            writer = writer.option("queue", to)
        writer.save()
        progress("messages", end, total)
        if rate is not None and end < total:
            time.sleep(max(size / rate - (time.monotonic() - began), 0))
    if is_cut:
        rows.unpersist()
    return Summary(call.id, counts, dry_run, time.monotonic() - started)


def _numbered(rows: Any, order: tuple[str, ...], total: int) -> Any:
    """Add the column ``_place``: a row's position in the given order, from 0.

    Each task sorts one range of the order. A single task would sort all rows on one disk.
    """
    ranges = rows.repartitionByRange(math.ceil(total / _RANGE), *order)
    ranges = ranges.withColumn("_range", f.spark_partition_id()).cache()
    counts = sorted(
        (row["_range"], row["count"]) for row in ranges.groupBy("_range").count().collect()
    )
    before = accumulate((count for _, count in counts), initial=0)
    starts = [
        f.lit(each)
        for (number, _), start in zip(counts, before, strict=False)
        for each in (number, start)
    ]
    place = f.row_number().over(Window.partitionBy("_range").orderBy(*order)) - 1
    return ranges.withColumn("_place", place + f.create_map(*starts)[f.col("_range")]).cache()


def _version(url: str, name: str) -> int:
    with database.connect(url) as connection:
        [(version,)] = connection.execute(
            "SELECT coalesce(max(version), 0) FROM pgqueue_spark_txn WHERE app_id = %s", [name]
        )
    return int(version)


def _plain(name: str) -> str:
    """Refuse characters that would need escaping in JSON or SQL."""
    if not name.replace("-", "").replace("_", "").replace(".", "").replace(":", "").isalnum():
        raise InvalidOption(
            f"The id {name!r} is invalid: use only letters, digits, hyphens, underscores, dots and "
            f"colons."
        )
    return name
