"""Bodies are converted as by Spark's from_json, value by value, and none ends a read or a run."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StructField, StructType, VariantType, VariantVal

from pyspark_pgqueue.source import bodies
from pyspark_pgqueue.source.arrow import arrow_schema

SMALL = f"0.{'0' * 300}1"
VALUES = [
    *(
        "null",
        "true",
        "false",
        "{}",
        "[]",
        '""',
        "0",
        "1",
        "7",
        "-1",
        "127",
        "128",
        "-129",
        "40000",
    ),
    *("2.0", "2.5", "1.5", "0.10", "-0.0", "1.005", "0.125", "3000000000", "1700000000"),
    *("9223372036854775807", "9223372036854775808", "9007199254740993", "1" + "0" * 16),
    *(
        "1" + "0" * 308,
        "1" + "0" * 400,
        SMALL,
        "1" * 40,
        "1.123456789012345678901",
    ),
    *(
        '"1"',
        '"3.10"',
        '"2.5"',
        '"1e3"',
        '" 1"',
        '"abc"',
        '"true"',
        '"1,000"',
        '"1_0"',
        '"YWJj"',
        '"YQ"',
    ),
    *(
        '"NaN"',
        '"Infinity"',
        '"-Infinity"',
        '"INF"',
        '"+INF"',
        '"-INF"',
        '"nan"',
        '"Nul\\"l\\n\\\\é"',
    ),
    *('"2026-01-05"', '"2026"', '"2026-01"', '"2026-1-5"', '" 2026-01-05 "', '"2026-02-30"'),
    *('"20260105"', '"0001-01-01"', '"today"', '"2026-01-05T"', '"2026-01-05Z"', '"2026-01-05T10"'),
    *(
        '"2026-01-05T10:00"',
        '"2026-01-05T10:00Z"',
        '"2026-01-05 10:00:00"',
        '"2026-01-05T10:00:00"',
    ),
    *('"2026-01-05T10:00:00Z"', '"2026-01-05T10:00:00.1+02:00"', '"2026-01-05T10:00:00+0200"'),
    *(
        '"2026-01-05T10:00:00-2:30"',
        '"2026-01-05T10:00:00 UTC+2"',
        '"2026-07-05 10:00:00 Europe/Berlin"',
    ),
    *('"2026-01-05T10:00:00.123456789Z"', '"2026-01-05T24:00:00Z"', '"2026-01-05T10:00:60Z"'),
    *('"2026-01-05T9:5:3Z"', '"2026-01-05T10:00:00X"', '"9999-12-31T23:59:59.999999Z"', '"-5"'),
    *("[1]", "[null]", '[1, "x"]', "[[1]]", '[{"b": 1}]', '[{"b": "x"}, {"b": 2}]', "[2.5, 0.10]"),
    *('{"b": 1}', '{"b": "x"}', '{"b": null}', '{"b": {"c": 1}}', '{"b": [1]}', '{"B": 1}'),
    '{"x": 1.50, "é": "ü\\u0001/", "y": [true, null, {}]}',
]
TYPES = [
    *("string", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "binary"),
    *("decimal(10,2)", "decimal(38,2)", "decimal(38,18)", "decimal(3,0)"),
    *("date", "timestamp", "timestamp_ntz", "struct<b: bigint>", "struct<b: struct<c: bigint>>"),
    *("array<bigint>", "array<string>", "array<array<bigint>>", "array<struct<b: bigint>>"),
    *("map<string, bigint>", "map<string, string>", "map<string, struct<c: bigint>>"),
]
#: How a value stands in a body: alone, in a struct, in an array, in a map.
NESTED = "a {0}, s struct<a: {0}>, l array<{0}>, m map<string, {0}>"
#: As days or seconds since 1970, these are beyond the year 9999.
OUT_OF_RANGE = {'"20260105"', "9223372036854775807", "9007199254740993", "1" + "0" * 16}
#: Where this converter differs from from_json, and why.
WRITTEN = "the text is PostgreSQL's, exact; Spark writes JSON again, with doubles for fractions"
LOST = "Spark's parser loses its place in an array or map after text that is not base64"
DIFFERENCES = {
    ("tinyint", "128"): "Spark takes 128 to 255 as negative bytes; here they do not fit",
    **{("binary", value): LOST for value in ('"1"', '" 1"', '"today"')},
    **{("string", value): WRITTEN for value in VALUES if value[0] in "{[" and " " in value},
    **{("string", value): WRITTEN for value in ("0.10", SMALL, "1.123456789012345678901")},
    **{("array<string>", value): WRITTEN for value in VALUES if value[:2] == "[{"},
    ("array<string>", "[2.5, 0.10]"): WRITTEN,
    ("map<string, string>", '{"b": {"c": 1}}'): WRITTEN,
    ("map<string, string>", VALUES[-1]): WRITTEN,
}


def arrow_type(kind: DataType) -> pa.DataType:
    return arrow_schema(StructType([StructField("body", kind)])).field(0).type


def converted(text: str, kind: DataType) -> Any:
    """The value by Arrow's parser where it takes the text, and always by the converter."""
    alone = bodies.parsed(pa.array([text]), kind, arrow_type(kind))
    value, fits = bodies.converted(text, kind)
    by_converter = pa.array([value], arrow_type(kind)), pa.array([None if fits else text])
    found, again = (
        [values.to_pylist(), corrupt.cast(pa.string()).to_pylist()]
        for values, corrupt in (alone, by_converter)
    )
    assert repr(found) == repr(again)
    return found


def body(value: str) -> str:
    return f'{{"k": 5, "a": {value}, "s": {{"a": {value}}}, "l": [{value}], "m": {{"n": {value}}}}}'


def values_of(kind: str) -> list[str]:
    """The values to compare: no dates and times that Python has not."""
    return [v for v in VALUES if kind[:4] not in ("date", "time") or v not in OUT_OF_RANGE]


def test_each_value_is_what_from_json_gives(spark: Any) -> None:
    corrupt = {"columnNameOfCorruptRecord": "_corrupt_record"}
    differ: dict[tuple[str, str], Any] = {}
    schemas = [f"k int, {NESTED.format(kind)}" for kind in TYPES]
    columns = [[body(value) for value in values_of(kind)] for kind in TYPES]
    rows = list(enumerate(zip_longest(*columns)))
    names = ", ".join(f"c{place} string" for place in range(len(TYPES)))
    frame = spark.createDataFrame(rows, f"i int, row struct<{names}>").coalesce(1).orderBy("i")
    theirs = frame.select(
        *(
            f.from_json(f"row.c{place}", f"{schema}, _corrupt_record string", corrupt).alias(
                f"c{place}"
            )
            for place, schema in enumerate(schemas)
        )
    ).toArrow()

    for place, (name, schema) in enumerate(zip(TYPES, schemas, strict=True)):
        kind = StructType.fromDDL(schema)
        found = theirs[f"c{place}"].slice(0, len(columns[place])).to_pylist()
        for value, text, expected in zip(values_of(name), columns[place], found, strict=True):
            told = expected.pop("_corrupt_record")
            [ours], [record] = converted(text, kind)
            if repr((ours, record)) != repr((expected, told)):
                differ[name, value] = (ours, record), (expected, told)

    assert set(differ) == set(DIFFERENCES), differ


def test_arrows_parser_and_the_converter_agree(spark: Any) -> None:
    """In bodies without maps, which Arrow's parser refuses."""
    for name in TYPES:
        kind = StructType.fromDDL(f"k int, {NESTED.format(name).rpartition(', m ')[0]}")
        for value in values_of(name):
            converted(body(value), kind)


def test_bodies_that_are_no_objects_or_too_large_for_spark_are_misfits() -> None:
    kind = StructType().add("a", "long").add("raw", "string")
    deep, digits = "[" * 1200 + "]" * 1200, "1" * 5001

    for text in (
        *("1", '"x"', "[1]", '[{"a": 1}]', "true"),
        *(f'{{"a": 1, "x": {deep}}}', f'{{"a": 1, "raw": {deep}}}', deep),
        *(f'{{"a": {digits}}}', f'{{"a": 1, "x": [{digits}]}}', f'{{"a": 1, "x": 0.{digits}}}'),
    ):
        assert converted(text, kind) == [[None], [text]]
    assert converted("null", kind) == [[None], [None]]
    # Brackets and digits of texts count for nothing.
    text = f'{{"a": 1, "x": "{"[" * 1200}{digits}\\""}}'
    assert converted(text, kind) == [[{"a": 1, "raw": None}], [None]]


def test_a_misfit_leaves_the_bodies_beside_it() -> None:
    kind = StructType().add("n", "long")
    texts = [f'{{"n": {n}}}' for n in range(100)]
    texts[70] = '{"n": "x"}'
    texts[3] = "[1]"

    values, corrupt = bodies.parsed(pa.array(texts), kind, arrow_type(kind))

    assert [value and value["n"] for value in values.to_pylist()] == [
        None if n in (3, 70) else n for n in range(100)
    ]
    assert {n: text for n, text in enumerate(corrupt.to_pylist()) if text} == {
        3: "[1]",
        70: '{"n": "x"}',
    }


@pytest.mark.parametrize("value", ["null", "1", "0.10", '"x"', '{"b": [1, null]}', "9" * 30])
def test_variant_may_be_in_a_struct(value: str) -> None:
    kind = StructType().add("v", VariantType()).add("n", "long")

    (found, fits) = bodies.converted(f'{{"v": {value}}}', kind)

    variant = VariantVal(found["v"]["value"], found["v"]["metadata"])
    expected = VariantVal.parseJson(value)
    assert (variant.toJson(), fits) == (expected.toJson(), True)
    assert bodies.converted(value, VariantType())[1]


def test_types_are_inferred_and_fields_without_a_value_have_none() -> None:
    found = bodies.infer(
        [
            '{"a": 1, "b": {}, "c": [], "d": null, "e": {"f": {}}}',
            '{"a": 2.5, "g": [{"h": 1}, {"i": "x"}], "j": 1}',
            '{"j": "x", "k": %s}' % ("9" * 30),
            "[1]",
            '{"deep": %s}' % ("[" * 1200 + "]" * 1200),
            '{"digits": %s}' % ("1" * 5001),
        ]
    )

    assert bodies.typed(bodies.known(found)).simpleString() == (
        "struct<a:double,g:array<struct<h:bigint,i:string>>,j:string,k:string>"
    )
