"""Spark's part of a roll-up: count the messages in a lake. Only the needed columns are read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark_pgqueue.lake import reading
from pyspark_pgqueue.rollup import statistics
from pyspark_pgqueue.rollup.figures import Figures, moment
from pyspark_pgqueue.rollup.statistics import FREQUENT, LONGEST_LIST, PERCENTS, SUMS, TIMES, WORST

_VIEW = "pgqueue_ended"
_IN_MEMORY = "spark.sql.execution.useObjectHashAggregateExec"
_PARTITIONS = "spark.sql.shuffle.partitions"
#: Minimum bytes of the lake's files in a task. Spark's default, 200 tasks, is slow on a small lake.
_TASK = 16 * 1024 * 1024
_NEEDED = (
    "id",
    "queue",
    "state",
    "headers",
    "group_key",
    "scheduled_at",
    "enqueued_at",
    "first_read_at",
    "last_read_at",
    "read_ct",
    "attempts",
    "archived_at",
    "error",
)


def count_in_lake(spark: Any, path: str, figures: Figures, until: int) -> None:
    """Count the lake's messages that ended before the bucket ``until``."""
    days = moment(figures.start).date(), moment(until).date()
    rows = reading.read(spark, path, _NEEDED, days).where(
        f"archived_at >= timestamp'{moment(figures.start).isoformat()}' "
        f"AND archived_at < timestamp'{moment(until).isoformat()}'"
    )
    size = reading.size(path, None if figures.pruned else days)
    tasks = min(math.ceil(size / _TASK) or 1, int(spark.conf.get(_PARTITIONS)))
    # Sort by group, on disk if needed, instead of holding all lists in memory.
    with _settings(spark, {_PARTITIONS: str(tasks), _IN_MEMORY: "false"}):
        _count(spark, path, rows, figures)


def _count(spark: Any, path: str, rows: Any, figures: Figures) -> None:
    if figures.pruned:
        ends = reading.read(spark, path, ("queue", "archived_at"))
        ends = ends.selectExpr("queue", "unix_micros(archived_at) / 1e6 AS ended")
        for queue, first in ends.groupBy("queue").min("ended").collect():
            figures.take_from_lake(queue, first)
    _dead_letters(rows, figures)
    selected = statistics.parts(
        lambda at: _bucket(at, figures.seconds),
        lambda start, end: f"(unix_micros({end}) - unix_micros({start})) / 1e6",
        rare=True,
    )
    selected += [
        f"CASE WHEN {each.condition} THEN struct({', '.join((*each.order, *each.columns))}) END "
        f"AS {name}"
        for name, each in WORST.items()
    ]
    ended = rows.selectExpr("queue", *selected)
    # Each span is in one task, which holds the times of one span at a time.
    ended = ended.repartition("queue", "bucket").cache()
    ended.createOrReplaceTempView(_VIEW)
    try:
        _ended(spark, figures)
        _counted(spark, figures)
    finally:
        ended.unpersist()


@contextmanager
def _settings(spark: Any, values: dict[str, str]) -> Iterator[None]:
    """Change settings of the session for the block."""
    before = {name: spark.conf.get(name) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def _bucket(column: str, seconds: int) -> str:
    return f"(unix_micros({column}) div {seconds * 1_000_000}) * {seconds}"


def _ended(spark: Any, figures: Figures) -> None:
    """Add each span's number of messages that ended, its sums, percentiles and worst messages."""
    lists = {
        **{name: f"sort_array(collect_list({name}))" for name in TIMES},
        **{name: f"slice(sort_array(collect_list({name})), 1, {LONGEST_LIST})" for name in WORST},
    }
    sums = {
        **{name: f"sum({name})" for name in SUMS},
        **{each.total: f"coalesce(sum({name}), 0)" for name, each in TIMES.items() if each.total},
    }
    inner = ", ".join(f"{text} AS {name}" for name, text in (lists | sums).items())
    percentiles = ", ".join(
        f"array({', '.join(_percentile(name, percent / 100) for percent in PERCENTS)}) AS {name}"
        for name in TIMES
    )
    for row in spark.sql(
        f"""
        SELECT queue, bucket, count, {", ".join([*sums, *WORST])}, {percentiles}
        FROM (SELECT queue, bucket, count(*) AS count, {inner} FROM {_VIEW} GROUP BY queue, bucket)
        """
    ).collect():
        told = row.asDict()
        key = told.pop("queue"), told.pop("bucket")
        for name, each in WORST.items():
            if messages := told.pop(name):
                figures.add(*key, name, [message[len(each.order) :] for message in messages])
        figures.add(*key, "ended", told)


def _counted(spark: Any, figures: Figures) -> None:
    """Add how often each value occurs, in one pass for all kinds of values."""
    values = {f"{name}s": f"cast({statistics.bin_of(name)} AS string)" for name in TIMES}
    values |= {name: name for name in FREQUENT}
    stacked = [f"'{kind}', bucket, {value}" for kind, value in values.items()]
    stacked.append("'sent', sent_bucket, ''")
    frequent = ", ".join(f"'{name}'" for name in FREQUENT)
    for queue, bucket, kind, number, found in spark.sql(
        f"""
        SELECT queue, bucket, kind, size(found) AS number,
               CASE WHEN kind IN ({frequent}) THEN slice(found, 1, {LONGEST_LIST})
                    ELSE found END AS found
        FROM (SELECT queue, bucket, kind,
                     sort_array(collect_list(struct(-count AS rank, value))) AS found
              FROM (SELECT queue, bucket, kind, value, count(*) AS count
                    FROM (SELECT queue, stack({len(stacked)}, {", ".join(stacked)})
                              AS (kind, bucket, value)
                          FROM {_VIEW})
                    WHERE value IS NOT NULL GROUP BY queue, bucket, kind, value)
              GROUP BY queue, bucket, kind)
        """
    ).collect():
        counts = [(value, -rank) for rank, value in found]
        if kind == "sent":
            figures.add(queue, bucket, kind, counts[0][1])
        elif kind in FREQUENT:
            figures.add(queue, bucket, kind, (number, counts))
        else:
            figures.add(queue, bucket, kind, dict(counts))


def _dead_letters(rows: Any, figures: Figures) -> None:
    told = "get_json_object(headers, '$.x-dead-letter.%s')"
    letters = rows.where("headers LIKE '%x-dead-letter%'").selectExpr(
        f"{told % 'source'} AS queue",
        f"{_bucket('to_timestamp(' + told % 'dead_lettered_at' + ')', figures.seconds)} AS bucket",
    )
    for row in letters.where("queue IS NOT NULL").groupBy("queue", "bucket").count().collect():
        figures.add(row.queue, row.bucket, "dead", row["count"])


def _percentile(values: str, part: float) -> str:
    """percentile_cont of a sorted array. Spark's own function counts distinct values in a map,
    which takes ten times as long.
    """
    place = f"({part}D * (size({values}) - 1))"
    below = f"get({values}, cast(floor{place} AS int))"
    above = f"get({values}, cast(ceil{place} AS int))"
    return f"{below} + ({place} - floor{place}) * ({above} - {below})"
