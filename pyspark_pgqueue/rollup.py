"""Roll-ups: what happened in each queue, by spans of time.

Spark counts what is in the archive; one statement counts what is still in the queues, and its
snapshot is where the archive's part ends, so that no message is counted twice or left out.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from pyspark_pgqueue import planning
from pyspark_pgqueue.errors import ServerChanged
from pyspark_pgqueue.offsets import Snapshot

__all__ = ["Summary", "rollup"]

HOUR = 3600
LONGEST_LIST = 5
POISONOUS = 3
PERCENTS = (50, 95, 99)

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)

Key = tuple[str, int]  # a queue, and a bucket as seconds since 1970


@dataclass(frozen=True)
class Summary:
    """What one call did."""

    from_at: dt.datetime
    to_at: dt.datetime
    buckets: int
    removed: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.buckets:,} roll-ups from {self.from_at:%Y-%m-%d %H:%M} to "
            f"{self.to_at:%Y-%m-%d %H:%M}, {self.removed} emptied, {self.seconds:.1f} s."
        )


def rollup(
    spark: Any,
    url: str,
    *,
    seconds: int = HOUR,
    from_at: dt.datetime | None = None,
    to_at: dt.datetime | None = None,
    every: bool = False,
    tell: Callable[[str], None] = lambda words: None,
) -> Summary:
    """Compute roll-ups of spans of so many seconds, and replace those that were there.

    Without a span given, from what was archived since the last time on; with ``every``, all.

    >>> print(rollup(spark, url))
    48 roll-ups from 2026-11-19 00:00 to 2026-11-21 00:00, 0 emptied, 1.4 s.
    """
    started_at, started = dt.datetime.now(dt.timezone.utc), time.monotonic()
    with planning.connect(url) as connection:
        server = planning.server(connection)
        planning.check_server(connection, server)
        if not every:
            _check_server(connection, server, seconds)
        start = _start(connection, seconds, from_at, every)
        end = _bucket((to_at or started_at).timestamp(), seconds)
        if to_at is None or to_at.timestamp() > end:
            end += seconds
        tell(f"From {_moment(start):%Y-%m-%d %H:%M}")
        live, dead, snapshot = _in_queues(connection, seconds)
        rows = Counts(spark, url, seconds, start, end, snapshot, connection).all(live, dead)
        removed = _save(connection, rows, seconds, start, end, snapshot, server.system, started_at)
    return Summary(_moment(start), _moment(end), len(rows), removed, time.monotonic() - started)


def _check_server(
    connection: psycopg.Connection[Any], server: planning.Server, seconds: int
) -> None:
    """Refuse to go on from a run of another server, or of a later state of this one."""
    row = connection.execute(
        "SELECT system, below_xid FROM pgqueue_rollup_run WHERE seconds = %s "
        "ORDER BY id DESC LIMIT 1",
        [seconds],
    ).fetchone()
    if row is None:
        return
    system, below_xid = row
    if system != server.system or below_xid > server.now.xmax:
        raise ServerChanged(
            "The last roll-up was computed on another server, or on a later state of this one, "
            "so that it does not tell what is new. Compute everything again (--every)."
        )


def _bucket(moment: float, seconds: int) -> int:
    return int(moment // seconds) * seconds


def _moment(bucket: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(seconds=bucket)


def _start(
    connection: psycopg.Connection[Any], seconds: int, from_at: dt.datetime | None, every: bool
) -> int:
    """The first span to compute."""
    if from_at is not None:
        return _bucket(from_at.timestamp(), seconds)
    if every:
        # Roll-ups outlive what they were counted from: after a purge, from the first whole span.
        row = connection.execute(
            "SELECT extract(epoch FROM min(archived_at))::bigint FROM pgqueue_archive "
            "WHERE EXISTS (SELECT FROM pgqueue_purge_mark)"
        ).fetchone()
        kept = row[0] if row else None
        return 0 if kept is None else _bucket(kept, seconds) + seconds
    last = connection.execute(
        "SELECT below_xid, extract(epoch FROM to_at)::bigint FROM pgqueue_rollup_run "
        "WHERE seconds = %s ORDER BY id DESC LIMIT 1",
        [seconds],
    ).fetchone()
    if last is None:
        return 0
    # One span more than the last: what was sent in it may have been committed since.
    below, reached = last
    row = connection.execute(
        "SELECT extract(epoch FROM min(archived_at))::bigint FROM pgqueue_archive "
        "WHERE archive_xid >= %s",
        [below],
    ).fetchone()
    earliest = row[0] if row and row[0] is not None else reached
    return _bucket(min(earliest, reached - 2 * seconds), seconds)


def _in_queues(
    connection: psycopg.Connection[Any], seconds: int
) -> tuple[dict[Key, int], dict[Key, int], Snapshot]:
    """Live messages by when they were sent, dead letters among them by when they died, and the
    snapshot of that very statement."""
    rows = connection.execute(
        """
        WITH live AS (
            SELECT q.name, l.id, l.queue_id, l.enqueued_at,
                   EXISTS (SELECT FROM pgqueue_queue s WHERE s.dead_letter_queue_id = q.id) AS dead
            FROM pgqueue_live l JOIN pgqueue_queue q ON q.id = l.queue_id
        ), letter AS (
            SELECT m.headers -> 'x-dead-letter' AS told
            FROM live l JOIN pgqueue_message m
                ON m.id = l.id AND m.queue_id = l.queue_id AND m.enqueued_at = l.enqueued_at
            WHERE l.dead AND m.headers ? 'x-dead-letter'
        )
        SELECT 'sent', name, floor(extract(epoch FROM enqueued_at) / %(s)s)::bigint * %(s)s,
               count(*), NULL
        FROM live GROUP BY 2, 3
        UNION ALL
        SELECT 'dead', told ->> 'source',
               floor(extract(epoch FROM (told ->> 'dead_lettered_at')::timestamptz) / %(s)s)::bigint
               * %(s)s, count(*), NULL
        FROM letter GROUP BY 2, 3
        UNION ALL
        SELECT 'snapshot', NULL, NULL, NULL, pg_current_snapshot()::text
        """,
        {"s": seconds},
    ).fetchall()
    found: dict[str, dict[Key, int]] = {"sent": {}, "dead": {}}
    snapshot = Snapshot.below(0)
    for kind, name, bucket, count, told in rows:
        if kind == "snapshot":
            snapshot = Snapshot.parse(told)
        else:
            found[kind][name, int(bucket)] = count
    return found["sent"], found["dead"], snapshot


class Counts:
    """What Spark counts in the archive, and how it comes together."""

    def __init__(
        self,
        spark: Any,
        url: str,
        seconds: int,
        start: int,
        end: int,
        snapshot: Snapshot,
        connection: psycopg.Connection[Any],
    ) -> None:
        self.spark, self.start, self.end, self.seconds = spark, start, end, seconds
        self.connection = connection
        reader = spark.read.format("pgqueue").options(
            url=url,
            endingOffsets=json.dumps({"s": str(snapshot)}),
            startingTimestamp=_moment(start).isoformat(),
        )
        columns = (
            "id,queue,state,scheduled_at,group_key,enqueued_at,first_read_at,last_read_at,"
            "archived_at,read_ct,error"
        )
        rows = reader.option("columns", columns).load()
        # The first line says what went wrong; the traceback comes after it, and may be cut.
        self.ended = rows.selectExpr(
            "id",
            "queue",
            "state",
            "group_key",
            "read_ct",
            "substr(substring_index(ltrim(error), '\\n', 1), 1, 200) AS error",
            f"{self._bucket_of('archived_at')} AS bucket",
            f"{self._bucket_of('enqueued_at')} AS sent_bucket",
            "greatest(unix_micros(first_read_at) - "
            "unix_micros(greatest(enqueued_at, scheduled_at)), 0) / 1e6 AS wait",
            "greatest(unix_micros(archived_at) - unix_micros(last_read_at), 0) / 1e6 AS run",
        ).cache()
        self.ended.createOrReplaceTempView("pgqueue_ended")
        self.reader = reader

    def _bucket_of(self, column: str) -> str:
        return f"(unix_micros({column}) div {self.seconds * 1_000_000}) * {self.seconds}"

    def all(self, live: dict[Key, int], dead: dict[Key, int]) -> dict[Key, dict[str, Any]]:
        """Everything of every span in which something happened, or something waited."""
        rows: dict[Key, dict[str, Any]] = defaultdict(dict)
        try:
            ended = self._ended(rows)
            sent = self._counted(rows)
        finally:
            self.ended.unpersist()
        self._dead_letters(rows, dead)
        self._backlog(rows, sent, live, ended)
        return {key: row for key, row in rows.items() if self._is_inside(key)}

    def _is_inside(self, key: Key) -> bool:
        return self.start <= key[1] < self.end

    def _ended(self, rows: dict[Key, dict[str, Any]]) -> dict[Key, int]:
        """What ended in a span, and how long it took; returns how much ended."""
        percentiles = ", ".join(
            f"{_percentile(f'{name}s', percent / 100)} AS {name}_p{percent}"
            for name in ("wait", "run")
            for percent in PERCENTS
        )
        counts: dict[Key, int] = {}
        for row in self.spark.sql(
            f"""
            SELECT queue, bucket, count, completed, failed, retried, busy_seconds, poison,
                   {percentiles}
            FROM (SELECT queue, bucket, count(*) AS count,
                         count_if(state = 'COMPLETED') AS completed,
                         count_if(state = 'FAILED') AS failed,
                         count_if(read_ct > 1) AS retried,
                         coalesce(sum(run), 0) AS busy_seconds,
                         slice(sort_array(collect_list(CASE WHEN read_ct >= {POISONOUS}
                             THEN struct(-read_ct AS rank, id, state) END)), 1, {LONGEST_LIST})
                             AS poison,
                         sort_array(collect_list(wait)) AS waits,
                         sort_array(collect_list(run)) AS runs
                  FROM pgqueue_ended GROUP BY queue, bucket)
            """
        ).collect():
            told = row.asDict()
            key = told.pop("queue"), told.pop("bucket")
            counts[key] = told.pop("count")
            told["poison"] = [
                {"id": pk, "read_ct": -rank, "state": state} for rank, pk, state in row.poison
            ]
            rows[key].update(told)
        return counts

    def _counted(self, rows: dict[Key, dict[str, Any]]) -> dict[Key, int]:
        """How often each value comes, in one pass for all that is counted so; returns what was
        sent. Histograms have quarters of octaves: narrow enough for a chart, and they can be
        added up."""
        place = "cast(floor(4 * log2(greatest({}, 1e-6))) AS string)"
        sent: dict[Key, int] = {}
        for queue, bucket, kind, number, found in self.spark.sql(
            f"""
            SELECT queue, bucket, kind, size(found) AS number,
                   CASE WHEN kind IN ('error', 'group') THEN slice(found, 1, {LONGEST_LIST})
                        ELSE found END AS found
            FROM (SELECT queue, bucket, kind,
                         sort_array(collect_list(struct(-count AS rank, value))) AS found
                  FROM (SELECT queue, bucket, kind, value, count(*) AS count
                        FROM (SELECT queue, stack(5,
                                  'wait', bucket, {place.format("wait")},
                                  'run', bucket, {place.format("run")},
                                  'error', bucket, error,
                                  'group', bucket, group_key,
                                  'sent', sent_bucket, '') AS (kind, bucket, value)
                              FROM pgqueue_ended)
                        WHERE value IS NOT NULL GROUP BY queue, bucket, kind, value)
                  GROUP BY queue, bucket, kind)
            """
        ).collect():
            counts = {value: -rank for rank, value in found}
            if kind == "sent":
                sent[queue, bucket] = counts[""]
                continue
            row = rows[queue, bucket]
            if kind == "error":
                row["top_errors"] = [{"error": e, "count": count} for e, count in counts.items()]
            elif kind == "group":
                group, count = next(iter(counts.items()))
                row["groups"], row["top_group"] = number, {"group": group, "count": count}
            else:
                row[f"{kind}_histogram"] = counts
        return sent

    def _dead_letters(self, rows: dict[Key, dict[str, Any]], live: dict[Key, int]) -> None:
        counts = defaultdict(int, live)
        names = self.connection.execute(
            "SELECT name FROM pgqueue_queue d WHERE EXISTS "
            "(SELECT FROM pgqueue_queue q WHERE q.dead_letter_queue_id = d.id)"
        ).fetchall()
        if names:
            letters = self.reader.options(
                subscribe=",".join(name for (name,) in names), columns="headers"
            ).load()
            told = "get_json_object(headers, '$.x-dead-letter.%s')"
            letters = letters.where("headers IS NOT NULL").selectExpr(
                f"{told % 'source'} AS queue",
                f"{self._bucket_of('to_timestamp(' + told % 'dead_lettered_at' + ')')} AS bucket",
            )
            for row in (
                letters.where("queue IS NOT NULL").groupBy("queue", "bucket").count().collect()
            ):
                counts[row.queue, row.bucket] += row["count"]
        for key, count in counts.items():
            if self._is_inside(key):
                rows[key]["dead_lettered"] = count

    def _backlog(
        self,
        rows: dict[Key, dict[str, Any]],
        sent: dict[Key, int],
        live: dict[Key, int],
        ended: dict[Key, int],
    ) -> None:
        """Sent before a span's end and not ended by then; spans in between have one too."""
        change: dict[Key, int] = defaultdict(int)
        for counts in (sent, live):
            for key, count in counts.items():
                change[key] += count
                if self._is_inside(key):
                    rows[key]["sent"] = rows[key].get("sent", 0) + count
        for key, count in ended.items():
            change[key] -= count
        for queue in {queue for queue, _ in change}:
            backlog = 0
            places = sorted(bucket for name, bucket in change if name == queue)
            for place, following in zip(places, [*places[1:], self.end], strict=True):
                backlog += change[queue, place]
                first = max(place, self.start)
                for bucket in range(first, min(following, self.end), self.seconds):
                    if backlog or (queue, bucket) in rows:
                        rows[queue, bucket]["backlog"] = backlog


def _percentile(values: str, part: float) -> str:
    """As percentile_cont, of a sorted array. Spark's own counts each distinct value in a map, which
    takes ten times as long."""
    place = f"({part}D * (size({values}) - 1))"
    below = f"get({values}, cast(floor{place} AS int))"
    above = f"get({values}, cast(ceil{place} AS int))"
    return f"{below} + ({place} - floor{place}) * ({above} - {below})"


_COLUMNS: dict[str, Any] = {
    "sent": 0,
    "completed": 0,
    "failed": 0,
    "retried": 0,
    "dead_lettered": 0,
    "backlog": 0,
    "busy_seconds": 0.0,
    "wait_p50": None,
    "wait_p95": None,
    "wait_p99": None,
    "run_p50": None,
    "run_p95": None,
    "run_p99": None,
    "wait_histogram": {},
    "run_histogram": {},
    "groups": 0,
    "top_group": None,
    "poison": [],
    "top_errors": [],
}


def _save(
    connection: psycopg.Connection[Any],
    rows: dict[Key, dict[str, Any]],
    seconds: int,
    start: int,
    end: int,
    snapshot: Snapshot,
    system: str,
    started_at: dt.datetime,
) -> int:
    """Replace the roll-ups of a span at once; returns how many went because they are empty."""
    names = list(_COLUMNS)
    # JSON as text, NULL as NULL: what a plain tuple of parameters can hold.
    values = [
        [queue, seconds, _moment(bucket), *(_value(found.get(n, _COLUMNS[n])) for n in names)]
        for (queue, bucket), found in rows.items()
    ]
    updates = ", ".join(f"{name} = excluded.{name}" for name in names)
    places = ", ".join(["%s"] * (3 + len(names)))
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('pgqueue rollup'), %s)", [seconds])
        cursor.executemany(
            f"INSERT INTO pgqueue_rollup (queue_name, seconds, bucket, {', '.join(names)}, "
            f"computed_at) VALUES ({places}, now()) "
            f"ON CONFLICT (queue_name, seconds, bucket) DO UPDATE SET {updates}, "
            f"computed_at = excluded.computed_at",
            values,
        )
        removed = cursor.execute(
            "DELETE FROM pgqueue_rollup WHERE seconds = %s AND bucket >= %s AND bucket < %s "
            "AND computed_at < now()",
            [seconds, _moment(start), _moment(end)],
        ).rowcount
        cursor.execute(
            "INSERT INTO pgqueue_rollup_run "
            "(seconds, from_at, to_at, below_xid, buckets, removed, system, started_at) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
            [
                seconds,
                _moment(start),
                _moment(end),
                snapshot.xmin,
                len(rows),
                removed,
                system,
                started_at,
            ],
        )
    return removed


def _value(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (dict, list)) else value
