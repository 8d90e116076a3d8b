"""The archive as a stream: every message once, despite late commits and restarts."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from django_pgqueue import queue
from django_pgqueue.models import ArchivedMessage, Message
from pyspark_pgqueue.errors import DataLost, ServerChanged
from pyspark_pgqueue.jobs.export import export
from pyspark_pgqueue.lake.reading import read as read_lake
from pyspark_pgqueue.source import stream as streaming
from pyspark_pgqueue.source.offsets import Offset, Snapshot
from pyspark_pgqueue.source.stream import ArchiveStream
from tests.actors import Actor, commit
from tests.spark.conftest import archive_all, archive_late, purge, wait_for_commits
from tests.spark.traffic import Traffic

Finish = Callable[..., list[int]]


class Stream:
    """A query over the archive that stores each micro-batch's ids."""

    def __init__(self, spark: Any, url: str, checkpoint: Path) -> None:
        self.spark, self.url, self.checkpoint = spark, url, checkpoint
        self.batches: dict[int, list[int]] = {}

    @property
    def ids(self) -> list[int]:
        return sorted(pk for batch in self.batches.values() for pk in batch)

    def start(self, trigger: dict[str, Any], **options: Any) -> Any:
        def note(frame: Any, number: int) -> None:
            # A repeated batch replaces itself, as in an idempotent sink.
            self.batches[number] = [row.id for row in frame.collect()]

        source = self.spark.readStream.format("pgqueue").options(url=self.url, columns="id,body")
        return (
            source.options(**options)
            .load()
            .writeStream.foreachBatch(note)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**trigger)
            .start()
        )

    def catch_up(self, **options: Any) -> None:
        query = self.start({"availableNow": True}, **options)
        assert query.awaitTermination(120)


@pytest.fixture
def stream(spark: Any, url: str, tmp_path: Path) -> Stream:
    return Stream(spark, url, tmp_path / "checkpoint")


def test_stream_goes_on_where_it_stopped(stream: Stream, finish: Finish) -> None:
    first = finish("orders", 20)
    stream.catch_up()
    assert stream.ids == sorted(first)

    second = finish("orders", 10)
    stream.catch_up()

    assert stream.ids == sorted(first + second)


def test_micro_batches_are_no_larger_than_asked_for(stream: Stream, finish: Finish) -> None:
    archived = finish("orders", 25)

    stream.catch_up(maxOffsetsPerTrigger="10")

    sizes = [len(ids) for ids in stream.batches.values() if ids]
    assert sizes == [10, 10, 5]
    assert stream.ids == sorted(archived)


def test_transaction_that_commits_late_is_delivered_late_and_holds_up_nobody(
    stream: Stream, finish: Finish, actor: Actor
) -> None:
    early = finish("orders", 3)
    held = archive_late(actor)
    later = finish("orders", 3)

    stream.catch_up()
    assert stream.ids == sorted(early + later)

    actor.do(commit)
    stream.catch_up()
    assert stream.ids == sorted([*early, *later, held])


def test_micro_batch_waits_for_enough_rows_but_no_longer_than_asked(
    archive_stream: Callable[..., ArchiveStream], finish: Finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = archive_stream(minOffsetsPerTrigger="10", maxTriggerDelay="1h")
    start = source.initialOffset()
    finish("orders", 9)
    assert source.latestOffset(start, ReadAllAvailable()) == start

    finish("orders", 1)
    reached = source.latestOffset(start, ReadAllAvailable())
    assert reached != start
    finish("orders", 1)
    assert source.latestOffset(reached, ReadAllAvailable()) == reached

    later = time.monotonic() + 3601
    monkeypatch.setattr(streaming, "monotonic", lambda: later)
    assert source.latestOffset(reached, ReadAllAvailable()) != reached


def test_stream_starts_at_the_latest_when_asked_to(stream: Stream, finish: Finish) -> None:
    finish("orders", 3)
    stream.catch_up(startingOffsets="latest")

    new = finish("orders", 2)
    stream.catch_up(startingOffsets="latest")

    assert stream.ids == sorted(new)


def test_batch_that_comes_again_brings_the_same_rows(stream: Stream, finish: Finish) -> None:
    finish("orders", 20)
    stream.catch_up(maxOffsetsPerTrigger="15")
    before = dict(stream.batches)
    # As after a crash before Spark committed the last batch.
    last = str(max(before))
    for name in (last, f".{last}.crc"):
        (stream.checkpoint / "commits" / name).unlink()
    finish("orders", 5)

    stream.catch_up(maxOffsetsPerTrigger="15", maxRecordsPerPartition="3")

    assert sorted(stream.batches[int(last)]) == sorted(before[int(last)])
    assert len(stream.ids) == len(set(stream.ids)) == 25


def test_offset_moves_only_when_there_are_rows(source: ArchiveStream, finish: Finish) -> None:
    start = source.initialOffset()
    finish("orders", 5)
    reached = source.latestOffset(start, ReadAllAvailable())

    Message.objects.send("orders", 1)

    assert reached != start
    assert source.latestOffset(reached, ReadAllAvailable()) == reached


def test_step_is_cut_at_a_row_and_goes_on_behind_it(source: ArchiveStream, finish: Finish) -> None:
    finish("orders", 5)

    first = source.latestOffset(source.initialOffset(), ReadMaxRows(3))
    second = source.latestOffset(first, ReadMaxRows(3))

    assert Offset.parse(first).after is not None
    assert Offset.parse(second) == Offset(
        Offset.parse(first).until or Snapshot.below(0), system=Offset.parse(first).system
    )


def test_checkpoint_of_another_server_is_refused(
    archive_stream: Callable[..., ArchiveStream], source: ArchiveStream
) -> None:
    foreign = {**source.initialOffset(), "sys": "1"}

    with pytest.raises(ServerChanged, match="another server"):
        source.latestOffset(foreign, ReadAllAvailable())

    forgiving = archive_stream(failOnServerChange="false")
    assert forgiving.latestOffset(foreign, ReadAllAvailable())


def test_checkpoint_from_the_servers_future_is_refused(source: ArchiveStream) -> None:
    restored = {**source.initialOffset(), "s": f"{2**50}:{2**50}:"}

    with pytest.raises(ServerChanged, match="restored to an earlier state"):
        source.latestOffset(restored, ReadAllAvailable())


def test_stream_stops_where_undelivered_messages_were_purged(
    archive_stream: Callable[..., ArchiveStream], source: ArchiveStream, finish: Finish
) -> None:
    finish("orders", 5)
    reached = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    finish("orders", 5)
    purge("orders")

    with pytest.raises(DataLost, match="messages of queue 'orders' were purged"):
        source.latestOffset(reached, ReadAllAvailable())

    careless = archive_stream(failOnDataLoss="false")
    with pytest.warns(UserWarning, match="purged"):
        assert careless.latestOffset(reached, ReadAllAvailable())


def test_purging_what_was_delivered_disturbs_no_stream(
    source: ArchiveStream, finish: Finish
) -> None:
    finish("orders", 5)
    reached = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    purge("orders")

    assert source.latestOffset(reached, ReadAllAvailable()) == reached


def test_streams_and_lake_have_each_message_once_while_writers_are_rude(
    spark: Any, url: str, stream: Stream, lake: str, tmp_path: Path
) -> None:
    Message.objects.create_queue("orders")
    Message.objects.create_queue("mails", retention=dt.timedelta(seconds=1))
    from_lake = Stream(spark, url, tmp_path / "from_lake")
    run, pruned = {"processingTime": "0 seconds"}, 0

    with Traffic("orders", writers=4), Traffic("mails", writers=4):
        export(spark, url, lake, holds_retention=True)
        query = stream.start(run, subscribe="orders", maxOffsetsPerTrigger="300")
        other = from_lake.start(run, lake=lake, maxOffsetsPerTrigger="300")
        until = time.monotonic() + 6
        while time.monotonic() < until:
            export(spark, url, lake, max_files=2)
            pruned += queue("mails").maintain().pruned
        query.stop()
        other.stop()
    archive_all("orders")
    archive_all("mails")
    stream.catch_up(subscribe="orders", maxOffsetsPerTrigger="1000")
    wait_for_commits(url)
    export(spark, url, lake)
    pruned += queue("mails").maintain().pruned
    from_lake.catch_up(lake=lake, maxOffsetsPerTrigger="1000")

    archived = ArchivedMessage.objects.filter(queue__name="orders").values_list("id", flat=True)
    exported = sorted((row.queue, row.id) for row in read_lake(spark, lake, ["id"]).collect())
    assert len(archived) > 100 < pruned
    assert stream.ids == sorted(archived) == [pk for name, pk in exported if name == "orders"]
    assert from_lake.ids == sorted(pk for _, pk in exported)
