"""Retention and the pipeline: exported messages are removed, and removed ones are reported."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from django_pgqueue import queue
from django_pgqueue.models import ArchivedMessage, Message
from pyspark_pgqueue.errors import DataLost
from pyspark_pgqueue.jobs.verify import verify
from pyspark_pgqueue.lake.reading import read as read_lake
from pyspark_pgqueue.source import purges
from pyspark_pgqueue.source.stream import ArchiveStream
from tests.spark.conftest import export
from tests.spark.source.test_reading import planned, run
from tests.spark.source.test_streaming import Stream

Finish = Callable[[int], list[int]]


def kept() -> list[int]:
    return sorted(ArchivedMessage.objects.values_list("id", flat=True))


def test_retention_takes_what_is_exported_and_leaves_the_rest(
    spark: Any, url: str, lake: str, finish_long_ago: Finish
) -> None:
    first = finish_long_ago(30)
    export(spark, url, lake, holds_retention=True)
    second = finish_long_ago(20)

    maintained = queue("orders").maintain()

    assert (maintained.pruned, maintained.held) == (30, 20)
    assert kept() == second

    assert export(spark, url, lake).rows == 20
    assert queue("orders").maintain().pruned == 20
    assert kept() == []
    assert sorted(row.id for row in read_lake(spark, lake).collect()) == first + second


def test_lake_and_database_agree_after_retention(
    spark: Any, url: str, lake: str, finish_long_ago: Finish
) -> None:
    for verified in (True, False):
        finish_long_ago(10)
        export(spark, url, lake, holds_retention=True)
        if verified:
            verify(spark, url, lake)
    queue("orders").maintain()

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
    queue("orders").maintain()
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

    queue("orders").maintain()

    with pytest.raises(DataLost):
        list(source.read(partition))
    with pytest.raises(DataLost):  # Spark repeats the batch after a restart
        source.partitions(start, end)


def test_task_of_a_stream_that_may_lose_messages_gives_what_is_left(
    archive_stream: Callable[..., ArchiveStream], finish_long_ago: Finish
) -> None:
    careless = archive_stream(failOnDataLoss="false")
    finish_long_ago(1)
    start = careless.latestOffset(careless.initialOffset(), ReadAllAvailable())
    finish_long_ago(10)
    end = careless.latestOffset(start, ReadAllAvailable())
    queue("orders").maintain()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        partitions = careless.partitions(start, end)

    assert ["purged" in str(warning.message) for warning in told] == [True]
    assert [batch for p in partitions for batch in careless.read(p) if batch.num_rows] == []


def test_batch_read_beside_retention_is_whole_or_an_error(
    url: str, finish_long_ago: Finish
) -> None:
    ids = finish_long_ago(3000)
    options, tasks = planned(url, maxRecordsPerPartition="500")
    assert len(tasks) > 2
    assert run(options, tasks) == sorted(ids)

    queue("orders").maintain()

    with pytest.raises(DataLost, match="after this read was planned"):
        run(options, tasks)
    careless, tasks = planned(url, failOnDataLoss="false")
    assert set(run(careless, tasks)) < set(ids)


def test_batch_read_is_whole_where_retention_works_on_another_queue(
    url: str, finish_long_ago: Finish, finish: Callable[..., list[int]]
) -> None:
    finish_long_ago(50)
    mails = finish("mails", 50)
    options, tasks = planned(url, subscribe="mails")

    queue("orders").maintain()

    assert run(options, tasks) == sorted(mails)


def test_batch_read_sees_all_of_a_task_or_none(
    url: str, finish_long_ago: Finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = finish_long_ago(300)
    options, tasks = planned(url)
    check = purges.Guard.check

    def prune_after(guard: purges.Guard, marks: Any) -> None:
        check(guard, marks)
        queue("orders").maintain()

    monkeypatch.setattr(purges.Guard, "check", prune_after)

    assert run(options, tasks) == sorted(ids)
    assert kept() == []


def test_batch_read_from_an_offset_refuses_what_was_purged_behind_it(
    spark: Any, url: str, finish_long_ago: Finish
) -> None:
    finish_long_ago(1)
    first = ArchivedMessage.objects.latest("archive_xid").archive_xid
    finish_long_ago(5)
    queue("orders").maintain()
    frame = spark.read.format("pgqueue").options(url=url, startingOffsets=f'{{"xid": {first}}}')

    with pytest.raises(Exception, match="failOnDataLoss=false"):
        frame.load().collect()

    assert frame.option("failOnDataLoss", "false").load().count() == 0


@pytest.mark.parametrize("chosen", [{}, {"subscribe": "orders,mails"}])
def test_stream_tells_that_a_queue_was_dropped_before_it_was_read(
    spark: Any,
    url: str,
    tmp_path: Path,
    finish: Callable[..., list[int]],
    chosen: dict[str, str],
) -> None:
    stream = Stream(spark, url, tmp_path / "checkpoint")
    delivered = finish("orders", 5) + finish("mails", 5)
    stream.catch_up(**chosen)
    finish("orders", 30)
    Message.objects.drop_queue("orders")
    more = finish("mails", 5)

    with pytest.raises(Exception, match="Queue 'orders' was dropped before this stream read"):
        stream.catch_up(**chosen)
    stream.catch_up(failOnDataLoss="false", **chosen)

    assert stream.ids == sorted(delivered + more)


@pytest.mark.parametrize(
    ("chosen", "has_orders"),
    [
        ({"subscribePattern": "mail.*"}, False),
        ({"subscribePattern": ".*s"}, True),
        ({"subscribe": "orders,mails"}, True),
    ],
)
def test_stream_is_not_stopped_by_a_dropped_queue_that_it_has_read_or_does_not_read(
    spark: Any,
    url: str,
    tmp_path: Path,
    finish: Callable[..., list[int]],
    chosen: dict[str, str],
    has_orders: bool,
) -> None:
    stream = Stream(spark, url, tmp_path / "checkpoint")
    delivered = finish("mails", 5)
    finish("other", 5)
    if has_orders:
        delivered += finish("orders", 5)
    stream.catch_up(**chosen)
    if not has_orders:
        finish("orders", 5)
    Message.objects.drop_queue("orders")
    delivered += finish("mails", 5)

    stream.catch_up(**chosen)

    assert stream.ids == sorted(delivered)


def test_task_notices_that_its_queue_was_dropped_since_it_was_planned(
    source: ArchiveStream, finish: Callable[..., list[int]]
) -> None:
    finish("orders", 1)
    start = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    finish("orders", 10)
    (partition,) = source.partitions(start, source.latestOffset(start, ReadAllAvailable()))

    Message.objects.drop_queue("orders")

    with pytest.raises(DataLost, match="was dropped"):
        list(source.read(partition))


def test_export_names_the_queues_that_retention_took_messages_of(
    spark: Any, url: str, lake: str, finish_long_ago: Finish
) -> None:
    finish_long_ago(5)
    export(spark, url, lake)
    finish_long_ago(5)
    queue("orders").maintain()
    finish_long_ago(2)
    told: list[str] = []

    assert export(spark, url, lake, tell=told.append).rows == 2

    assert any("lacks messages of queue 'orders'" in line for line in told)


def test_first_export_has_what_retention_has_left(
    spark: Any, url: str, lake: str, finish_long_ago: Finish
) -> None:
    finish_long_ago(5)
    queue("orders").maintain()
    left = finish_long_ago(2)

    assert export(spark, url, lake).rows == 2
    assert sorted(row.id for row in read_lake(spark, lake).collect()) == left
