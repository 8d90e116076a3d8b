"""Batch reads of the archive, and peeks at the queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import adbc_driver_postgresql
import pytest
from django.db import connection
from pyspark.sql import functions as f
from pyspark.sql.datasource import EqualTo, InputPartition
from pyspark.sql.types import StructType

from django_pgqueue.models import ArchivedMessage, BoundQueue, Message
from pyspark_pgqueue.errors import TableRewritten
from pyspark_pgqueue.source import arrow, database, planning, purges
from pyspark_pgqueue.source.columns import ARCHIVE, ddl
from pyspark_pgqueue.source.offsets import EARLIEST, Offset
from pyspark_pgqueue.source.options import Options
from pyspark_pgqueue.source.reading import PushingReader
from tests.actors import Actor, begin, call, commit
from tests.conftest import run_sql
from tests.spark.conftest import archive_all

Finish = Callable[..., list[int]]
Read = Callable[..., Any]


def ids(frame: Any) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


def planned(url: str, **options: str) -> tuple[Options, list[planning.Task]]:
    """Plan a read like the driver, to be run later."""
    parsed = Options.parse({"url": url, "columns": "id", **options})
    with database.connect(url) as asking:
        queues = database.queues(asking, parsed)
        marks = purges.marks(asking, parsed, queues)
        end = Offset(database.server(asking).now)
        tasks = planning.cut_by_position(
            asking, parsed, parsed.names, queues, start=Offset(EARLIEST), end=end, planned=marks
        )
    return parsed, tasks


def run(options: Options, tasks: list[planning.Task]) -> list[int]:
    schema = StructType.fromDDL(ddl(ARCHIVE, options.names))
    return sorted(
        pk
        for task in tasks
        for batch in arrow.read(options, schema, InputPartition(task))
        for pk in batch.column("id").to_pylist()
    )


def test_archive_is_read_with_everything_that_is_known_of_a_message(
    read: Read, finish: Finish
) -> None:
    Message.objects.create_queue("orders")
    Message.objects.send("orders", {"text": 'a "b" \\ ☃'}, headers={"h": 1}, priority=3, group="g")
    (message,) = Message.objects.read("orders")
    Message.objects.archive("orders", message)

    (row,) = read(subscribe="orders").collect()

    kept = ArchivedMessage.objects.get()
    assert row.body == '{"text": "a \\"b\\" \\\\ ☃"}'
    assert (row.queue, row.state, row.headers) == ("orders", "COMPLETED", '{"h": 1}')
    assert (row.id, row.priority, row.group_key, row.read_ct) == (kept.pk, 3, "g", 1)
    assert (row.archive_xid, row.error, row.scheduled_at) == (kept.archive_xid, None, None)
    assert row.archived_at.timestamp() == kept.archived_at.timestamp()


def test_tasks_that_read_large_bodies_have_fewer_rows(
    url: str, finish: Finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    archived = finish("orders", 3000)
    run_sql("ANALYZE pgqueue_message, pgqueue_archive")
    monkeypatch.setattr(planning, "BYTES_OF_BODIES", 100_000)

    _, narrow = planned(url, columns="id")
    options, wide = planned(url, columns="id,body")

    assert len(narrow) == 1
    assert len(wide) >= 3
    assert run(options, wide) == archived


def test_cores_share_a_read_unless_it_is_small(
    url: str, finish: Finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    archived = finish("orders", 3000)
    run_sql("ANALYZE pgqueue_message, pgqueue_archive")

    _, small = planned(url, columns="id,body")
    monkeypatch.setattr(planning, "LEAST_BYTES", 10_000)
    options, shared = planned(url, columns="id,body")
    _, narrow = planned(url, columns="id")

    assert (len(small), len(shared), len(narrow)) == (1, 4, 1)
    assert run(options, shared) == archived


def test_rows_in_the_order_of_ids_are_cut_by_id_and_others_by_block(
    url: str, finish: Finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    archived = finish("orders", 3000)
    run_sql("ANALYZE pgqueue_message, pgqueue_archive")
    archived += finish("orders", 500)  # behind the histogram's last id
    monkeypatch.setattr(planning, "LEAST_BYTES", 10_000)

    for cut, correlation in (("a.id >= ", 0.9), ("a.ctid >= ", 2.0)):
        monkeypatch.setattr(planning, "IN_ORDER", correlation)
        options, tasks = planned(url, columns="id,body")

        assert len(tasks) > 1
        assert all(cut in statement for task in tasks[1:] for statement in task.statements)
        assert run(options, tasks) == sorted(archived)


def test_many_tasks_read_each_message_once(read: Read, finish: Finish) -> None:
    archived = finish("orders", 3000) + finish("mails", 500)

    frame = read(columns="id,queue", maxRecordsPerPartition="400")

    assert frame.rdd.getNumPartitions() > 3
    assert ids(frame) == sorted(archived)
    assert Counter(row.queue for row in frame.collect()) == {"orders": 3000, "mails": 500}


def test_all_tasks_see_what_the_planner_saw(url: str, finish: Finish, actor: Actor) -> None:
    before = finish("orders", 50)
    Message.objects.send_batch("orders", [1, 2])
    late, later = Message.objects.read("orders", qty=2)
    actor.do(begin)
    actor.do(call, "archive", "orders", late.receipt)

    options, tasks = planned(url)
    actor.do(commit)
    Message.objects.archive("orders", later)

    assert run(options, tasks) == sorted(before)
    assert run(*planned(url)) == sorted([*before, late.id, later.id])


def test_read_does_not_wait_for_transactions_that_are_open_elsewhere(
    read: Read, finish: Finish, actor: Actor
) -> None:
    Message.objects.create_queue("mails")
    actor.do(begin)
    actor.do(call, "send", "mails", 1)

    archived = finish("orders", 5)

    assert ids(read(columns="id")) == sorted(archived)


def test_table_rewritten_between_plan_and_read_is_noticed(url: str, finish: Finish) -> None:
    finish("orders", 50)
    options, tasks = planned(url)

    with connection.cursor() as cursor:
        table = Message.objects.resolve("orders").tables["archive"]
        cursor.execute(f"VACUUM FULL {table}")

    with pytest.raises(TableRewritten):
        run(options, tasks)


def test_queue_in_time_slices_is_read_whole(read: Read, finish: Finish) -> None:
    archived = finish("orders", 300, partition_interval=86400)

    assert ids(read(subscribe="orders").where("body IS NOT NULL")) == sorted(archived)


def test_queues_are_chosen_by_name_or_pattern(read: Read, finish: Finish) -> None:
    orders, mails = finish("orders", 2), finish("mails", 3)
    finish("orders.old", 4)

    assert ids(read(subscribe="Orders, mails")) == sorted(orders + mails)
    assert ids(read(subscribePattern="m.*|orders")) == sorted(orders + mails)


CONDITIONS = [
    "queue = 'orders'",
    "queue IN ('mails', 'nothing') AND id > 0",
    "state = 'FAILED'",
    "NOT (state = 'FAILED')",
    "state <=> 'FAILED'",
    "read_ct >= 1 AND attempts < 5",
    "error IS NULL",
    "error LIKE 'it''s%' OR error LIKE '%broken'",
    "startswith(error, 'it''s') AND endswith(error, 'broken') AND contains(error, ' ')",
    "error > 'a' AND error < 'z'",
    "archived_at > timestamp'2020-01-01' AND archived_at < timestamp'2020-01-02'",
    "get_json_object(body, '$.n') = 1",
    "body = '{\"n\": 1}'",
]


@pytest.mark.parametrize("pushing", ["true", "false"])
def test_filter_finds_the_same_wherever_it_is_applied(
    spark: Any, read: Read, finish: Finish, pushing: str
) -> None:
    finish("mails", 3)
    finish("orders", 3)
    Message.objects.send_batch("orders", [{"n": 1}, {"n": 9}])
    failing = Message.objects.read("orders", qty=2)
    BoundQueue("orders").fail({failing[0].receipt: "it's broken", failing[1].receipt: "Ä"})
    frame = read()
    everything = spark.createDataFrame(frame.collect(), frame.schema)

    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushing)
    try:
        found = {condition: ids(read().where(condition)) for condition in CONDITIONS}
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")

    assert found == {condition: ids(everything.where(condition)) for condition in CONDITIONS}
    assert {len(rows) for rows in found.values()} >= {0, 1, 2, 3}


def test_pushed_filter_is_left_to_postgresql(spark: Any, read: Read, finish: Finish) -> None:
    finish("orders", 3)

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read().where("state = 'FAILED' AND queue = 'orders'")
        plan = frame._jdf.queryExecution().executedPlan().toString()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")

    assert "Filter (" not in plan


def test_body_comes_in_the_type_that_the_schema_asks_for(
    spark: Any, url: str, finish: Finish
) -> None:
    finish("orders", 1)
    Message.objects.send_batch("orders", [{"n": "no number"}, [1], None])
    Message.objects.archive("orders", Message.objects.read("orders", qty=3))
    source = spark.read.format("pgqueue").option("url", url)

    typed = source.schema("id bigint, body struct<n: int, absent: string>").load()
    variant = source.schema("id bigint, body variant").load()

    bodies = [row.body for row in typed.orderBy("id").collect()]
    assert [body and body.n for body in bodies] == [0, None, None, None]
    numbers = variant.select("id", f.try_variant_get("body", "$.n", "int").alias("n"))
    assert [row.n for row in numbers.orderBy("id").collect()] == [0, None, None, None]


BODIES = [
    {"order": 1, "name": "a", "tags": ["x"], "at": {"lat": 1}},
    {"order": 2, "name": 7, "tags": [], "extra": True},
    {"order": "no number"},
    [1],
    None,
]


def typed(frame: Any) -> list[tuple[Any, ...]]:
    rows = frame.orderBy("id").select("body.order", "body.name", "_corrupt_record").collect()
    return [tuple(row) for row in rows]


@pytest.fixture
def webhooks(url: str) -> None:
    Message.objects.create_queue("orders")
    Message.objects.send_batch("orders", BODIES)
    Message.objects.archive("orders", Message.objects.read("orders", qty=len(BODIES)))


@pytest.mark.parametrize("form", ["ddl", "json", "live"])
def test_body_has_columns_and_what_does_not_fit_is_kept_as_text(
    read: Read, webhooks: None, form: str
) -> None:
    schema = "order bigint, name string"
    if form == "json":
        schema = StructType.fromDDL(schema).json()
    if form == "live":
        Message.objects.send_batch("orders", BODIES)
    source = "live" if form == "live" else "archive"

    frame = read(columns="id,body", bodySchema=schema, source=source)

    assert frame.columns == ["id", "body", "_corrupt_record"]
    assert typed(frame) == [
        (1, "a", None),
        (2, "7", None),
        (None, None, '{"order": "no number"}'),
        (None, None, "[1]"),
        (None, None, None),
    ]


def test_values_of_bodies_become_what_the_schema_says(read: Read, url: str) -> None:
    Message.objects.create_queue("orders")
    body = {"at": "2026-01-05T10:00:00Z", "day": "2026-01-05", "by": {"a": 1}, "raw": [1, "x"]}
    Message.objects.send_batch("orders", [body, {"at": "yesterday"}])
    schema = "at timestamp, day date, by map<string, bigint>, raw string"

    first, second = (
        read(source="live", columns="id,body", bodySchema=schema)
        .orderBy("id")
        .selectExpr("unix_seconds(body.at)", "string(body.day)", "body.by", "body.raw", "*")
        .collect()
    )

    assert tuple(first)[:4] == (1767607200, "2026-01-05", {"a": 1}, '[1, "x"]')
    assert (first._corrupt_record, second.body.at) == (None, None)
    assert second._corrupt_record == '{"at": "yesterday"}'


def test_fraction_does_not_fit_a_whole_number(read: Read, url: str) -> None:
    Message.objects.create_queue("orders")
    Message.objects.send_batch("orders", [{"order": 2}, {"order": 2.5}, {"order": 2.0}])
    archive_all("orders")

    assert typed(read(columns="id,body", bodySchema="order bigint, name string")) == [
        (2, None, None),
        (None, None, '{"order": 2.5}'),
        (None, None, '{"order": 2.0}'),
    ]


def test_schema_of_bodies_is_inferred_from_a_sample(read: Read, webhooks: None) -> None:
    frame = read(columns="id,body", bodySchema="infer", bodySample="2")

    body = frame.schema["body"].dataType
    assert body.simpleString() == (
        "struct<at:struct<lat:bigint>,name:string,tags:array<string>,order:bigint,extra:boolean>"
    )
    assert [row[2] for row in typed(frame)] == [
        None,
        None,
        '{"order": "no number"}',
        "[1]",
        None,
    ]


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("order number", "struct<order number>"),
        ('{"type": "order"}', "bodySchema must be DDL"),
        ("infer", "none of the sampled bodies"),
    ],
)
def test_schema_of_bodies_that_cannot_be_is_refused(
    read: Read, url: str, schema: str, complaint: str
) -> None:
    Message.objects.create_queue("orders")

    with pytest.raises(Exception, match=complaint):
        read(bodySchema=schema)


def test_stream_has_typed_bodies_too(spark: Any, url: str, webhooks: None, tmp_path: Path) -> None:
    options = {"url": url, "columns": "id,body", "bodySchema": "order bigint, name string"}
    frame = spark.readStream.format("pgqueue").options(**options).load()
    seen: list[tuple[Any, ...]] = []

    query = frame.writeStream.foreachBatch(lambda batch, _: seen.extend(typed(batch)))
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert query.trigger(availableNow=True).start().awaitTermination(120)

    assert [row[0] for row in seen] == [1, 2, None, None, None]
    assert [row[2] for row in seen if row[2]] == ['{"order": "no number"}', "[1]"]


def test_peek_shows_live_messages_and_takes_none(read: Read, url: str) -> None:
    Message.objects.create_queue("orders")
    Message.objects.send_batch("orders", [{"n": 1}, {"n": 2}])
    Message.objects.send("orders", {"n": 3}, delay=600)
    Message.objects.read("orders", vt=600)

    frame = read(source="live", subscribe="orders")

    shown = {row.body: row.state for row in frame.collect()}
    assert shown == {
        '{"n": 1}': "PROCESSING",
        '{"n": 2}': "PENDING",
        '{"n": 3}': "SCHEDULED",
    }
    assert Message.objects.metrics("orders").length == 3


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"columns": "id,nonsense"}, "no column 'nonsense'"),
        ({"subscribe": "nowhere"}, "no queue 'nowhere'"),
        ({"subscribe": "a", "subscribePattern": "a"}, "not both"),
        ({"source": "dead"}, "source must be archive or live or counts"),
        ({"maxRecordsPerPartition": "0"}, "an integer of at least 1"),
        ({"startingoffset": "earliest"}, "no option startingoffset"),
        ({"startingOffsets": '{"partition": 0}'}, "startingOffsets must be earliest"),
        ({"startingTimestamp": "yesterday"}, "is not a time"),
    ],
)
def test_option_that_makes_no_sense_is_refused(
    read: Read, options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(Exception, match=complaint):
        read(**options).collect()


@pytest.mark.parametrize("pushed", ["false", "true"])
def test_filter_on_a_field_finds_the_same_wherever_it_is_applied(
    spark: Any, read: Read, url: str, pushed: str
) -> None:
    Message.objects.create_queue("orders")
    bodies: list[Any] = [{"n": n, "by": {"name": f"x{n}"}} for n in range(6)]
    bodies += [{"n": "7"}, {"n": None}, {}, 3, {"n": 2.0}, {"n": 2.5}, {"by": {"name": 7}}]
    first = Message.objects.send_batch("orders", bodies)[0]
    archive_all("orders")
    typed = read(subscribe="orders", bodySchema="n bigint, by struct<name: string>")
    found = {}

    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
    try:
        for condition in (
            *("body.n = 2", "body.n >= 3", "body.n IN (1, 2)", "body.n <=> 2"),
            *("NOT body.n = 2", "body.by.name = 'x4'", "body.by.name < 'x2'"),
            *("body.by.name = '7'", "body.by.name = '{queue}'"),
        ):
            rows = typed.where(condition).select("id").collect()
            found[condition] = sorted(row.id - first for row in rows)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")

    assert found == {
        "body.n = 2": [2],
        "body.n >= 3": [3, 4, 5],
        "body.n IN (1, 2)": [1, 2],
        "body.n <=> 2": [2],
        "NOT body.n = 2": [0, 1, 3, 4, 5],
        "body.by.name = 'x4'": [4],
        "body.by.name < 'x2'": [0, 1, 12],
        "body.by.name = '7'": [12],
        "body.by.name = '{queue}'": [],
    }


def test_filter_on_a_field_is_applied_by_postgresql(finish: Finish, url: str) -> None:
    finish("orders", 10)
    schema = StructType.fromDDL("id bigint, body struct<n: bigint>")
    reader = PushingReader(Options.parse({"url": url}), schema)

    left = reader.pushFilters([EqualTo(("body", "n"), 4)])

    [partition] = reader.partitions()
    rows = [row for batch in reader.read(partition) for row in batch.to_pylist()]
    assert [row["body"] for row in rows] == [{"n": 4}]
    # Spark applies the filter again, since it reads JSON in its own way.
    assert left == [EqualTo(("body", "n"), 4)]


def test_counts_are_made_by_postgresql(read: Read, finish: Finish) -> None:
    finish("orders", 5)
    finish("mails", 2)
    Message.objects.send_batch("orders", [1, 2, 3], delay=60)

    rows = read(source="counts").orderBy("queue", "state").collect()

    assert [(row.queue, row.state, row.messages) for row in rows] == [
        ("mails", "COMPLETED", 2),
        ("orders", "COMPLETED", 5),
        ("orders", "SCHEDULED", 3),
    ]
    orders = read(source="counts", columns="messages", subscribe="orders").where("messages > 3")
    assert [row.messages for row in orders.collect()] == [5]


def test_queue_is_a_view_for_sql(spark: Any, url: str, finish: Finish) -> None:
    finish("orders", 5)

    spark.sql(
        f"""CREATE OR REPLACE TEMPORARY VIEW orders USING pgqueue
        OPTIONS (url "{url}", subscribe "orders", bodySchema "n bigint")"""
    )

    [row] = spark.sql("SELECT count(*) AS count, sum(body.n) AS sum FROM orders").collect()
    assert (row["count"], row["sum"]) == (5, 10)


def test_a_process_has_adbc_read_the_catalog_once_for_all_of_its_tasks(
    url: str, finish: Finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = finish("orders", 3)
    opened: list[str] = []
    connect = adbc_driver_postgresql.connect

    def counting(url: str, **options: Any) -> Any:
        opened.append(url)
        return connect(url, **options)

    monkeypatch.setattr(adbc_driver_postgresql, "connect", counting)
    arrow._database.cache_clear()

    for _ in range(3):
        options, tasks = planned(url, subscribe="orders")
        assert run(options, tasks) == sorted(finished)

    assert opened == [url]
