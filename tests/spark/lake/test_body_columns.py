"""Typed columns of a lake for the fields of bodies, read without this package."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_pgqueue.models import Lake, Message
from pyspark_pgqueue.errors import InvalidOption
from tests.spark.conftest import archive_all, export
from tests.spark.lake.test_iceberg import TABLE
from tests.spark.lake.test_iceberg import catalog as catalog

Export = Callable[..., list[str]]
COLUMNS = ["body_order", "body_price", "body_tags", "_corrupt_record"]


@pytest.fixture
def export_bodies(spark: Any, url: str, lake: str) -> Export:
    """Send bodies to a queue, archive and export them; returns the notices of the export."""

    def send_and_export(*bodies: Any, queue: str = "orders", **options: Any) -> list[str]:
        Message.objects.create_queue(queue)
        if bodies:
            Message.objects.send_batch(queue, list(bodies))
        archive_all(queue)
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
    newest = max(Path(lake, "archive").rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    frame = polars.scan_parquet(
        f"{lake}/archive/**/*.parquet",
        schema=polars.read_parquet_schema(newest),
        missing_columns="insert",
        hive_partitioning=False,
    )
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


def test_inferred_schema_is_kept_and_an_evolving_one_grows(
    spark: Any, lake: str, export_bodies: Export
) -> None:
    export_bodies({"a": 1}, body_schemas={"orders": "infer"})
    export_bodies({"a": 2, "b": 3}, body_schemas={"orders": "infer"})
    assert set(spark.read.parquet(f"{lake}/archive").columns) >= {"body_a"}
    assert "body_b" not in by_spark_columns(spark, lake)

    export_bodies({"a": 4, "b": 5}, body_schemas={"orders": "evolve"})
    export_bodies({"a": "text", "b": 6, "c": [1]})

    columns = ["body_a", "body_b", "body_c", "_corrupt_record"]
    assert by_spark(spark, lake, columns) == [
        (1, None, None, None),
        (2, None, None, None),
        (4, 5, None, None),
        (None, None, None, '{"a": "text", "b": 6, "c": [1]}'),
    ]


def by_spark_columns(spark: Any, lake: str) -> list[str]:
    return list(spark.read.option("mergeSchema", "true").parquet(f"{lake}/archive").columns)


def test_column_has_one_type_in_a_lake(lake: str, export_bodies: Export) -> None:
    export_bodies({"n": 1}, body_schemas={"orders": "n bigint"})

    for queue in ("orders", "mails"):
        with pytest.raises(InvalidOption, match="body_n of this lake has the type bigint"):
            export_bodies({"n": "x"}, queue=queue, body_schemas={queue: "n string"})
    told = export_bodies({"n": "x", "m": 2}, queue="mails", body_schemas={"mails": "infer"})

    assert any("'mails': field 'n' gets no column" in line for line in told)
    fields = Lake.objects.get().body_schemas["mails"]["fields"]["fields"]
    assert [field["name"] for field in fields] == ["m"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"nowhere": "a int"}, "has no queue 'nowhere'"),
        ({"orders": "`first name` string"}, "cannot be a column"),
        ({"orders": "a int, A int"}, "would be the same column"),
        ({"orders": "a variant"}, "cannot have the type variant"),
        ({"orders": "a number"}, "number"),
    ],
)
def test_schema_that_cannot_be_columns_is_refused(
    export_bodies: Export, given: dict[str, str], told: str
) -> None:
    with pytest.raises(Exception, match=told):
        export_bodies({"a": 1}, body_schemas=given)
