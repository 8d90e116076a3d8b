"""Typed columns of a lake for the fields of bodies, read without this package."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from django.db import connection

from django_pgqueue.maintenance import lakes
from django_pgqueue.models import ExportRun, Lake, Message
from example_project.inbox.demo.payloads import load
from pyspark_pgqueue.errors import InvalidOption
from pyspark_pgqueue.jobs import export as export_job
from pyspark_pgqueue.lake import body_columns
from tests.spark.conftest import archive_all, export
from tests.spark.lake.test_iceberg import TABLE
from tests.spark.lake.test_iceberg import catalog as catalog
from tests.webhooks import REAL_PAYLOADS, needs_real_payloads

Export = Callable[..., list[str]]
COLUMNS = ["body_order", "body_price", "body_tags", "_corrupt_record"]
DEEP = "[" * 1200 + "]" * 1200


class Text(str):
    """A body as JSON text, since not every Python writes or reads it."""


@pytest.fixture
def export_bodies(spark: Any, url: str, lake: str) -> Export:
    """Send bodies to a queue, archive and export them; returns the notices of the export."""

    def send_and_export(*bodies: Any, queue: str = "orders", **options: Any) -> list[str]:
        Message.objects.create_queue(queue)
        if bodies:
            sent = [None if isinstance(body, Text) else body for body in bodies]
            ids = Message.objects.send_batch(queue, sent)
        archive_all(queue)
        with connection.cursor() as cursor:
            for pk, body in zip(ids if bodies else (), bodies, strict=True):
                if isinstance(body, Text):
                    change = "UPDATE pgqueue_message SET body = %s::jsonb WHERE id = %s"
                    cursor.execute(change, [body, pk])
        told: list[str] = []
        export(spark, url, lake, tell=told.append, **options)
        return told

    return send_and_export


def by_spark(spark: Any, lake: str, columns: list[str]) -> list[tuple[Any, ...]]:
    frame = spark.read.option("mergeSchema", "true").parquet(f"{lake}/archive")
    rows = frame.orderBy("id").select(*columns).collect()
    return [tuple(row.asDict(recursive=True).values()) for row in rows]


def by_duckdb(lake: str, columns: list[str]) -> list[tuple[Any, ...]]:
    duckdb = pytest.importorskip("duckdb")
    return duckdb.sql(
        f"SELECT {', '.join(columns)} FROM read_parquet('{lake}/archive/**/*.parquet', "
        "union_by_name = true, hive_partitioning = true) ORDER BY id"
    ).fetchall()


def by_polars(lake: str, columns: list[str]) -> list[tuple[Any, ...]]:
    polars = pytest.importorskip("polars")
    files = Path(lake, "archive").rglob("*.parquet")
    frame = polars.concat([polars.scan_parquet(file) for file in files], how="diagonal_relaxed")
    return frame.sort("id").select(columns).collect().rows()


def test_fields_of_bodies_are_columns_for_every_reader(
    spark: Any, lake: str, catalog: Any, export_bodies: Export
) -> None:
    bodies = [
        {"order": 1, "price": 2, "tags": ["x"]},
        {"order": 2, "price": 2.5, "more": True},
        {"order": "no number"},
        [1],
    ]
    schema = "order int, price float, tags array<string>"

    export_bodies(*bodies, body_schemas={"orders": schema}, table=TABLE)

    expected = [
        (1, 2.0, ["x"], None),
        (2, 2.5, None, None),
        (None, None, None, '{"order": "no number"}'),
        (None, None, None, "[1]"),
    ]
    assert by_spark(spark, lake, COLUMNS) == expected
    assert by_duckdb(lake, COLUMNS) == expected
    assert by_polars(lake, COLUMNS) == expected
    table = catalog.load_table(("shop", "archive")).scan().to_arrow().sort_by("id")
    assert [tuple(row.values()) for row in table.select(COLUMNS).to_pylist()] == expected
    # The JSON is there too.
    found = [json.loads(body) for (body,) in by_spark(spark, lake, ["body"])]
    assert found == bodies


def test_schema_grows_by_fields_and_wider_types(
    spark: Any, lake: str, catalog: Any, export_bodies: Export
) -> None:
    columns = ["body_order", "body_by", "body_price"]
    export_bodies({"order": 1}, table=TABLE)
    export_bodies(
        {"order": 2, "by": {"id": 7}}, body_schemas={"orders": "order int, by struct<id: int>"}
    )
    wider = "order bigint, by struct<id: bigint, name: string>, price double"
    export_bodies(
        {"order": 2**40, "by": {"id": 8, "name": "x"}, "price": 1}, body_schemas={"orders": wider}
    )
    expected = [
        (None, None, None),
        (2, {"id": 7, "name": None}, None),
        (2**40, {"id": 8, "name": "x"}, 1.0),
    ]

    for max_files in (32, 1):  # also once all are in one file
        export_bodies(max_files=max_files)

        assert by_spark(spark, lake, columns) == expected
        assert by_duckdb(lake, columns) == expected
        table = catalog.load_table(("shop", "archive")).scan().to_arrow().sort_by("id")
        assert [tuple(row.values()) for row in table.select(columns).to_pylist()] == expected


def test_evolving_schema_has_every_field_and_widens(
    spark: Any, lake: str, export_bodies: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_columns, "SAMPLE", 1)
    columns = ["body_a", "body_b", "body_c", "_corrupt_record"]

    # {}, [] and null have no type yet. No column is inferred from a sample alone.
    told = export_bodies(
        {"a": 1, "x": {}, "y": [], "z": None, "by": {"x": {}}},
        {"a": 2, "b": 7},
        body_schemas={"orders": "evolve"},
    )
    assert any("written again" in line for line in told)
    assert set(by_spark_columns(spark, lake)) >= {"body_a", "body_b"}
    assert not {"body_x", "body_y", "body_z", "body_by"} & set(by_spark_columns(spark, lake))
    export_bodies({"a": 2.5, "b": "x", "c": [1], "x": {"n": 3}})
    export_bodies({"a": 3, "b": True, "c": ["y"]})
    merged = ExportRun.objects.filter(kind="COMPACT").latest("id").manifest["add"]
    assert all("new" not in file for file in merged)

    expected = [
        (1.0, None, None, None),
        (2.0, "7", None, None),
        (2.5, "x", ["1"], None),
        (3.0, "true", ["y"], None),
    ]
    assert by_spark(spark, lake, columns) == expected
    assert by_duckdb(lake, columns) == expected
    assert by_polars(lake, columns) == expected
    assert by_duckdb(lake, ["body_x"])[2] == ({"n": 3},)


def by_spark_columns(spark: Any, lake: str) -> list[str]:
    return list(spark.read.option("mergeSchema", "true").parquet(f"{lake}/archive").columns)


def test_no_body_ends_a_run_and_a_schema_can_be_changed_and_unset(
    spark: Any, lake: str, export_bodies: Export, url: str
) -> None:
    schemas = {"orders": "order bigint, n double"}
    told = export_bodies(
        {"order": 1, "n": 10**16},
        Text(f'{{"order": 2, "deep": {DEEP}}}'),
        Text(f'{{"order": 3, "n": {"1" * 5001}}}'),
        {"order": "x", "n": 4},
        body_schemas=schemas,
    )

    columns = ["body_order", "body_n", "_corrupt_record IS NULL"]
    first = ExportRun.objects.get()
    ids = [row[0] for row in by_duckdb(lake, ["id"])]
    assert by_duckdb(lake, columns) == [
        (1, 1e16, True),
        (None, None, False),
        (None, None, False),
        (None, 4.0, False),
    ]
    assert any("3 of 4 bodies of queue 'orders' do not fit" in line for line in told)
    assert any(", ".join(map(str, ids[1:])) in line for line in told)
    assert first.manifest["misfits"] == 3
    assert [each.misfits for each in lakes.health("default", 10)] == [0.75]

    export_bodies({"order": "y"}, body_schemas={"orders": "order string"})
    assert by_duckdb(lake, ["body_order"]) == [("1",), (None,), (None,), ("x",), ("y",)]
    assert not Lake.objects.get().body_schemas["orders"]["stale"]

    export_bodies({"order": "z"}, body_schemas={"orders": "none"})
    assert "body_order" not in by_spark_columns(spark, lake)
    assert len(by_duckdb(lake, ["body"])) == 6


def test_evolving_bodies_that_do_not_fit_are_told(lake: str, export_bodies: Export) -> None:
    told = export_bodies(
        *({"a": 1}, Text(DEEP), Text(f'{{"a": 2, "deep": {DEEP}}}'), {"a": 3, "A": 1}, 4),
        body_schemas={"orders": "evolve"},
    )

    assert by_duckdb(lake, ["body_a"]) == [(1,), (None,), (None,), (3,), (None,)]
    assert any("3 of 5 bodies of queue 'orders' do not fit" in line for line in told)
    assert any(
        "1 of 5 bodies of queue 'orders' have fields without a column" in line for line in told
    )
    assert any("'A' gets no column" in line for line in told)


def test_fields_beyond_the_limit_get_no_column_and_are_told_in_one_line(
    lake: str, export_bodies: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_columns, "MOST", 2)

    told = export_bodies(
        *({f"k{n}": n} for n in range(9)), {"k0": 2.5}, body_schemas={"orders": "evolve"}
    )

    [line] = [line for line in told if "no column" in line]
    assert "queue 'orders': field 'k2' and 6 more get no column. The bodies have" in line
    assert by_duckdb(lake, ["body_k0", "body_k1"])[-1] == (2.5, None)
    # Executors stop to note new types.
    typed = body_columns.Typed({"fields": {"type": "struct", "fields": []}, "evolves": True})
    for n in range(9):
        texts = pa.array([f'{{"k{n}": 1}}'])
        typed.add_columns(pa.record_batch({"id": pa.array([n]), "body": texts}))
    assert len(typed.new) == 3


@needs_real_payloads
def test_real_webhooks_evolve_without_a_misfit(
    spark: Any, lake: str, url: str, export_bodies: Export
) -> None:
    sent = [json.loads(body) for _, body in load(REAL_PAYLOADS)]

    export_bodies(*sent, body_schemas={"hooks": "evolve"}, queue="hooks")

    typed = spark.read.format("pgqueue").options(url=url, bodySchema="infer", columns="id,body")
    read = typed.load().orderBy("id").select("body.action", "_corrupt_record").collect()
    expected = [(body.get("action"), None) for body in sent]
    assert by_duckdb(lake, ["body_action", "_corrupt_record"]) == expected
    assert [tuple(row) for row in read] == expected
    names = {name for body in sent for name, value in body.items() if value not in (None, {}, [])}
    assert {f"body_{name}" for name in names} <= set(by_spark_columns(spark, lake))


def test_column_has_one_type_in_a_lake(lake: str, export_bodies: Export) -> None:
    export_bodies({"n": 1}, body_schemas={"orders": "n bigint"})

    with pytest.raises(InvalidOption, match="body_n of this lake has the type bigint"):
        export_bodies({"n": "x"}, queue="mails", body_schemas={"mails": "n string"})
    told = export_bodies({"n": "x", "m": 2}, queue="mails", body_schemas={"mails": "evolve"})

    assert any("'mails': field 'n' gets no column" in line for line in told)
    fields = Lake.objects.get().body_schemas["mails"]["fields"]["fields"]
    assert [field["name"] for field in fields] == ["m"]


def test_column_that_queues_share_widens_in_all_of_them(lake: str, export_bodies: Export) -> None:
    evolve = {"orders": "evolve", "mails": "evolve"}
    Message.objects.create_queue("orders")
    export_bodies({"n": 1}, queue="mails", body_schemas=evolve)
    export_bodies({"n": 2})

    export_bodies({"n": 2.5}, {"n": 3})
    assert by_duckdb(lake, ["body_n"]) == [(1.0,), (2.0,), (2.5,), (3.0,)]

    export_bodies(body_schemas={"orders": "n string"})
    assert by_duckdb(lake, ["body_n"]) == [("1",), ("2",), ("2.5",), ("3",)]

    export_bodies(body_schemas={"orders": "n double", "mails": "n double"})
    assert by_duckdb(lake, ["body_n"]) == [(1.0,), (2.0,), (2.5,), (3.0,)]


def test_field_of_a_struct_changes_its_type_alone(lake: str, export_bodies: Export) -> None:
    schema = "by struct<id bigint, name string>"
    export_bodies({"by": {"id": 1, "name": "x"}}, body_schemas={"orders": schema})

    export_bodies({"by": {"id": "y"}}, body_schemas={"orders": "by struct<id string>"})

    expected = [({"id": "1", "name": "x"},), ({"id": "y", "name": None},)]
    assert by_duckdb(lake, ["body_by"]) == expected


def test_schema_of_a_dropped_queue_can_be_unset(lake: str, export_bodies: Export) -> None:
    export_bodies({"n": 1}, body_schemas={"orders": "n bigint"})
    Message.objects.drop_queue("orders")
    with pytest.raises(InvalidOption, match="body_n of this lake has the type bigint"):
        export_bodies({"n": "x"}, queue="mails", body_schemas={"mails": "n string"})

    export_bodies(queue="mails", body_schemas={"Orders": "none", "mails": "n string"})

    assert by_duckdb(lake, ["body_n"]) == [(None,), ("x",)]
    assert list(Lake.objects.get().body_schemas) == ["mails"]


def test_lake_with_columns_of_two_types_becomes_no_table(
    lake: str, catalog: Any, export_bodies: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_bodies({"n": 1}, body_schemas={"orders": "n bigint"})
    with monkeypatch.context() as patch:
        patch.setattr(export_job, "_compact", interrupted)
        with pytest.raises(KeyboardInterrupt):
            export_bodies({"n": "x"}, body_schemas={"orders": "n string"})

    with pytest.raises(InvalidOption, match="Export once without --table"):
        export_bodies(table=TABLE)
    export_bodies()
    export_bodies(table=TABLE)

    table = catalog.load_table(("shop", "archive")).scan().to_arrow().sort_by("id")
    assert table.column("body_n").to_pylist() == ["1", "x"]


def interrupted(*arguments: Any) -> None:
    raise KeyboardInterrupt


def test_iceberg_table_keeps_its_types(lake: str, catalog: Any, export_bodies: Export) -> None:
    export_bodies({"n": 1}, body_schemas={"orders": "evolve"}, table=TABLE)
    export_bodies({"n": 2.5}, {"n": 3})

    assert by_duckdb(lake, ["body_n"]) == [(1,), (None,), (3,)]
    with pytest.raises(InvalidOption, match="whose columns keep their types"):
        export_bodies(body_schemas={"orders": "n double"})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"nowhere": "a int"}, "has no queue 'nowhere'"),
        ({"orders": "`first name` string"}, "cannot be a column"),
        ({"orders": "a int, A int"}, "would be the same column"),
        ({"orders": "a variant"}, "cannot have the type variant"),
        ({"orders": "a number"}, "as in orders='customer bigint, price double'"),
        ({"orders": '{"type": "order"}'}, "must be DDL such as"),
    ],
)
def test_schema_that_cannot_be_columns_is_refused(
    export_bodies: Export, given: dict[str, str], told: str
) -> None:
    with pytest.raises(Exception, match=told):
        export_bodies({"a": 1}, body_schemas=given)
