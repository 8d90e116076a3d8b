"""Typed columns in a lake for the fields of a queue's bodies, beside the bodies' JSON.

A field ``price`` becomes the column ``body_price``. If a body does not fit, all these columns are
NULL, and its text is in ``_corrupt_record``. A queue's schema is given as

* DDL or the JSON of a StructType: these fields. A later export may add fields,
* ``infer``: the fields of a sample of bodies, inferred once and kept,
* ``evolve``: like ``infer``, and each export adds new fields from a sample of its messages.

No column is ever removed. Whole numbers are stored as bigint and fractions as double, so that a
field that is declared wider later has the same type in older files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from django_pgqueue.engine.names import own_tables
from pyspark_pgqueue.errors import InvalidOption
from pyspark_pgqueue.source import bodies, columns, database
from pyspark_pgqueue.source.arrow import arrow_schema
from pyspark_pgqueue.source.options import Options

PREFIX = "body_"
EVOLVE = "evolve"
#: Number of a queue's bodies that ``infer`` and ``evolve`` sample.
SAMPLE = 1000

_PLAIN = (BooleanType, StringType, DateType, TimestampType)


def declare(
    connection: psycopg.Connection[Any],
    options: Options,
    before: Mapping[str, Any],
    given: Mapping[str, str],
    span: tuple[int, int],
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Return the lake's schemas by queue, updated for the next run.

    Applies the declarations in ``given``, and infers new fields of evolving schemas.

    Arguments:
        options: select the lake's queues.
        before: the lake's present schemas.
        given: new declarations by queue: fields as DDL or JSON, ``infer``, or ``evolve``.
        span: the next run's transactions, from the first number up to but excluding the second.

    Raises InvalidOption.
    """
    known = {name.lower(): (pk, name) for pk, name in database.queues(connection, options)}
    if unknown := [name for name in given if name.lower() not in known]:
        raise InvalidOption(
            f"The lake has no queue {', '.join(map(repr, unknown))}. Correct the queue's name in "
            f"the body schemas."
        )
    chosen = {known[name.lower()][1]: text for name, text in given.items()}
    schemas = dict(before)
    for name in sorted({*schemas, *chosen}):
        text = chosen.get(name)
        schema = schemas.get(name, {"fields": None, "evolves": False})
        evolves = schema["evolves"] if text is None else text == EVOLVE
        fields = schema["fields"] and StructType.fromJson(schema["fields"])
        others = _fields_of(each for other, each in schemas.items() if other != name)
        if text not in {None, EVOLVE, bodies.INFER}:
            fields = _declared(fields, str(text), others)
        elif (fields is None or evolves) and name.lower() in known:
            sample = _sample(connection, known[name.lower()][0], *span)
            fields = _inferred(name, fields, sample, others, tell)
        schemas[name] = {"fields": fields and fields.jsonValue(), "evolves": evolves}
    return schemas


def _declared(before: StructType | None, text: str, others: list[StructType]) -> StructType:
    declared = _wide(DataType.fromDDL(bodies.as_ddl(text)))
    for name in declared.names:
        if not name.isidentifier():
            raise InvalidOption(
                f"Field {name!r} cannot be a column: a name may contain only letters, digits and "
                f"underscores, and must not begin with a digit."
            )
    found = _added(before or StructType([]), declared)
    reduce(_added, [*others, found])
    return found


def _inferred(
    queue: str,
    before: StructType | None,
    sample: list[str],
    others: list[StructType],
    tell: Callable[[str], None],
) -> StructType | None:
    """Return the schema with a sample's new fields added, except those that cannot be columns."""
    try:
        inferred = bodies.infer(sample)
    except InvalidOption:
        return before  # no body has a field yet
    found = before or StructType([])
    for field in inferred.fields:
        one = StructType([field])
        try:
            if field.name.isidentifier():
                grown = _added(found, one)
                reduce(_added, [*others, grown])
                found = grown
        except InvalidOption as error:
            if field.name not in found.names:
                tell(f"Queue {queue!r}: field {field.name!r} gets no column. {error}")
    return found


def _fields_of(schemas: Iterable[dict[str, Any]]) -> list[StructType]:
    return [StructType.fromJson(each["fields"]) for each in schemas if each["fields"]]


def _added(one: StructType, other: StructType) -> StructType:
    """Merge two schemas. Raises InvalidOption if a field has two types or two spellings."""
    fields = {field.name.lower(): field for field in one.fields}
    for field in other.fields:
        there = fields.setdefault(field.name.lower(), field)
        if there.name != field.name:
            raise InvalidOption(
                f"Fields {there.name!r} and {field.name!r} would be the same column, since readers "
                f"ignore case. Declare only one of them."
            )
        kind = _joined(field.name, there.dataType, field.dataType)
        fields[field.name.lower()] = StructField(field.name, kind)
    return StructType(list(fields.values()))


def _joined(name: str, one: DataType, other: DataType) -> DataType:
    if isinstance(one, StructType) and isinstance(other, StructType):
        return _added(one, other)
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return ArrayType(_joined(name, one.elementType, other.elementType))
    if one != other:
        raise InvalidOption(
            f"Column {PREFIX}{name} of this lake has the type {one.simpleString()}, so the field "
            f"{name} cannot be {other.simpleString()}. Declare it as {one.simpleString()}, or "
            f"export to another lake."
        )
    return one


def _wide(kind: Any) -> Any:
    """Return the type with bigint for whole numbers and double for fractions."""
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, _wide(f.dataType)) for f in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_wide(kind.elementType))
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        return MapType(StringType(), _wide(kind.valueType))
    if isinstance(kind, DecimalType):
        return DecimalType(38, kind.scale)
    if isinstance(kind, IntegralType):
        return LongType()
    if isinstance(kind, (FloatType, DoubleType)):
        return DoubleType()
    if isinstance(kind, _PLAIN):
        return kind
    raise InvalidOption(
        f"A lake's column cannot have the type {kind.simpleString()}. Declare another type, such "
        f"as string."
    )


def _sample(connection: psycopg.Connection[Any], pk: int, low: int, high: int) -> list[str]:
    """Return a sample of the bodies that the next run exports."""
    message, archive = own_tables(pk)
    rows = connection.execute(
        f"SELECT m.body::text FROM {archive} a "
        f"JOIN {message} m ON m.id = a.id AND m.enqueued_at = a.enqueued_at "
        f"WHERE a.archive_xid >= %s AND a.archive_xid < %s AND m.body IS NOT NULL LIMIT %s",
        [low, high, SAMPLE],
    )
    return [text for (text,) in rows]


# Runs on executors too


def arrow_fields(schemas: Mapping[str, Any]) -> pa.Schema:
    """A lake's columns for fields of bodies, and ``_corrupt_record`` if there are any."""
    found = reduce(_added, _fields_of(schemas.values()), StructType([]))
    fields = [StructField(f"{PREFIX}{field.name}", field.dataType) for field in found.fields]
    if fields:
        fields.append(StructField(columns.CORRUPT, StringType()))
    return arrow_schema(StructType(fields))


def add_columns(rows: pa.RecordBatch, fields: StructType) -> pa.RecordBatch:
    """Append a column for each field of the bodies, and ``_corrupt_record``."""
    kind = arrow_schema(StructType([StructField("body", fields)])).field(0).type
    texts = rows.column("body")
    values = bodies.parsed(texts, fields, kind)
    names = [f"{PREFIX}{name}" for name in fields.names]
    added = [*values.flatten(), bodies.corrupt(texts, values)]
    return pa.RecordBatch.from_arrays(
        [*rows.columns, *added], names=[*rows.schema.names, *names, columns.CORRUPT]
    )
