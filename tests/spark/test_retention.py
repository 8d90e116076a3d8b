"""Retention beside the pipeline: what is exported goes, and what goes is not passed over."""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db.models import F
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from django_pgqueue.models import ArchivedMessage, Message
from pyspark_pgqueue import lake as files
from pyspark_pgqueue.errors import DataLost
from pyspark_pgqueue.export import export
from pyspark_pgqueue.options import Options
from pyspark_pgqueue.stream import ArchiveStream
from pyspark_pgqueue.verify import verify
from tests.spark.conftest import wait_for_commits

DAY = dt.timedelta(days=1)

Finish = Callable[[int], list[int]]


@pytest.fixture
def finish_long_ago(finish: Callable[..., list[int]]) -> Finish:
    """Archive messages of a queue that keeps them for a day, two days ago."""

    def send_archive_and_age(count: int) -> list[int]:
        ids = finish("orders", count, retention=DAY)
        old = ArchivedMessage.objects.filter(id__in=ids)
        old.update(archived_at=F("archived_at") - 2 * DAY)
        return ids

    return send_archive_and_age


@pytest.fixture
def source(url: str) -> ArchiveStream:
    return ArchiveStream(Options.parse({"url": url}), StructType.fromDDL("id bigint, body string"))


def kept() -> list[int]:
    return sorted(ArchivedMessage.objects.values_list("id", flat=True))


def test_retention_takes_what_is_exported_and_leaves_the_rest(
    spark: Any, url: str, tmp_path: Path, finish_long_ago: Finish
) -> None:
    lake = str(tmp_path / "lake")
    first = finish_long_ago(30)
    wait_for_commits(url)
    export(spark, url, lake, holds_retention=True)
    second = finish_long_ago(20)

    upkeep = Message.objects.maintain("orders")

    assert (upkeep.pruned, upkeep.held) == (30, 20)
    assert kept() == second

    wait_for_commits(url)
    assert export(spark, url, lake).rows == 20
    assert Message.objects.maintain("orders").pruned == 20
    assert kept() == []
    assert sorted(row.id for row in files.read(spark, lake).collect()) == first + second


def test_lake_and_database_agree_after_retention(
    spark: Any, url: str, tmp_path: Path, finish_long_ago: Finish
) -> None:
    lake = str(tmp_path / "lake")
    for verified in (True, False):
        finish_long_ago(10)
        wait_for_commits(url)
        export(spark, url, lake, holds_retention=True)
        if verified:
            verify(spark, url, lake)
    Message.objects.maintain("orders")

    findings = verify(spark, url, lake, every=True)

    assert [finding.compared_with for finding in findings] == ["earlier checksum", "recorded count"]
    assert all(finding.agrees for finding in findings)


def test_stream_stops_where_retention_was_faster_and_goes_on_when_told_to(
    spark: Any, url: str, tmp_path: Path, finish_long_ago: Finish, finish: Callable[..., list[int]]
) -> None:
    seen: list[int] = []

    def catch_up(**options: str) -> None:
        frame = spark.readStream.format("pgqueue").options(url=url, columns="id", **options).load()
        query = (
            frame.writeStream.foreachBatch(
                lambda batch, _: seen.extend(row.id for row in batch.collect())
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)

    first = finish_long_ago(10)
    catch_up()
    finish_long_ago(10)
    Message.objects.maintain("orders")
    last = finish("orders", 5)

    with pytest.raises(Exception, match="were purged before this stream read them"):
        catch_up()
    assert sorted(seen) == first

    catch_up(failOnDataLoss="false")
    assert sorted(seen) == first + last


def test_task_notices_that_retention_took_its_rows_since_they_were_planned(
    source: ArchiveStream, finish_long_ago: Finish
) -> None:
    finish_long_ago(1)
    start = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    finish_long_ago(10)
    end = source.latestOffset(start, ReadAllAvailable())
    (partition,) = source.partitions(start, end)
    assert sum(batch.num_rows for batch in source.read(partition)) == 10

    Message.objects.maintain("orders")

    with pytest.raises(DataLost):
        list(source.read(partition))
    with pytest.raises(DataLost):  # the same batch again, after a restart
        source.partitions(start, end)


def test_task_of_a_stream_that_may_lose_messages_gives_what_is_left(
    url: str, finish_long_ago: Finish
) -> None:
    careless = ArchiveStream(
        Options.parse({"url": url, "failOnDataLoss": "false"}), StructType.fromDDL("id bigint")
    )
    finish_long_ago(1)
    start = careless.latestOffset(careless.initialOffset(), ReadAllAvailable())
    finish_long_ago(10)
    end = careless.latestOffset(start, ReadAllAvailable())
    Message.objects.maintain("orders")

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        partitions = careless.partitions(start, end)

    assert ["purged" in str(warning.message) for warning in told] == [True]
    assert [batch for p in partitions for batch in careless.read(p) if batch.num_rows] == []
