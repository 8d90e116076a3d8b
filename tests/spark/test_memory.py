"""A task holds a few record batches in memory, never a whole partition."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as dataset

from pyspark_pgqueue.jobs import executors
from pyspark_pgqueue.lake import files
from pyspark_pgqueue.sink import staging

MEGABYTE = 1024 * 1024
DAY = dt.datetime(2026, 1, 5, tzinfo=dt.timezone.utc)


def batch(number: int, size: int) -> pa.RecordBatch:
    """A batch of 8 KB messages from several days, with a total of ``size`` bytes."""
    count = size // 8192
    moments = [DAY + dt.timedelta(days=(number + n) % 5) for n in range(count)]
    return pa.RecordBatch.from_pydict(
        {
            "id": pa.array(range(number * count, (number + 1) * count), pa.int64()),
            "archive_xid": pa.array([number] * count, pa.int64()),
            "archived_at": pa.array(moments, pa.timestamp("us", tz="UTC")),
            "state": pa.array(["COMPLETED"] * count),
            "group_key": pa.array([None] * count, pa.string()),
            "error": pa.array([None] * count, pa.string()),
            "body": pa.array([f"{number}" * (8192 // len(str(number)))] * count),
            "queue": pa.array(["orders"] * count),
        }
    )


def test_export_holds_no_partition_in_memory(tmp_path: Path) -> None:
    held: list[int] = []
    before = pa.total_allocated_bytes()

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(300):
            yield batch(number, MEGABYTE)
            held.append(pa.total_allocated_bytes() - before)

    found = files.write(str(tmp_path), 1, 0, batches())

    assert max(held) < 160 * MEGABYTE
    assert len(found) == 5
    files.publish(str(tmp_path), found)
    written = dataset.dataset([tmp_path / file["to"] for file in found], format="parquet")
    ids = written.to_table(columns=["id"]).column("id").to_pylist()
    assert sorted(ids) == list(range(300 * 128))
    assert sum(file["rows"] for file in found) == 300 * 128


def test_compaction_keeps_every_row(tmp_path: Path) -> None:
    found = []
    for number in range(4):
        rows = (batch(5 * n, 8 * MEGABYTE) for n in range(10))
        found += files.write(str(tmp_path), 1, number, rows)
    files.publish(str(tmp_path), found)
    directory = found[0]["to"].rpartition("/")[0]
    places = [file["to"] for file in found if file["to"].startswith(directory)]
    rows_of = sum(file["rows"] for file in found if file["to"].startswith(directory))

    (merged,) = files.merge(str(tmp_path), 2, 0, files.Merge(places), {})

    assert merged["rows"] == rows_of
    assert merged["to"].startswith(directory)


def test_workers_share_what_they_import(spark: Any) -> None:
    def parent(number: int, _: None) -> str:
        return Path(f"/proc/{os.getppid()}/cmdline").read_text()

    parents = set(executors.on_executors(spark, parent, [None, None]))

    assert len(parents) == 1
    assert "pyspark_pgqueue.daemon" in parents.pop()


def test_sink_escapes_a_large_batch_in_small_parts() -> None:
    whole = batch(1, 100 * MEGABYTE)

    parts = list(staging._slices(whole))

    assert max(part.nbytes for part in parts) < 2 * staging.SLICE
    assert pa.Table.from_batches(parts).combine_chunks().to_batches() == [whole]
