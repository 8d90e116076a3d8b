"""A queue as a stream: at least once; exactly once if the sink recognises batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from django_pgqueue.models import ArchivedMessage, Message, queue
from pyspark_pgqueue.consume.refusals import each_batch
from pyspark_pgqueue.consume.stream import Batch, QueueStream
from pyspark_pgqueue.errors import DataLost, InvalidOption, Refused, ServerChanged
from pyspark_pgqueue.source.options import Options
from tests.conftest import run_sql

Rows = list[Any]


class Query:
    """A stream of orders that stores the rows of each micro-batch by its number, as an idempotent
    sink does. It can fail after that, like a driver that dies before Spark commits the batch.
    """

    def __init__(self, spark: Any, url: str, checkpoint: Path) -> None:
        self.spark, self.url, self.checkpoint = spark, url, checkpoint
        self.batches: dict[int, Rows] = {}
        self.fails_in: int | None = None
        self.on_batch: Callable[[], None] | None = None

    @property
    def numbers(self) -> list[int]:
        return [row.n for number in sorted(self.batches) for row in self.batches[number]]

    def start(self, trigger: dict[str, Any], **options: str) -> Any:
        def note(frame: Any, number: int) -> None:
            rows = frame.selectExpr("*", "int(get_json_object(body, '$.n')) AS n").collect()
            self.batches[number] = rows
            if self.on_batch is not None:
                self.on_batch()
            if number == self.fails_in:
                raise RuntimeError("the driver died")

        options = {"subscribe": "orders", "mode": "consume", **options}
        return (
            self.spark.readStream.format("pgqueue")
            .options(url=self.url, **options)
            .load()
            .writeStream.foreachBatch(note)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**trigger)
            .start()
        )

    def run(self, **options: str) -> Any:
        query = self.start({"availableNow": True}, **options)
        assert query.awaitTermination(120)
        return query


@pytest.fixture
def query(spark: Any, url: str, tmp_path: Path) -> Query:
    return Query(spark, url, tmp_path / "checkpoint")


@pytest.fixture
def send(url: str) -> Callable[..., None]:
    """Send bodies numbered from ``first`` up to, but not including, ``last``."""

    def send_numbers(first: int, last: int, **options: Any) -> None:
        Message.objects.create_queue("orders")
        Message.objects.send_batch("orders", [{"n": n} for n in range(first, last)], **options)

    return send_numbers


@pytest.fixture
def stream(url: str) -> Iterator[Callable[..., QueueStream]]:
    """The reader as on the driver, without Spark."""
    made: list[QueueStream] = []

    def make(**options: str) -> QueueStream:
        given = {"url": url, "mode": "consume", "subscribe": "orders", **options}
        made.append(QueueStream(Options.parse(given), StructType.fromDDL("id bigint")))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def left() -> int:
    return Message.objects.metrics("orders").length


def taken(offset: dict[str, Any]) -> list[int]:
    return [receipt.id for each in Batch.parse(offset).deliveries for receipt in each]


def test_messages_are_archived_when_their_batch_is_committed(
    query: Query, send: Callable[..., None]
) -> None:
    send(0, 30)

    query.run()

    assert sorted(query.numbers) == list(range(30))
    assert (left(), ArchivedMessage.objects.filter(state="COMPLETED").count()) == (0, 30)


@pytest.mark.parametrize("group", [None, "g"])
def test_expired_messages_are_archived_and_not_consumed(
    query: Query, send: Callable[..., None], group: str | None
) -> None:
    send(0, 3, group=group)
    send(3, 6, group=group, expires=1e-6)
    send(6, 9, group=group, expires=3600)

    query.run()

    assert sorted(query.numbers) == [0, 1, 2, 6, 7, 8]
    assert (left(), ArchivedMessage.objects.filter(state="EXPIRED").count()) == (0, 3)


def test_stream_goes_on_with_what_was_sent_since(query: Query, send: Callable[..., None]) -> None:
    send(0, 5)
    query.run()
    send(5, 8)

    query.run()

    assert sorted(query.numbers) == list(range(8))


def test_batch_that_was_not_committed_comes_again_with_the_same_rows(
    query: Query, send: Callable[..., None]
) -> None:
    send(0, 20)
    query.fails_in = 1
    with pytest.raises(Exception, match="the driver died"):
        query.run(maxOffsetsPerTrigger="8")
    before = query.batches[1]
    send(20, 25)
    query.fails_in = None

    query.run(maxOffsetsPerTrigger="8")

    assert [row.id for row in query.batches[1]] == [row.id for row in before]
    assert {row.read_ct for row in query.batches[1]} == {2}
    assert sorted(query.numbers) == list(range(25))


def test_batch_comes_again_though_its_leases_ran_out_and_others_took_its_messages(
    stream: Callable[..., QueueStream], send: Callable[..., None]
) -> None:
    send(0, 4)
    first = stream()
    start = first.initialOffset()
    end = first.latestOffset(start, ReadMaxRows(10))
    first.stop()
    messages = Message.objects.filter(id__in=taken(end))
    Message.objects.set_vt("orders", [message.id for message in messages], 0)
    others = Message.objects.read("orders", qty=2)
    Message.objects.archive("orders", others[:1])

    again = stream()
    [partition] = again.partitions(start, end)

    assert [row for batch in again.read(partition) for row in batch.column("id").to_pylist()] == (
        taken(end)
    )
    with pytest.warns(UserWarning, match="2 messages of batch 1 are delivered again"):
        again.commit(end)
    assert again.reportLatestOffset()["redelivered"] == 2
    # The message leased by another consumer is still leased.
    assert left() == 1
    assert Message.objects.archive("orders", others[1:]) == [others[1].id]


def lapse() -> None:
    """Let all leases run out."""
    run_sql("UPDATE pgqueue_deferred SET vt = statement_timestamp() - interval '1 second'")


def test_group_that_others_read_from_comes_again_and_the_other_groups_do_not(
    stream: Callable[..., QueueStream], url: str
) -> None:
    Message.objects.create_queue("orders")
    Message.objects.send_batch("orders", list(range(200)), group=[f"g{n % 4}" for n in range(200)])
    first = stream()
    start = first.initialOffset()
    end = first.latestOffset(start, ReadMaxRows(1000))
    first.stop()
    lapse()
    [other] = queue("orders").read_grouped(qty=1)  # which sets all followers back

    again = stream()
    partitions = again.partitions(start, end)
    assert sum(rows.num_rows for each in partitions for rows in again.read(each)) == 200
    with pytest.warns(UserWarning, match="50 messages of batch 1 are delivered again"):
        again.commit(end)

    assert ArchivedMessage.objects.count() == 150
    Message.objects.archive("orders", other)
    left = queue("orders").read_grouped(qty=200)
    assert {message.group for message in left} == {other.group}
    assert len(left) == 49


class Sink:
    """A sink that knows its batches by their numbers, and fails with some rows."""

    def __init__(self, spark: Any, url: str, checkpoint: Path) -> None:
        self.spark, self.url, self.checkpoint = spark, url, checkpoint
        self.batches: dict[int, list[int]] = {}
        self.poison: set[int] = set()
        self.reads_first = False
        self.wrap: Callable[[Any], Any] = lambda function: function
        #: How often the driver dies between this sink's commit and Spark's.
        self.deaths = 0

    def store(self, frame: Any, number: int) -> Any:
        rows = frame.collect() if self.reads_first or number not in self.batches else []
        numbers = [json.loads(row.body)["n"] for row in rows]
        if found := self.poison.intersection(numbers):
            raise ValueError(f"no price for {min(found)}")
        self.batches.setdefault(number, numbers)
        if numbers and self.deaths:
            self.deaths -= 1
            raise RuntimeError("the driver died")
        return None

    def run(self, most: int = 100, **options: str) -> int:
        """Start the stream, again and again, until it ends well; returns how often it failed."""
        given = {"url": self.url, "subscribe": "orders", "mode": "consume", **options}
        for failed in range(most):
            stream = self.spark.readStream.format("pgqueue").options(**given).load()
            writer = stream.writeStream.foreachBatch(self.wrap(self.store))
            writer = writer.option("checkpointLocation", str(self.checkpoint))
            try:
                assert writer.trigger(availableNow=True).start().awaitTermination(120)
            except StreamingQueryException:
                continue
            return failed
        raise AssertionError(f"the stream failed {most} times")

    @property
    def numbers(self) -> list[int]:
        return sorted(n for batch in self.batches.values() for n in batch)


@pytest.fixture
def sink(spark: Any, url: str, tmp_path: Path) -> Sink:
    Message.objects.create_queue("dead")
    Message.objects.create_queue("orders", max_deliveries=3, dead_letter_queue="dead")
    return Sink(spark, url, tmp_path / "checkpoint")


@pytest.mark.parametrize("poison", [0, 5])
def test_poison_is_dead_lettered_and_every_other_row_arrives_once(
    sink: Sink, send: Callable[..., None], poison: int
) -> None:
    sink.poison = {poison}
    sink.wrap = partial(each_batch, url=sink.url)
    send(0, 8)

    sink.run(most=20)

    assert sink.numbers == [n for n in range(8) if n != poison]
    [dead] = Message.objects.read("dead")
    letter = dead.headers["x-dead-letter"]
    assert (dead.body, letter["reason"], letter["read_ct"]) == ({"n": poison}, "max_deliveries", 3)
    assert f"ValueError: no price for {poison}" in letter["error"]
    assert ArchivedMessage.objects.filter(state="COMPLETED").count() == 7
    assert left() == 0


def test_no_message_of_a_second_queue_is_dead_lettered_for_the_poison_of_the_first(
    sink: Sink,
) -> None:
    for name, most, first in (("early", 6, 0), ("late", 2, 2)):
        Message.objects.create_queue(name, max_deliveries=most, dead_letter_queue="dead")
        Message.objects.send_batch(name, [{"n": first}, {"n": first + 1}])
    sink.poison = {0}

    sink.run(most=20, subscribe="early,late")

    assert [message.body for message in Message.objects.read("dead", qty=4)] == [{"n": 0}]
    assert sink.numbers == [1, 2, 3]


def test_batch_that_the_sink_has_is_acknowledged_whole_however_often_the_driver_dies(
    sink: Sink, send: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    send(0, 8)
    sink.deaths = 1
    skips: list[int] = []
    store = sink.store

    def store_and_die_four_times_more(frame: Any, number: int) -> None:
        known = number in sink.batches
        store(frame, number)
        if known and len(skips) < 4:
            skips.append(number)
            raise RuntimeError("the driver died again")

    monkeypatch.setattr(sink, "store", store_and_die_four_times_more)

    assert sink.run() == 5

    assert sink.batches == {0: list(range(8))}
    assert (left(), Message.objects.metrics("dead").length) == (0, 0)


def test_batch_that_another_queue_has_is_acknowledged_whole_though_it_failed_before(
    spark: Any, sink: Sink, send: Callable[..., None]
) -> None:
    send(0, 8)

    def copy() -> Any:
        options = {"url": sink.url, "subscribe": "orders", "mode": "consume"}
        stream = spark.readStream.format("pgqueue").options(**options).load().select("body")
        writer = stream.writeStream.format("pgqueue").options(url=sink.url, queue="copies")
        writer = writer.option("checkpointLocation", str(sink.checkpoint))
        return writer.trigger(availableNow=True).start()

    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="no queue 'copies'"):
            copy().awaitTermination(120)
    # As if the second try had died between the sink's commit and Spark's.
    name = json.loads((sink.checkpoint / "metadata").read_text())["id"]
    run_sql("INSERT INTO pgqueue_spark_txn VALUES (%s, 0, 8)", [f"stream:{name}"])
    Message.objects.create_queue("copies")

    copy().awaitTermination(120)

    assert (left(), ArchivedMessage.objects.filter(state="COMPLETED").count()) == (0, 8)
    assert Message.objects.metrics("copies").length == 0


def test_rows_that_the_function_refuses_are_dead_lettered_and_the_rest_is_done(
    sink: Sink, send: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    send(0, 8)
    store = sink.store

    def refuse(frame: Any, number: int) -> Any:
        rows = frame.collect()
        wrong = {row.id: "no price" for row in rows if json.loads(row.body)["n"] in {2, 3}}
        if wrong:
            raise Refused(wrong)
        store(frame, number)
        return [row.id for row in rows if json.loads(row.body)["n"] == 5]

    monkeypatch.setattr(sink, "store", refuse)
    sink.wrap = partial(each_batch, url=sink.url)

    assert sink.run() == 0

    assert sink.numbers == [0, 1, 4, 5, 6, 7]
    letters = list(Message.objects.read("dead", qty=8))
    assert sorted((m.body["n"], m.headers["x-dead-letter"]["error"]) for m in letters) == [
        (2, "no price"),
        (3, "no price"),
        (5, "refused"),
    ]
    assert ArchivedMessage.objects.filter(state="COMPLETED").count() == 5


def test_refused_rows_may_be_tried_again_until_their_deliveries_run_out(
    sink: Sink, send: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    send(0, 2)

    def refuse(frame: Any, number: int) -> Any:
        return {row.id: "not yet" for row in frame.collect()}

    monkeypatch.setattr(sink, "store", refuse)
    sink.wrap = partial(each_batch, url=sink.url)
    for _ in range(3):
        assert sink.run(onError="retry") == 0
        lapse()

    letters = [message.headers["x-dead-letter"] for message in dead_letters()]

    assert [(letter["read_ct"], letter["attempts"]) for letter in letters] == [(3, 3)] * 2
    assert {"not yet" in letter["error"] for letter in letters} == {True}


def dead_letters() -> list[Message]:
    assert Message.objects.read("orders", qty=10) == []  # a read dead-letters what is exhausted
    return Message.objects.read("dead", qty=10)


def test_messages_of_a_driver_that_is_gone_come_back(
    stream: Callable[..., QueueStream], send: Callable[..., None]
) -> None:
    send(0, 3)
    gone = stream(visibilityTimeout="1")
    gone.latestOffset(gone.initialOffset(), ReadMaxRows(10))
    assert Message.objects.read("orders", qty=10) == []

    gone.stop()

    messages = Message.objects.read_with_poll("orders", qty=10, max_poll_seconds=20)
    assert len(messages) == 3
    assert {message.read_ct for message in messages} == {2}


def test_leases_are_extended_while_a_batch_is_in_work(
    stream: Callable[..., QueueStream], send: Callable[..., None]
) -> None:
    send(0, 3)
    working = stream(visibilityTimeout="2")

    end = working.latestOffset(working.initialOffset(), ReadMaxRows(10))

    assert Message.objects.read_with_poll("orders", qty=10, max_poll_seconds=4) == []
    working.commit(end)
    assert (left(), working.reportLatestOffset()["redelivered"]) == (0, 0)


def test_acknowledging_twice_changes_nothing(
    stream: Callable[..., QueueStream], send: Callable[..., None]
) -> None:
    send(0, 3)
    first = stream()
    end = first.latestOffset(first.initialOffset(), ReadMaxRows(10))
    first.commit(end)
    send(3, 5)

    # As after a restart: Spark knows that the batch is done, and requests the next.
    again = stream()
    following = again.latestOffset(end, ReadMaxRows(10))

    assert (Batch.parse(following).number, len(taken(following))) == (2, 2)
    assert ArchivedMessage.objects.count() == 3
    assert again.reportLatestOffset()["redelivered"] == 0


def test_batch_is_asked_for_twice_and_leased_once(
    stream: Callable[..., QueueStream], send: Callable[..., None]
) -> None:
    send(0, 3)
    one = stream()
    start = one.initialOffset()

    assert one.latestOffset(start, ReadMaxRows(2)) == one.latestOffset(start, ReadMaxRows(2))


def test_batches_are_no_larger_than_asked_for(query: Query, send: Callable[..., None]) -> None:
    send(0, 25)

    query.run(maxOffsetsPerTrigger="10")

    assert [len(rows) for rows in query.batches.values() if rows] == [10, 10, 5]


def test_batch_ends_when_its_bodies_have_enough_bytes(
    stream: Callable[..., QueueStream], url: str
) -> None:
    Message.objects.create_queue("orders")
    Message.objects.send_batch("orders", ["x" * 998] * 100)
    small = stream(maxBytesPerTrigger="20000")

    end = small.latestOffset(small.initialOffset(), small.getDefaultReadLimit())

    # A message's size is known only when it is leased.
    assert 20 <= len(taken(end)) <= 21


def test_batch_waits_for_enough_messages(
    stream: Callable[..., QueueStream], send: Callable[..., None]
) -> None:
    patient = stream(minOffsetsPerTrigger="5")
    start = patient.initialOffset()
    send(0, 4)
    assert patient.latestOffset(start, ReadMaxRows(10)) == start
    patient._looked_at = float("-inf")

    send(4, 5)

    assert len(taken(patient.latestOffset(start, ReadMaxRows(10)))) == 5


def test_available_now_ends_while_messages_are_sent(
    query: Query, send: Callable[..., None]
) -> None:
    send(0, 10)

    def send_more() -> None:
        send(10, 14)
        connection.close()  # closes the connection of the thread that Spark calls

    query.on_batch = send_more
    query.run(maxOffsetsPerTrigger="4")

    assert sorted(query.numbers)[:10] == list(range(10))
    assert [len(rows) for rows in query.batches.values() if rows] == [4, 4, 4]


def test_groups_keep_their_order_across_batches_and_tasks(
    query: Query, send: Callable[..., None]
) -> None:
    Message.objects.create_queue("orders")
    for n in range(40):
        Message.objects.send("orders", {"n": n}, group=f"customer {n % 3}")

    query.run(maxOffsetsPerTrigger="15", minPartitions="2")

    for group in range(3):
        of_group = [n for n in query.numbers if n % 3 == group]
        assert of_group == sorted(of_group)
    assert sorted(query.numbers) == list(range(40))
    assert len(query.batches) < 10


def test_group_waits_while_another_consumer_has_its_head(
    stream: Callable[..., QueueStream], url: str
) -> None:
    Message.objects.create_queue("orders")
    first = Message.objects.send("orders", 1, group="a")
    second = Message.objects.send("orders", 2, group="a")
    [held] = Message.objects.read("orders")
    one = stream()
    start = one.initialOffset()

    assert one.latestOffset(start, ReadMaxRows(10)) == start
    Message.objects.archive("orders", held)
    one._looked_at = float("-inf")

    assert held.id == first
    assert taken(one.latestOffset(start, ReadMaxRows(10))) == [second]


def test_message_whose_deliveries_ran_out_is_dead_lettered(
    stream: Callable[..., QueueStream], url: str
) -> None:
    Message.objects.create_queue("dead")
    Message.objects.create_queue("orders", max_deliveries=1, dead_letter_queue="dead")
    Message.objects.send("orders", {"n": 1})
    Message.objects.read("orders", vt=0)
    one = stream()

    start = one.initialOffset()
    assert one.latestOffset(start, ReadMaxRows(10)) == start

    [dead] = Message.objects.read("dead")
    assert dead.headers["x-dead-letter"]["reason"] == "max_deliveries"


def test_paused_queue_is_left_alone(stream: Callable[..., QueueStream], url: str) -> None:
    queue = Message.objects.create_queue("orders")
    queue.paused = True
    queue.save()
    Message.objects.send("orders", 1)
    one = stream()
    start = one.initialOffset()

    assert one.latestOffset(start, ReadAllAvailable()) == start


def test_each_queue_has_its_share_of_a_batch(stream: Callable[..., QueueStream], url: str) -> None:
    for name in ("orders", "mails"):
        Message.objects.create_queue(name, unlogged=name == "mails")
        Message.objects.send_batch(name, list(range(10)))
    both = stream(subscribe="orders,mails")

    end = both.latestOffset(both.initialOffset(), ReadMaxRows(12))

    assert [each.count for each in Batch.parse(end).deliveries] == [6, 6]


def test_progress_tells_the_backlog(query: Query, send: Callable[..., None]) -> None:
    send(0, 12)

    done = query.run(maxOffsetsPerTrigger="5")

    told = json.loads(done.recentProgress[0].sources[0].latestOffset)
    assert 0 < told["lagMessages"] <= 12
    assert told["lagSeconds"] >= 0


def test_dropped_queue_is_data_lost(
    stream: Callable[..., QueueStream], send: Callable[..., None]
) -> None:
    send(0, 3)
    one = stream()
    start = one.initialOffset()
    end = one.latestOffset(start, ReadMaxRows(10))
    Message.objects.drop_queue("orders")

    with pytest.raises(DataLost, match="failOnDataLoss=false"):
        one.partitions(start, end)
    with pytest.warns(UserWarning, match="was dropped"):
        assert stream(failOnDataLoss="false").partitions(start, end) == []


def test_queue_that_is_named_and_was_dropped_is_data_lost(
    stream: Callable[..., QueueStream], send: Callable[..., None]
) -> None:
    send(0, 3)
    Message.objects.create_queue("mails")
    both = {"subscribe": "orders,mails"}
    one = stream(**both)
    start = one.initialOffset()
    Message.objects.drop_queue("orders")

    with pytest.raises(DataLost, match="Queue 'orders' was dropped"):
        one.latestOffset(start, ReadMaxRows(10))
    with pytest.warns(UserWarning, match="was dropped"):
        assert stream(failOnDataLoss="false", **both).latestOffset(start, ReadMaxRows(10)) == start
    with pytest.raises(InvalidOption, match="no queue 'nowhere'"):
        stream(subscribe="nowhere").latestOffset(start, ReadMaxRows(10))


def test_checkpoint_of_another_server_or_stream_is_refused(
    stream: Callable[..., QueueStream], send: Callable[..., None]
) -> None:
    send(0, 1)

    with pytest.raises(ServerChanged, match="another server"):
        stream().latestOffset({"n": 4, "taken": [], "sys": "1"}, ReadMaxRows(1))
    with pytest.raises(InvalidOption, match="needs a checkpoint of its own"):
        stream().latestOffset({"s": "1:1:", "sys": "1"}, ReadMaxRows(1))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"subscribe": ""}, "mode=consume needs the names of queues"),
        ({"mode": "take"}, "mode must be read or consume"),
        ({"until": "never"}, "until must be started, done or a length of time"),
        ({"startingOffsets": "earliest"}, "startingOffsets has no meaning with mode=consume"),
        ({"mode": "read", "maxBytesPerTrigger": "9"}, "maxBytesPerTrigger has no meaning"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    url: str, options: dict[str, str], told: str
) -> None:
    with pytest.raises(InvalidOption, match=told):
        Options.parse({"url": url, "mode": "consume", "subscribe": "orders", **options})


def test_batch_read_of_a_queue_that_is_consumed_is_refused(
    read: Callable[..., Any], send: Callable[..., None]
) -> None:
    send(0, 1)

    with pytest.raises(Exception, match="A batch read cannot consume"):
        read(subscribe="orders", mode="consume").collect()


def test_typed_bodies_work_as_in_a_read(
    spark: Any, url: str, send: Callable[..., None], tmp_path: Path
) -> None:
    send(0, 3)
    found: list[int] = []
    frame = spark.readStream.format("pgqueue").options(
        url=url, subscribe="orders", mode="consume", bodySchema="n int"
    )

    query = (
        frame.load()
        .select("body.*")
        .writeStream.foreachBatch(lambda rows, _: found.extend(row.n for row in rows.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)

    assert sorted(found) == [0, 1, 2]
