"""Reads from a physical standby return everything that was planned, or fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from environ import Env
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructField, StructType

from pyspark_pgqueue.errors import ReplicaLags
from pyspark_pgqueue.source import arrow, database, planning
from pyspark_pgqueue.source.offsets import Offset
from pyspark_pgqueue.source.options import FROM_THE_START, Options
from pyspark_pgqueue.source.stream import ArchiveStream
from tests.actors import Actor, call, manage
from tests.servers import copy, two_servers
from tests.waiting import until

pytestmark = pytest.mark.slow


@dataclass
class Pair:
    """A primary and its standby."""

    primary: str
    standby: str
    archive: Callable[[int], None]

    def on_standby(self, statement: str) -> Any:
        with psycopg.connect(self.standby, autocommit=True) as connection:
            return connection.execute(statement).fetchone()

    def pause(self) -> None:
        """Let the standby receive, but not replay."""
        self.on_standby("SELECT pg_wal_replay_pause()")
        until(lambda: self.on_standby("SELECT pg_get_wal_replay_pause_state()") == ("paused",), 30)

    def resume(self) -> None:
        self.on_standby("SELECT pg_wal_replay_resume()")


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    settings = {"shared_buffers": "32MB", "max_connections": "50"}
    with (
        two_servers(settings) as (primary, standby),
        primary,
        Actor({"default": Env.db_url_config(primary.url())}) as other,
    ):
        other.do(manage, "migrate", verbosity=0)
        other.do(call, "create_queue", "orders")

        def archive(count: int) -> None:
            other.do(call, "send_batch", "orders", [{"n": n} for n in range(count)])
            messages = other.do(call, "read", "orders", qty=count)
            other.do(call, "archive", "orders", [message.receipt for message in messages])

        copy(primary, standby)
        with standby:
            yield Pair(primary.url(), standby.url(), archive)


@pytest.fixture
def paused(pair: Pair) -> Iterator[Pair]:
    """A standby that shows the first ten messages, and none of the next ten."""
    pair.archive(10)
    caught_up(pair)
    pair.pause()
    pair.archive(10)
    yield pair
    pair.resume()


def count(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM pgqueue_archive").fetchone()
    assert row is not None
    return int(row[0])


def caught_up(pair: Pair) -> None:
    until(lambda: count(pair.standby) >= count(pair.primary), 30)


def read(url: str, tasks: list[planning.Task], patience: float) -> int:
    return sum(batch.num_rows for task in tasks for batch in arrow.batches(url, task, patience))


def test_task_on_a_lagging_replica_waits_and_then_fails(paused: Pair) -> None:
    with database.connect(paused.primary) as connection:
        end = Offset(database.server(connection).now)
        options = Options.parse({"url": paused.primary})
        queues = database.queues(connection, options)
        tasks = planning.cut_by_position(
            connection, options, ["id", "body"], queues, start=FROM_THE_START, end=end
        )
    there = count(paused.primary)
    assert count(paused.standby) == there - 10

    with pytest.raises(ReplicaLags, match="replicaTimeout"):
        read(paused.standby, tasks, 0.3)

    paused.resume()
    assert read(paused.standby, tasks, 30) == there


def test_stream_that_is_ahead_of_a_replica_waits_for_it(paused: Pair) -> None:
    def stream(url: str) -> ArchiveStream:
        return ArchiveStream(
            Options.parse({"url": url}), StructType([StructField("id", LongType())])
        )

    on_primary, on_standby = stream(paused.primary), stream(paused.standby)
    reached = on_primary.latestOffset(on_primary.initialOffset(), ReadAllAvailable())

    assert on_standby.latestOffset(reached, ReadAllAvailable()) == reached

    paused.resume()
    paused.archive(5)
    caught_up(paused)
    end = reached

    def goes_on() -> bool:
        nonlocal end
        end = on_standby.latestOffset(reached, ReadAllAvailable())
        return end != reached

    until(goes_on, 30)
    partitions = on_standby.partitions(reached, end)
    assert sum(b.num_rows for p in partitions for b in on_standby.read(p)) == 5
    for each in (on_primary, on_standby):
        each.stop()


def test_spark_reads_from_a_standby(spark: Any, pair: Pair) -> None:
    pair.archive(20)
    caught_up(pair)

    frame = spark.read.format("pgqueue").options(url=pair.standby, columns="id,body").load()

    assert frame.distinct().count() == count(pair.primary)
