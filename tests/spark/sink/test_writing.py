"""Writes into queues: each row once, whatever happens to tasks, jobs and servers."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructType

from django_pgqueue.models import AuditEntry, Message, Queue
from pyspark_pgqueue.errors import PipelineError, StagingLost
from pyspark_pgqueue.sink.writing import BatchWriter
from pyspark_pgqueue.source.options import Options
from tests.actors import Actor
from tests.conftest import run_sql
from tests.waiting import until

ROWS = 200


@pytest.fixture
def orders(url: str) -> Queue:
    """A committed queue and an empty staging table: a killed task of another test may have left
    rows.
    """
    with psycopg.connect(url) as connection:
        connection.execute("DELETE FROM pgqueue_staging")
    return Message.objects.create_queue("orders")


@pytest.fixture
def bodies(spark: Any) -> Any:
    return spark.range(ROWS).selectExpr("to_json(struct(id)) AS body").repartition(4)


def save(frame: Any, url: str, **options: Any) -> None:
    options = {"queue": "orders", **options}
    frame.write.format("pgqueue").mode("append").options(url=url, **options).save()


def sent() -> list[Any]:
    return sorted(message.body["id"] for message in Message.objects.filter(queue__name="orders"))


def staged(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM pgqueue_staging").fetchone()
    assert row is not None
    return int(row[0])


def writer(url: str, **options: str) -> BatchWriter:
    parsed = Options.parse({"url": url, "queue": "orders", **options})
    return BatchWriter(parsed, StructType().add("body", StringType()), False)


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"body": [f'{{"id": {n}}}' for n in numbers]})


def test_rows_arrive_with_all_that_a_message_has(spark: Any, url: str, orders: Queue) -> None:
    Message.objects.create_queue("mails")
    frame = spark.createDataFrame(
        [
            ("orders", '{"text": "a,\\"b\\"\\n☃"}', '{"h": 1}', 0.0, 5, "g", "d"),
            ("MAILS", "[1, null]", None, 60.0, None, None, None),
            ("orders", None, None, None, None, None, None),
        ],
        "queue string, body string, headers string, delay double, priority int, "
        "group string, unique_key string",
    )

    frame.write.format("pgqueue").mode("append").option("url", url).save()

    first, empty = Message.objects.filter(queue=orders).order_by("-priority")
    (mail,) = Message.objects.filter(queue__name="mails")
    assert (first.body, first.headers) == ({"text": 'a,"b"\n☃'}, {"h": 1})
    assert (first.priority, first.group_key, first.unique_key) == (5, "g", "d")
    assert (mail.body, mail.headers, empty.body) == ([1, None], None, None)
    assert Message.objects.metrics("mails").delayed == 1
    assert Message.objects.metrics("orders").ready == 2
    assert staged(url) == 0


def test_rows_may_expire(spark: Any, url: str, orders: Queue) -> None:
    rows = [("1", 60.0), ("2", None)]
    save(spark.createDataFrame(rows, "body string, expires double").coalesce(1), url)

    first, never = Message.objects.order_by("pk")
    assert round((first.expires_at - first.enqueued_at).total_seconds()) == 60
    assert never.expires_at is None
    with pytest.raises(Exception, match="expires"):
        save(spark.createDataFrame([("3", 0.0)], "body string, expires double"), url)
    assert Message.objects.count() == 2


def test_rows_of_several_queues_each_go_to_theirs(spark: Any, url: str, orders: Queue) -> None:
    Message.objects.create_queue("mails")
    frame = spark.range(ROWS).selectExpr(
        "IF(id % 2 = 0, 'Orders', 'mails') AS queue",
        "to_json(struct(id)) AS body",
        "id AS priority",
    )

    frame.where("id < 100").write.format("pgqueue").mode("append").option("url", url).save()

    assert sent() == list(range(0, 100, 2))
    assert Message.objects.metrics("mails").ready == 50
    (first,) = Message.objects.read("mails")
    assert (first.body, first.priority) == ({"id": 99}, 99)


def test_body_arrives_whole_however_long_it_is(spark: Any, url: str, orders: Queue) -> None:
    text = "a\\b\tc\n☃" * 50_000
    frame = spark.createDataFrame(
        [(json.dumps({"id": 1, "text": text}, indent="\t"),)], "body string"
    )

    save(frame, url)

    (message,) = Message.objects.filter(queue=orders)
    assert message.body == {"id": 1, "text": text}


def test_task_that_fails_and_is_tried_again_sends_its_rows_once(
    url: str, orders: Queue, bodies: Any
) -> None:
    @f.udf("string", useArrow=False)
    def stumble(body: str) -> str:
        context = TaskContext.get()
        if context.attemptNumber() == 0 and context.partitionId() == 1:
            raise RuntimeError("the first attempt")
        return body

    save(bodies.select(stumble("body").alias("body")), url)

    assert sent() == list(range(ROWS))
    assert staged(url) == 0


def test_only_the_attempt_that_counts_is_sent(url: str, orders: Queue) -> None:
    writing = writer(url)
    speculative, counting = writing.write(iter([batch(1, 2)])), writing.write(iter([batch(1, 2)]))

    writing.commit([counting, None])

    assert sent() == [1, 2]
    writing.abort([speculative])
    assert staged(url) == 0


def test_job_that_fails_sends_nothing(url: str, orders: Queue, spark: Any) -> None:
    frame = spark.range(ROWS).selectExpr("IF(id = 150, '{broken', to_json(struct(id))) AS body")

    with pytest.raises(Exception, match="invalid input syntax for type json"):
        save(frame.repartition(4), url)

    assert sent() == []
    assert staged(url) == 0


def test_version_that_was_written_before_changes_nothing(
    url: str, orders: Queue, bodies: Any
) -> None:
    application = f"test-{uuid.uuid4()}"

    save(bodies, url, txnAppId=application, txnVersion="1")
    save(bodies.repartition(2), url, txnAppId=application, txnVersion="1")
    assert sent() == list(range(ROWS))

    save(bodies.where("body LIKE '%:7}'"), url, txnAppId=application, txnVersion="2")
    assert len(sent()) == ROWS + 1
    assert staged(url) == 0


def test_batch_replayed_with_another_partitioning_is_not_sent_again(
    spark: Any, url: str, orders: Queue, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    spark.range(ROWS).selectExpr("to_json(struct(id)) AS body").write.parquet(str(source))

    def stream(partitions: int) -> None:
        frame = spark.readStream.schema("body string").parquet(str(source))
        query = (
            frame.repartition(partitions)
            .writeStream.format("pgqueue")
            .options(url=url, queue="orders", checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)

    stream(4)
    # As after a crash between the sink's commit and Spark's.
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink()
    stream(3)

    assert sent() == list(range(ROWS))
    assert staged(url) == 0


def test_key_that_was_sent_before_is_not_sent_again(spark: Any, url: str, orders: Queue) -> None:
    Message.objects.send("orders", {"id": 0}, unique="a")
    frame = spark.createDataFrame(
        [('{"id": 1}', "a"), ('{"id": 2}', "b"), ('{"id": 2}', "b"), ('{"id": 3}', None)],
        "body string, unique_key string",
    )

    save(frame, url)
    save(frame.where("unique_key IS NOT NULL"), url)

    assert sent() == [0, 2, 3]
    assert staged(url) == 0


@pytest.mark.parametrize(("option", "left"), [("skip", [0]), ("replace", [1])])
def test_a_key_is_held_until_the_option_until_says(
    spark: Any, url: str, orders: Queue, option: str, left: list[int]
) -> None:
    Message.objects.send("orders", {"id": 0}, unique="a", until="done")
    frame = spark.createDataFrame([('{"id": 1}', "a")], "body string, unique_key string")

    save(frame, url, until="done", onConflict=option)

    assert [m.body["id"] for m in Message.objects.read("orders", qty=9)] == left
    save(frame, url, until="done", onConflict=option)
    assert Message.objects.read("orders") == []


def test_unique_key_counts_as_long_as_one_that_was_sent(
    spark: Any, url: str, orders: Queue
) -> None:
    Message.objects.send("orders", {"id": 0}, unique="a")
    save(spark.createDataFrame([('{"id": 1}', "b")], "body string, unique_key string"), url)

    with psycopg.connect(url) as connection:
        windows = connection.execute(
            "SELECT DISTINCT until - enqueued_at FROM pgqueue_claim JOIN pgqueue_message USING (id)"
        ).fetchall()

    assert windows == [(orders.unique_window or dt.timedelta(minutes=5),)]


def test_overwriting_a_queue_is_refused(url: str, orders: Queue, bodies: Any) -> None:
    with pytest.raises(Exception, match="A queue cannot be overwritten"):
        bodies.write.format("pgqueue").mode("overwrite").options(url=url, queue="orders").save()


def test_nothing_is_sent_when_a_queue_does_not_exist(url: str, orders: Queue, spark: Any) -> None:
    frame = spark.createDataFrame([("orders", "1"), ("nowhere", "2")], "queue string, body string")

    with pytest.raises(Exception, match="there is no queue 'nowhere'"):
        frame.write.format("pgqueue").mode("append").option("url", url).save()

    assert Message.objects.count() == 0


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ("struct(id) AS body", "Convert it to JSON text"),
        ("'1' AS body, id AS colour", "no column colour"),
        ("'1' AS text", "no column text"),
        ("'{}' AS headers", "There is no column body"),
        ("'1' AS body, 'x' AS priority", "must be a number"),
    ],
)
def test_frame_that_is_no_messages_is_refused(
    spark: Any, url: str, orders: Queue, columns: str, complaint: str
) -> None:
    with pytest.raises(Exception, match=complaint):
        save(spark.range(2).selectExpr(*columns.split(", ")), url)


@pytest.mark.parametrize(
    ("column", "complaint"),
    [
        ("'' AS `group`", "1 to 255 characters"),
        ("repeat('x', 256) AS unique_key", "1 to 255 characters"),
        ("'[1]' AS headers", "a JSON object"),
        ("101 AS priority", "priority"),
        ("double('Infinity') AS delay", "delay"),
    ],
)
def test_row_that_is_no_message_is_refused(
    spark: Any, url: str, orders: Queue, column: str, complaint: str
) -> None:
    frame = spark.range(2).selectExpr("'1' AS body", column)

    with pytest.raises(Exception, match=complaint):
        save(frame, url)

    assert Message.objects.count() == 0
    assert staged(url) == 0


def test_queue_that_was_dropped_meanwhile_is_missed(url: str, orders: Queue) -> None:
    writing = writer(url)
    message = writing.write(iter([batch(1, 2)]))
    Message.objects.drop_queue("orders")

    with pytest.raises(PipelineError, match="dropped during the write"):
        writing.commit([message])

    writing.abort([message])  # Spark calls abort when a commit fails
    assert staged(url) == 0


def test_staged_rows_that_a_crash_took_are_noticed(url: str, orders: Queue) -> None:
    writing = writer(url, txnAppId=f"test-{uuid.uuid4()}", txnVersion="1")
    message = writing.write(iter([batch(1, 2, 3)]))
    with psycopg.connect(url) as connection:
        connection.execute("TRUNCATE pgqueue_staging")

    with pytest.raises(StagingLost, match="0 of 3"):
        writing.commit([message])

    again = writing.write(iter([batch(1, 2, 3)]))
    writing.commit([again])
    assert sent() == [1, 2, 3]


def publish(url: str, options: dict[str, str], message: Any) -> None:
    writer(url, **options).commit([message])


def test_a_driver_killed_while_it_publishes_sends_and_records_nothing(
    url: str, orders: Queue, reachable: dict[str, dict[str, Any]]
) -> None:
    """As in a replay from a lake. The repeated call sends each row once, and is one entry."""
    actor = {"who": "ann", "place": "code", "program": "replay"}
    call = {"operation": "replay", "arguments": {"id": "again"}, "actor": actor, "ended": True}
    options = {
        "txnAppId": f"test-{uuid.uuid4()}",
        "txnVersion": "1",
        "auditEntry": json.dumps(call),
    }
    message = writer(url).write(iter([batch(1, 2, 3)]))
    waiting = "SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'pgqueue_audit'::regclass"

    with Actor(reachable) as driver, psycopg.connect(url) as other:
        pid = driver.do(os.getpid)
        other.execute("LOCK TABLE pgqueue_audit IN EXCLUSIVE MODE")
        publishing = driver.start(publish, url, options, message)
        [(session,)] = until(
            lambda: other.execute(waiting).fetchall() or (publishing.done() and publishing.result())
        )
        os.kill(pid, signal.SIGKILL)
    ended = f"SELECT FROM pg_stat_activity WHERE pid = {session}"
    until(lambda: not run_sql(ended))

    assert sent() == []
    assert not AuditEntry.objects.filter(operation="replay").exists()
    for _ in range(2):
        publish(url, options, writer(url).write(iter([batch(1, 2, 3)])))
    assert sent() == [1, 2, 3]
    entry = AuditEntry.objects.get(operation="replay")
    assert (entry.who, entry.count, entry.ended_at is None) == ("ann", 3, False)


def test_rows_of_a_job_that_died_are_swept_away_by_a_later_write(url: str, orders: Queue) -> None:
    writer(url).write(iter([batch(1, 2)]))
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE pgqueue_staging SET staged_at = staged_at - interval '25 hours'")
    writing = writer(url)
    running = writing.write(iter([batch(3)]))

    writing.commit([writing.write(iter([batch(4)]))])

    assert staged(url) == 1
    writing.commit([running])
    assert sent() == [3, 4]


def test_rows_keep_the_order_of_a_sorted_frame(
    spark: Any, url: str, orders: Queue, sql: Callable[..., Any]
) -> None:
    frame = spark.range(ROWS).orderBy(f.desc("id")).selectExpr("to_json(struct(id)) AS body")

    save(frame, url)

    rows = Message.objects.filter(queue=orders).order_by("id")
    assert [message.body["id"] for message in rows] == list(reversed(range(ROWS)))
