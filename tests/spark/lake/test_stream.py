"""A stream that begins in a lake: every message once, wherever it is by now."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from django_pgqueue import queue
from django_pgqueue.models import ArchivedMessage, Lake, Message
from pyspark_pgqueue.errors import DataLost, InvalidOption, LakeDiffers, ServerChanged
from pyspark_pgqueue.jobs.export import export as export_to_the_oldest_open_transaction
from pyspark_pgqueue.lake.stream import LakeTask
from pyspark_pgqueue.source.stream import ArchiveStream
from tests.actors import Actor, commit
from tests.spark.conftest import archive_late, export
from tests.spark.source.test_streaming import Stream

Finish = Callable[..., list[int]]
FinishLongAgo = Callable[[int], list[int]]
Sources = Callable[..., ArchiveStream]


class Reader:
    """Delivers what a stream has to deliver, step by step, as Spark does."""

    def __init__(self, source: ArchiveStream, most: int | None = None) -> None:
        self.source = source
        self.limit = ReadAllAvailable() if most is None else ReadMaxRows(most)
        self.at = source.initialOffset()
        self.steps: list[list[int]] = []

    def deliver(self) -> list[int]:
        """Deliver everything; returns its ids."""
        before = len(self.steps)
        while (end := self.source.latestOffset(self.at, self.limit)) != self.at:
            self.steps.append(self.read(self.source.partitions(self.at, end)))
            self.at = end
        return sorted(pk for step in self.steps[before:] for pk in step)

    def read(self, partitions: list[Any]) -> list[int]:
        batches = [batch for part in partitions for batch in self.source.read(part)]
        return [pk for batch in batches for pk in batch.column("id").to_pylist()]


def maintain() -> None:
    """Remove the messages that are older than their retention."""
    assert queue("orders").maintain().pruned


def test_stream_has_the_lakes_messages_and_then_the_archives(
    spark: Any, url: str, lake: str, tmp_path: Path, finish_long_ago: FinishLongAgo, finish: Finish
) -> None:
    old = finish_long_ago(20)
    export(spark, url, lake, holds_retention=True)
    maintain()
    new = finish("orders", 5)
    stream = Stream(spark, url, tmp_path / "checkpoint")
    options = {"lake": lake, "bodySchema": "n bigint", "columns": "id,body,queue"}

    stream.catch_up(**options)
    assert stream.ids == old + new

    more = finish("orders", 5)
    stream.catch_up(**options)
    assert stream.ids == old + new + more


def test_steps_in_the_lake_end_between_transactions(
    spark: Any, url: str, lake: str, archive_stream: Sources, finish: Finish
) -> None:
    for _ in range(2):
        archived = [*finish("orders", 30), *finish("mails", 30)]
        for _ in range(4):
            archived += finish("orders", 30)
        export(spark, url, lake)
    archived = sorted(ArchivedMessage.objects.values_list("id", flat=True))
    reader = Reader(archive_stream(lake=lake), 70)

    assert reader.deliver() == archived

    sizes = [len(step) for step in reader.steps]
    assert len(sizes) >= 4
    assert max(sizes) < 180
    assert {size % 30 for size in sizes} == {0}


def test_late_commit_that_was_exported_and_purged_is_read_from_the_lake(
    spark: Any,
    url: str,
    lake: str,
    archive_stream: Sources,
    finish_long_ago: FinishLongAgo,
    actor: Actor,
) -> None:
    first = finish_long_ago(5)
    export(spark, url, lake, holds_retention=True)
    held = archive_late(actor)
    second = finish_long_ago(5)
    reader = Reader(archive_stream(lake=lake))
    assert reader.deliver() == first + second

    actor.do(commit)
    ArchivedMessage.objects.update(
        archived_at=ArchivedMessage.objects.earliest("archived_at").archived_at
    )
    export(spark, url, lake)
    maintain()
    assert not ArchivedMessage.objects.exists()

    assert reader.deliver() == [held]


def test_stream_that_retention_has_stopped_goes_on_in_the_lake(
    spark: Any,
    url: str,
    lake: str,
    archive_stream: Sources,
    finish_long_ago: FinishLongAgo,
    finish: Finish,
) -> None:
    finish_long_ago(10)
    reader = Reader(archive_stream(), 4)
    reader.at = reader.source.latestOffset(reader.at, reader.limit)
    assert "a" in reader.at  # in the middle of a transaction
    finish_long_ago(10)
    export(spark, url, lake, holds_retention=True)
    maintain()
    new = finish("orders", 3)
    with pytest.raises(DataLost, match="set the option lake"):
        reader.deliver()

    reader.source = archive_stream(lake=lake)

    assert len(delivered := reader.deliver()) == 19
    assert delivered[-3:] == new


def test_rows_are_found_after_a_compaction_since_they_were_planned(
    spark: Any, url: str, lake: str, archive_stream: Sources, finish: Finish
) -> None:
    ids: list[int] = []
    for _ in range(3):
        ids += finish("orders", 10)
        export(spark, url, lake)
    reader = Reader(archive_stream(lake=lake, replicaTimeout="1"))
    end = reader.source.latestOffset(reader.at, reader.limit)
    partitions = reader.source.partitions(reader.at, end)
    finish("orders", 10)

    assert export(spark, url, lake, max_files=1).compacted == 1

    assert sorted(reader.read(partitions)) == ids
    # Spark repeats the batch after a restart.
    assert sorted(reader.read(reader.source.partitions(reader.at, end))) == ids
    shutil.rmtree(Path(lake) / "archive")
    with pytest.raises(LakeDiffers, match="lacks the file"):
        reader.read(partitions)


def test_dropped_queue_is_read_from_the_lake(
    spark: Any, url: str, lake: str, archive_stream: Sources, finish: Finish
) -> None:
    ids = finish("Orders", 10)
    export(spark, url, lake)
    Message.objects.drop_queue("orders")

    for chosen in ({}, {"subscribe": "orders"}, {"subscribePattern": "Ord.*"}):
        assert Reader(archive_stream(lake=lake, **chosen)).deliver() == ids
    assert Reader(archive_stream(lake=lake, subscribePattern="rders")).deliver() == []


def test_start_may_be_a_position_or_a_time_within_the_lake(
    spark: Any,
    url: str,
    lake: str,
    archive_stream: Sources,
    finish_long_ago: FinishLongAgo,
    finish: Finish,
) -> None:
    finish_long_ago(5)
    first = ArchivedMessage.objects.latest("archive_xid").archive_xid
    later = finish("orders", 5)
    export(spark, url, lake)
    yesterday = (dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=1)).isoformat()

    for start in (
        {"startingOffsets": f'{{"xid": {first + 1}}}'},
        {"startingTimestamp": yesterday},
    ):
        assert Reader(archive_stream(lake=lake, **start), 1).deliver() == later
    assert Reader(archive_stream(lake=lake, startingOffsets="latest")).deliver() == []


def test_stream_stops_where_retention_was_faster_than_the_export(
    spark: Any, url: str, lake: str, archive_stream: Sources, finish_long_ago: FinishLongAgo
) -> None:
    ids = finish_long_ago(5)
    export(spark, url, lake)
    reader, behind = Reader(archive_stream(lake=lake)), Reader(archive_stream(lake=lake))
    assert reader.deliver() == ids
    finish_long_ago(5)
    maintain()
    with pytest.raises(DataLost, match="were purged"):  # neither the archive nor the lake has them
        reader.deliver()

    export(spark, url, lake)
    last = finish_long_ago(5)

    for each in (reader, behind):
        with pytest.raises(DataLost, match=f"The lake {lake} lacks messages of queue 'orders'"):
            each.deliver()
    reader.source = archive_stream(lake=lake, failOnDataLoss="false")
    with pytest.warns(UserWarning, match="lacks messages"):
        assert reader.deliver() == last


def test_stream_tells_that_its_lake_was_exported_anew_without_what_was_purged(
    spark: Any, url: str, lake: str, archive_stream: Sources, finish_long_ago: FinishLongAgo
) -> None:
    finish_long_ago(5)
    finish_long_ago(5)
    export(spark, url, lake, holds_retention=True)
    reader = Reader(archive_stream(lake=lake), 5)
    reader.at = reader.source.latestOffset(reader.at, reader.limit)
    maintain()
    left = finish_long_ago(5)

    export(spark, url, lake, anew=True)

    with pytest.raises(DataLost, match="lacks messages of queue 'orders'"):
        reader.deliver()
    assert Reader(archive_stream(lake=lake)).deliver() == left


def test_stream_tells_that_a_queue_was_dropped_which_the_lake_never_had(
    spark: Any, url: str, lake: str, archive_stream: Sources, finish: Finish
) -> None:
    ids = finish("mails", 5)
    reader = Reader(archive_stream())
    assert reader.deliver() == ids
    finish("mails", 5)
    Message.objects.drop_queue("mails")
    last = finish("orders", 5)
    export(spark, url, lake, queues=["orders"])

    reader.source = archive_stream(lake=lake)
    with pytest.raises(DataLost, match="Queue 'mails' was dropped before this stream read"):
        reader.deliver()
    reader.source = archive_stream(lake=lake, failOnDataLoss="false")
    with pytest.warns(UserWarning, match="'mails' was dropped"):
        assert reader.deliver() == last


def test_lake_that_cannot_be_the_streams_beginning_is_refused(
    spark: Any, url: str, lake: str, archive_stream: Sources, finish: Finish, tmp_path: Path
) -> None:
    finish("orders", 5)
    finish("mails", 5)
    with pytest.raises(InvalidOption, match=f"Nothing was exported to {lake} yet"):
        archive_stream(lake=lake).initialOffset()
    export(spark, url, lake, queues=["orders"])
    for chosen in ({}, {"subscribe": "Mails,orders"}, {"subscribePattern": ".*s"}):
        with pytest.raises(InvalidOption, match="does not have the queue mails, only orders"):
            archive_stream(lake=lake, **chosen).initialOffset()
    assert len(Reader(archive_stream(lake=f"{lake}/", subscribe="Orders")).deliver()) == 5
    Lake.objects.update(system="1")
    with pytest.raises(ServerChanged, match="exported from another server"):
        archive_stream(lake=lake, subscribe="orders").initialOffset()

    stream, batch = spark.readStream.format("pgqueue"), spark.read.format("pgqueue")
    with pytest.raises(Exception, match="The option lake is for streams"):
        batch.options(url=url, lake=lake).load().collect()
    with pytest.raises(Exception, match="lake has no meaning with mode=consume"):
        stream.options(url=url, lake=lake, mode="consume", subscribe="orders").load()
    with pytest.raises(Exception, match="takes the path of its lake as an option"):
        spark.readStream.format("pgqueue").option("url", url).load(lake).writeStream.format(
            "noop"
        ).option("checkpointLocation", str(tmp_path)).start().awaitTermination(60)


def test_tasks_are_whole_directories(
    spark: Any, url: str, lake: str, archive_stream: Sources, finish: Finish
) -> None:
    ids = [pk for name in ("a", "b", "c") for pk in finish(name, 10)]
    export(spark, url, lake, body_schemas={"a": "n bigint"})
    reader = Reader(archive_stream(lake=lake, maxRecordsPerPartition="20"))
    end = reader.source.latestOffset(reader.at, reader.limit)

    tasks = [part.value for part in reader.source.partitions(reader.at, end)]

    assert [len(task.places) for task in tasks if isinstance(task, LakeTask)] == [2, 1]
    assert not any(task.lake.body_schemas for task in tasks)
    assert reader.deliver() == ids


@pytest.mark.parametrize("fails", ["true", "false"])
def test_task_finds_in_the_lake_what_retention_removed_since_it_was_planned(
    spark: Any,
    url: str,
    lake: str,
    archive_stream: Sources,
    finish_long_ago: FinishLongAgo,
    fails: str,
) -> None:
    finish_long_ago(5)
    export(spark, url, lake, holds_retention=True)
    options = {"maxRecordsPerPartition": "4", "failOnDataLoss": fails}
    reader = Reader(archive_stream(lake=lake, **options))
    reader.deliver()
    ids = finish_long_ago(10)
    end = reader.source.latestOffset(reader.at, reader.limit)
    partitions = reader.source.partitions(reader.at, end)
    assert len(partitions) == 3

    export(spark, url, lake)
    maintain()

    assert sorted(reader.read(partitions)) == ids


def test_export_after_a_query_began_does_not_set_its_offset_back(
    spark: Any,
    url: str,
    lake: str,
    archive_stream: Sources,
    finish: Finish,
    actors: Callable[[int], list[Actor]],
) -> None:
    finish("orders", 5)
    first, second = actors(2)
    archive_late(first)
    archive_late(second)
    finish("orders", 5)
    source = archive_stream(lake=lake)
    # With Trigger.AvailableNow, the query ends at this snapshot. It shows neither late message.
    source.prepareForTriggerAvailableNow()
    first.do(commit)
    export_to_the_oldest_open_transaction(spark, url, lake)

    reader = Reader(source)
    delivered = reader.deliver()
    second.do(commit)
    reader.source = archive_stream(lake=lake)
    delivered += reader.deliver()

    assert sorted(delivered) == sorted(ArchivedMessage.objects.values_list("id", flat=True))
