"""Converts bodies from JSON text to structs.

A body that does not fit its type is NULL. Its text is in the column ``_corrupt_record``, as in
Spark's own JSON reader.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
    VariantType,
    VariantVal,
)

from pyspark_pgqueue.errors import InvalidOption
from pyspark_pgqueue.source import database
from pyspark_pgqueue.source.options import Options, moment_of

INFER = "infer"

_MISFITS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)


def type_of(options: Options) -> str:
    """The type that the option bodySchema asks for, as DDL. Raises InvalidOption."""
    if options.body_schema != INFER:
        return as_ddl(str(options.body_schema))
    with database.connect(options.url) as connection:
        return ddl(infer(database.sample(connection, options)))


def as_ddl(given: str) -> str:
    """Return a body's type, given its fields as DDL or as ``StructType.json()``.

    DDL is not checked here: Spark parses it later, where there is a JVM.

    >>> as_ddl("order bigint, name string")
    'struct<order bigint, name string>'

    Raises InvalidOption for JSON that is not a StructType.
    """
    if not given.lstrip().startswith("{"):
        return f"struct<{given}>"
    try:
        return ddl(StructType.fromJson(json.loads(given)))
    except (PySparkException, ValueError, KeyError, TypeError) as error:
        raise InvalidOption(
            f"bodySchema must be DDL such as 'order bigint, name string', the JSON of a "
            f"StructType, or {INFER}, not {given!r}."
        ) from error


def ddl(kind: DataType) -> str:
    """A type as DDL, with every name quoted.

    >>> ddl(infer(['{"to": {"first name": "x"}}']))
    'struct<`to`: struct<`first name`: string>>'
    """
    if isinstance(kind, StructType):
        fields = (
            f"`{field.name.replace('`', '``')}`: {ddl(field.dataType)}" for field in kind.fields
        )
        return f"struct<{', '.join(fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{ddl(kind.elementType)}>"
    return str(kind.simpleString())


def infer(texts: Iterable[str | None]) -> StructType:
    """Infer the fields of some bodies. Bodies that are not objects are ignored.

    >>> infer(['{"a": 1}', '{"a": 1.5, "b": ["x"]}']).simpleString()
    'struct<a:double,b:array<string>>'
    """
    found: DataType = NullType()
    for text in texts:
        value = None if text is None else json.loads(text)
        if isinstance(value, dict):
            found = _merged(found, _type_of(value))
    fields = _known(found)
    if not isinstance(fields, StructType) or not fields.fields:
        raise InvalidOption(
            "bodySchema cannot be inferred: none of the sampled bodies is an object with a field. "
            "Write the schema, or raise bodySample."
        )
    return fields


def _type_of(value: Any) -> DataType:
    if value is None:
        return NullType()
    if isinstance(value, bool):
        return BooleanType()
    if isinstance(value, int):
        return LongType() if -(2**63) <= value < 2**63 else StringType()
    if isinstance(value, float):
        return DoubleType()
    if isinstance(value, list):
        element: DataType = NullType()
        for each in value:
            element = _merged(element, _type_of(each))
        return ArrayType(element)
    if isinstance(value, dict):
        return StructType([StructField(name, _type_of(each)) for name, each in value.items()])
    return StringType()


def _merged(one: DataType, other: DataType) -> DataType:
    """A type that holds values of both types; string if no other type does."""
    if one == other or isinstance(other, NullType):
        return one
    if isinstance(one, NullType):
        return other
    if isinstance(one, StructType) and isinstance(other, StructType):
        types = {field.name: field.dataType for field in one.fields}
        for field in other.fields:
            types[field.name] = _merged(types.get(field.name, NullType()), field.dataType)
        return StructType([StructField(name, kind) for name, kind in types.items()])
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return ArrayType(_merged(one.elementType, other.elementType))
    if {type(one), type(other)} == {LongType, DoubleType}:
        return DoubleType()
    return StringType()


def _known(kind: DataType) -> DataType:
    """The type, with string for fields that are always null."""
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, _known(f.dataType)) for f in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_known(kind.elementType))
    return StringType() if isinstance(kind, NullType) else kind


def parsed(texts: pa.Array, spark_type: DataType, arrow_type: pa.DataType) -> pa.Array:
    """Convert JSON texts to the type of a schema. Values that do not fit become NULL."""
    given = texts.to_pylist()
    if isinstance(spark_type, VariantType):
        variants = [None if text is None else VariantVal.parseJson(text) for text in given]
        return pa.array(
            [v and {"value": bytes(v.value), "metadata": bytes(v.metadata)} for v in variants],
            type=arrow_type,
        )
    fractions: list[str] = []

    def fraction(text: str) -> float:
        fractions.append(text)
        return float(text)

    values = [None if text is None else json.loads(text, parse_float=fraction) for text in given]
    # Arrow would truncate 2.5 to 2 for an integer type.
    if not (fractions and "int" in str(arrow_type)):
        try:
            return pa.array(values, type=arrow_type)
        except _MISFITS:
            pass
    return pa.array([_fitted(value, arrow_type) for value in values], type=arrow_type)


def corrupt(texts: pa.Array, values: pa.Array) -> pa.Array:
    """The texts that were not converted, None for the others. JSON null counts as converted."""
    found = [
        text if text != "null" and not fits else None
        for text, fits in zip(texts.to_pylist(), values.is_valid().to_pylist(), strict=True)
    ]
    return pa.array(found, type=pa.string())


def _fitted(value: Any, arrow_type: pa.DataType) -> Any:
    try:
        value = _converted(value, arrow_type)
        pa.array([value], type=arrow_type)
    except (*_MISFITS, ValueError):
        return None
    return value


def _converted(value: Any, arrow_type: pa.DataType) -> Any:
    """Convert a JSON value as from_json does.

    For a string type, values that are not strings become JSON text. For dates and timestamps,
    strings are parsed as ISO 8601.
    """
    if value is None:
        return None
    is_text = isinstance(value, str)
    if pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type):
        return value if is_text else json.dumps(value)
    if pa.types.is_integer(arrow_type) and isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{value} is not an integer")
    if pa.types.is_timestamp(arrow_type) and is_text:
        return moment_of(value)
    if pa.types.is_date(arrow_type) and is_text:
        return dt.date.fromisoformat(value)
    if pa.types.is_struct(arrow_type) and isinstance(value, dict):
        fields = [arrow_type.field(place) for place in range(arrow_type.num_fields)]
        return {field.name: _converted(value.get(field.name), field.type) for field in fields}
    if pa.types.is_map(arrow_type) and isinstance(value, dict):
        return [(name, _converted(each, arrow_type.item_type)) for name, each in value.items()]
    if pa.types.is_list(arrow_type) and isinstance(value, list):
        return [_converted(each, arrow_type.value_type) for each in value]
    return value
