"""Checks that a lake has the same messages as the database, by counts and checksums per run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from pyspark_pgqueue.jobs.progress import Progress, quiet
from pyspark_pgqueue.lake import files, iceberg, reading, runs
from pyspark_pgqueue.lake.stores import address
from pyspark_pgqueue.source import database

Sums = dict[str, list[int]]


@dataclass(frozen=True)
class Finding:
    """The comparison of one queue in one run."""

    run: int | None  # None compares all runs at once
    queue: str
    in_lake: int
    expected: int
    compared_with: str  # database, earlier checksum, recorded count, or the Iceberg table
    agrees: bool

    def __str__(self) -> str:
        word = "agrees with" if self.agrees else "DIFFERS from"
        run = "All runs" if self.run is None else f"Run {self.run}"
        return (
            f"{run}, queue {self.queue}: the lake ({self.in_lake:,} messages) "
            f"{word} the {self.compared_with} ({self.expected:,})."
        )


def verify(
    spark: Any,
    url: str,
    path: str,
    *,
    every: bool = False,
    progress: Progress = quiet,
) -> list[Finding]:
    """Compare each finished run that was not verified before, or every run.

    A run whose messages were purged from the database is compared with the checksums of its last
    verification, or else with the count that the export recorded. If the lake is an Iceberg table,
    the table is compared with the files.

    >>> all(finding.agrees for finding in verify(spark, url, "/lake"))
    True
    """
    path, findings = address(path), list[Finding]()
    with database.connect(url) as connection:
        lake = runs.known(connection, path)
        finished = connection.execute(
            "SELECT id, from_xid, to_xid, coalesce(manifest -> 'queues', '{}'), "
            "coalesce(checksums, '{}') FROM pgqueue_export_run WHERE lake_id = %s "
            "AND kind = 'EXPORT' AND state = 'DONE' AND (%s OR verified_at IS NULL) ORDER BY id",
            [lake.id, every],
        ).fetchall()
        for done, (run, low, high, counts, checksums) in enumerate(finished):
            progress("runs", done, len(finished))
            kept = _in_lake(spark, path, low, high)
            there = _in_database(connection, lake.queues, low, high)
            purged = _purged(connection, low)
            found = []
            for queue in sorted({*kept, *there, *counts}):
                mine = kept.get(queue, [0, 0])
                if queue not in purged:
                    theirs, what = there.get(queue, [0, 0]), "database"
                elif queue in checksums:
                    theirs, what = checksums[queue], "earlier checksum"
                else:
                    theirs, what = [counts.get(queue, 0), mine[1]], "recorded count"
                found.append(Finding(run, queue, mine[0], theirs[0], what, mine == theirs))
            findings += found
            if all(finding.agrees for finding in found):
                connection.execute(
                    "UPDATE pgqueue_export_run SET verified_at = clock_timestamp(), "
                    "checksums = %s WHERE id = %s",
                    [json.dumps(kept), run],
                )
    return findings + (_in_table(spark, path, lake.table) if lake.table else [])


def _in_lake(spark: Any, path: str, low: int, high: int) -> Sums:
    if not files.files_in(path):
        return {}
    reading.read(spark, path).createOrReplaceTempView("pgqueue_verified")
    rows = spark.sql(database.sql("jobs/verify/spark", low=low, high=high)).collect()
    return {str(row[0]): [int(row[1]), int(row[2])] for row in rows}


def _in_table(spark: Any, path: str, table: str) -> list[Finding]:
    """Compare the numbers of messages in an Iceberg table and in the lake's files, by queue."""
    kept: dict[str, int] = {}
    if files.files_in(path):
        rows = reading.read(spark, path, ["id"]).groupBy("queue").count()
        kept = {row[0]: row[1] for row in rows.collect()}
    there = iceberg.counts(table)
    return [
        Finding(
            None,
            queue,
            kept.get(queue, 0),
            there.get(queue, 0),
            f"table {table}",
            kept.get(queue) == there.get(queue),
        )
        for queue in sorted({*kept, *there})
    ]


def _in_database(
    connection: psycopg.Connection[Any], names: Sequence[str], low: int, high: int
) -> Sums:
    rows = connection.execute(
        database.sql("jobs/verify/postgres"),
        {"low": low, "high": high, "all": not names, "names": [name.lower() for name in names]},
    )
    return {name: [int(count), int(checksum)] for name, count, checksum in rows}


def _purged(connection: psycopg.Connection[Any], low: int) -> set[str]:
    """Queues from which messages archived by transaction ``low`` or later may have been removed."""
    rows = connection.execute(
        "SELECT q.name FROM pgqueue_purge_mark p JOIN pgqueue_queue q ON q.id = p.queue_id "
        "WHERE p.below_xid > %s",
        [low],
    )
    return {name for (name,) in rows}
