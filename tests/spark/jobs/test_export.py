"""The export: each archived message is in the lake exactly once, whatever dies meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from django_pgqueue.maintenance import lakes
from django_pgqueue.maintenance.work import Work
from django_pgqueue.models import ArchivedMessage, ExportRun, Lake, Queue
from pyspark_pgqueue.errors import (
    InvalidOption,
    JobRunning,
    LakeDiffers,
    ServerChanged,
    StoreFailed,
)
from pyspark_pgqueue.jobs import executors
from pyspark_pgqueue.jobs.export import export as export_at_once
from pyspark_pgqueue.jobs.rollup import rollup
from pyspark_pgqueue.jobs.verify import verify
from pyspark_pgqueue.lake import files
from pyspark_pgqueue.lake.reading import read as read_lake
from pyspark_pgqueue.lake.runs import LOCK
from tests.actors import Actor, commit
from tests.spark.conftest import PublishingDies, archive_late, export, exported, purge
from tests.waiting import until

Finish = Callable[..., list[int]]
ROOT = Path(__file__).resolve().parents[3]


def parquets(lake: str) -> set[str]:
    return {str(path.relative_to(lake)) for path in Path(lake).rglob("*.parquet")}


def test_each_run_adds_what_is_new(spark: Any, url: str, lake: str, finish: Finish) -> None:
    first = finish("orders", 30) + finish("mails", 20)
    assert export(spark, url, lake).rows == 50
    before = parquets(lake)

    assert export(spark, url, lake).run is None
    assert parquets(lake) == before

    second = finish("orders", 10)
    assert export(spark, url, lake).rows == 10
    assert parquets(lake) > before
    assert exported(spark, lake) == sorted(first + second)


def test_lake_reads_alike_in_spark_duckdb_and_polars(
    spark: Any, url: str, lake: str, finish: Finish
) -> None:
    duckdb = pytest.importorskip("duckdb")
    polars = pytest.importorskip("polars")
    finish("007", 30)
    finish("orders.eu", 20)
    export(spark, url, lake)
    columns = ["id", "queue", "state", "body", "headers", "read_ct"]
    pattern = f"{lake}/archive/**/*.parquet"

    rows = read_lake(spark, lake).select(*columns).collect()
    by_spark = sorted(tuple(row) for row in rows)
    by_duckdb = duckdb.sql(
        f"SELECT {', '.join(columns)} FROM read_parquet('{pattern}', hive_partitioning = true, "
        "hive_types = {'queue': VARCHAR}) ORDER BY id"
    ).fetchall()
    by_polars = (
        polars.scan_parquet(
            pattern,
            hive_partitioning=True,
            hive_schema={"queue": polars.String, "date": polars.String},
        )
        .select(columns)
        .sort("id")
        .collect()
        .rows()
    )

    assert len(by_spark) == 50
    assert {row[1] for row in by_spark} == {"007", "orders.eu"}
    assert by_spark == by_duckdb == by_polars


def test_transaction_that_is_open_is_exported_when_it_is_over(
    spark: Any, url: str, lake: str, finish: Finish, actor: Actor
) -> None:
    early = finish("orders", 3)
    held = archive_late(actor)
    later = finish("orders", 2)

    export_at_once(spark, url, lake)
    assert exported(spark, lake) == sorted(early)

    actor.do(commit)
    export(spark, url, lake)
    assert exported(spark, lake) == sorted([*early, *later, held])


def test_run_that_died_while_publishing_is_finished(
    spark: Any, url: str, lake: str, finish: Finish, publishing_dies: PublishingDies
) -> None:
    archived = finish("orders", 20) + finish("mails", 20)
    with publishing_dies():
        export(spark, url, lake)
    assert ExportRun.objects.get().state == "PUBLISHING"
    late = finish("orders", 5)

    export(spark, url, lake)

    assert exported(spark, lake) == sorted(archived + late)
    assert list(ExportRun.objects.order_by("id").values_list("state", "rows")) == [
        ("DONE", 40),
        ("DONE", 5),
    ]


def test_run_that_failed_while_writing_has_its_error_and_is_resumed_by_the_next(
    spark: Any, url: str, lake: str, finish: Finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    archived = finish("orders", 20)
    on_executors = executors.on_executors

    def fail_after(*arguments: Any) -> Any:
        on_executors(*arguments)
        raise RuntimeError("the disk burns")

    with monkeypatch.context() as patch:
        patch.setattr(executors, "on_executors", fail_after)
        with pytest.raises(RuntimeError):
            export(spark, url, lake)
    failed = ExportRun.objects.get()
    archived += finish("orders", 5)

    summary = export(spark, url, lake)

    assert (summary.rows, summary.resumed) == (25, (failed.pk,))
    assert exported(spark, lake) == sorted(archived)
    assert not any((Path(lake) / "_staging").glob("*"))
    failed.refresh_from_db()
    assert (failed.state, failed.resumed_by_id) == ("FAILED", summary.run)
    first, _, trace = failed.error.partition("\n")
    assert first == "RuntimeError: the disk burns"
    assert "in fail_after" in trace


@pytest.mark.slow
def test_driver_killed_in_the_middle_of_the_write_leaves_nothing_twice(
    spark: Any, url: str, lake: str, finish: Finish
) -> None:
    finish("orders", 20_000)
    command = [sys.executable, "-m", "pyspark_pgqueue", "export", "--url", url, lake]
    driver = subprocess.Popen(
        [*command, "--cores", "1", "--memory", "512m"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        staging = Path(lake) / "_staging"
        until(lambda: any(staging.rglob("*.parquet")) or driver.poll() is not None, 120)
        assert driver.poll() is None, "the driver ended too early"
    finally:
        # Kills the JVM and its workers too.
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    until(lambda: not is_locked(url), 120)

    summary = export(spark, url, lake)

    archived = sorted(ArchivedMessage.objects.values_list("id", flat=True))
    assert exported(spark, lake) == archived
    assert ExportRun.objects.filter(state="DONE").count() == 1
    assert summary.resumed or summary.run is None
    assert {finding.agrees for finding in verify(spark, url, lake)} == {True}


def is_locked(url: str) -> bool:
    """Whether the server still holds a dead process's lock."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' "
            "AND classid = hashtext(%s)::oid",
            [LOCK],
        ).fetchone()
    return bool(row and row[0])


def test_first_export_that_fails_is_seen_and_binds_nothing(
    spark: Any, url: str, lake: str, finish: Finish
) -> None:
    archived = finish("mails", 2)
    Path(lake).write_text("a file")

    with pytest.raises(StoreFailed):
        export(spark, url, lake, queues=["orders"], holds_retention=True)

    failed = ExportRun.objects.get()
    assert (failed.state, failed.lake.path) == ("FAILED", lake)
    assert "Choose a directory" in failed.error
    assert [each.failures for each in lakes.health("default", 10)] == [1]
    assert not failed.lake.holds_retention
    Path(lake).unlink()
    # A lake of another database is still refused.
    stranger = Path(lake, "archive", "queue=mails", "date=2026-01-01", "run-1.parquet")
    stranger.parent.mkdir(parents=True)
    stranger.touch()
    with pytest.raises(InvalidOption, match="already has files of a lake"):
        export(spark, url, lake)
    shutil.rmtree(lake)

    export(spark, url, lake)

    assert exported(spark, lake) == sorted(archived)


def test_two_exports_to_one_lake_do_not_run_at_once(
    spark: Any, url: str, lake: str, finish: Finish
) -> None:
    finish("orders", 3)
    export(spark, url, lake)

    with psycopg.connect(url, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(hashtext(%s), hashtext(%s))", [LOCK, lake])
        with pytest.raises(JobRunning, match="Another process"):
            export(spark, url, lake)


def test_many_small_files_become_one(spark: Any, url: str, lake: str, finish: Finish) -> None:
    archived = [
        pk for _ in range(4) for pk in [*finish("orders", 3), *export_now(spark, url, lake)]
    ]
    assert len(parquets(lake)) == 4

    summary = export(spark, url, lake, max_files=3)

    assert summary.compacted == 1
    assert len(parquets(lake)) == 1
    assert exported(spark, lake) == sorted(archived)
    assert {finding.agrees for finding in verify(spark, url, lake)} == {True}


def export_now(spark: Any, url: str, lake: str) -> list[int]:
    export(spark, url, lake)
    return []


def test_lake_whose_first_export_failed_holds_no_retention(
    spark: Any, url: str, lake: str, finish: Finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish("orders", 3)
    work = Work(Queue.objects.resolve("orders"), 1, 1, print)
    Path(lake).touch()
    with pytest.raises(StoreFailed, match="Choose a directory"):
        export(spark, url, lake, holds_retention=True)
    assert lakes.exported_below(work) is None

    Path(lake).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(executors, "on_executors", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            export(spark, url, lake, holds_retention=True)
    assert lakes.exported_below(work) is None

    export(spark, url, lake)
    assert lakes.exported_below(work) is not None


def test_export_whose_store_fails_is_a_failed_run_of_its_lake(
    spark: Any, url: str, lake: str, finish: Finish
) -> None:
    finish("orders", 3)
    export(spark, url, lake)
    shutil.rmtree(lake)
    Path(lake).touch()

    for _ in range(2):
        with pytest.raises(StoreFailed):
            export(spark, url, lake, anew=True)

    [health] = lakes.health("default", 10)
    assert (health.failures, health.running) == (2, False)
    assert "Choose a directory" in health.error


def test_retention_is_told_how_far_the_lake_is(
    spark: Any, url: str, lake: str, finish: Finish
) -> None:
    finish("orders", 3)
    work = Work(Queue.objects.resolve("orders"), 1, 1, print)

    export(spark, url, lake, holds_retention=True)

    held = lakes.exported_below(work)
    assert held is not None
    assert not ArchivedMessage.objects.filter(archive_xid__gte=held).exists()


def test_lake_of_some_queues_takes_no_others(
    spark: Any, url: str, lake: str, finish: Finish
) -> None:
    orders = finish("orders", 3)
    finish("mails", 3)

    export(spark, url, lake, queues=["Orders"])

    assert exported(spark, lake) == sorted(orders)
    with pytest.raises(InvalidOption, match="would be missing"):
        export(spark, url, lake, queues=["mails"])


@pytest.mark.parametrize("change", [{"exported_below": 2**50}, {"system": "another"}])
def test_lake_of_a_restored_server_is_not_added_to_but_can_be_made_anew(
    spark: Any, url: str, lake: str, finish: Finish, change: dict[str, Any]
) -> None:
    archived = finish("orders", 3)
    export(spark, url, lake)
    Lake.objects.update(**change)

    with pytest.raises(ServerChanged, match="--anew"):
        export(spark, url, lake)

    assert export(spark, url, lake, anew=True).rows == 3
    assert exported(spark, lake) == sorted(archived)


def test_lake_with_runs_is_deleted_by_plain_sql_and_made_again(
    spark: Any, url: str, lake: str, finish: Finish
) -> None:
    archived = finish("orders", 3)
    export(spark, url, lake)
    with psycopg.connect(url) as connection:
        connection.execute("DELETE FROM pgqueue_lake WHERE path = %s", [lake])
    assert not ExportRun.objects.exists()

    with pytest.raises(InvalidOption, match="duplicated"):
        export(spark, url, lake)
    assert not Lake.objects.exists()

    export(spark, url, lake, anew=True)
    assert exported(spark, lake) == sorted(archived)


def test_archive_that_came_with_a_dump_is_refused_by_all_that_read_it(
    spark: Any, url: str, lake: str, finish: Finish, tmp_path: Path
) -> None:
    finish("orders", 3)
    ArchivedMessage.objects.update(archive_xid=2**50)
    frame = spark.readStream.format("pgqueue").options(url=url).load()
    query = frame.writeStream.format("noop").trigger(availableNow=True)
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))

    with pytest.raises(ServerChanged, match="restored from a dump"):
        export_at_once(spark, url, lake)
    with pytest.raises(ServerChanged, match="restored from a dump"):
        rollup(url)
    with pytest.raises(Exception, match="restored from a dump"):
        spark.read.format("pgqueue").options(url=url).load().collect()
    with pytest.raises(Exception, match="restored from a dump"):
        query.start().awaitTermination(120)


def test_verification_finds_a_missing_file(spark: Any, url: str, lake: str, finish: Finish) -> None:
    finish("orders", 30)
    finish("mails", 20)
    export(spark, url, lake)
    assert [finding.agrees for finding in verify(spark, url, lake)] == [True, True]
    assert verify(spark, url, lake) == []

    next((Path(lake) / "archive" / "queue=mails").rglob("*.parquet")).unlink()

    found = {finding.queue: finding for finding in verify(spark, url, lake, every=True)}
    assert (found["orders"].agrees, found["mails"].agrees) == (True, False)
    assert (found["mails"].in_lake, found["mails"].expected) == (0, 20)


def test_verification_compares_with_earlier_checksums_once_the_database_is_purged(
    spark: Any, url: str, lake: str, finish: Finish
) -> None:
    finish("orders", 30)
    export(spark, url, lake)
    verify(spark, url, lake)
    purge("orders")
    ArchivedMessage.objects.all().delete()

    (finding,) = verify(spark, url, lake, every=True)

    assert (finding.compared_with, finding.agrees) == ("earlier checksum", True)


def test_lake_has_an_address_where_it_has_no_path(
    spark: Any, url: str, lake: str, finish: Finish
) -> None:
    ids = finish("orders", 10)

    export(spark, url, f"file://{lake}")

    assert exported(spark, f"file://{lake}") == ids
    assert [finding.agrees for finding in verify(spark, url, f"file://{lake}")] == [True]


@pytest.mark.parametrize("address", ["nowhere://bucket/lake", "ftp2://host/lake"])
def test_address_that_cannot_be_written_to_is_refused_and_nothing_noted(
    spark: Any, url: str, address: str
) -> None:
    with pytest.raises(InvalidOption, match="s3://, gs://"):
        export(spark, url, address)

    assert not Lake.objects.exists()


def test_lost_file_of_a_half_published_run_is_not_passed_over(tmp_path: Path) -> None:
    moved = {"to": "archive/a.parquet", "rows": 1, "bytes": 1}

    with pytest.raises(LakeDiffers, match="neither exists"):
        files.publish(str(tmp_path), [moved])


def test_a_lake_of_named_queues_goes_on_when_one_of_them_is_dropped(
    spark: Any, url: str, lake: str, finish: Finish
) -> None:
    finish("mails", 3)
    found = finish("orders", 2)
    named = {"queues": ["orders", "mails"]}
    export(spark, url, lake, **named)
    Queue.objects.get(name="mails").delete()
    found += finish("orders", 2)

    assert export(spark, url, lake, **named).rows == 2
    assert set(found) < set(exported(spark, lake))
