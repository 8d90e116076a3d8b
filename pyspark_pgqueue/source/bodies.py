"""Converts bodies from JSON text to structs, value by value as Spark's ``from_json`` does.

A value that does not fit its field is NULL, and so is a body that is no object. The text of such a
body is in the column ``_corrupt_record``. ``tests/spark/source/test_bodies.py`` compares each type
with ``from_json``, and lists the differences with their reasons.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache, reduce
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json
from pyspark.errors import PySparkException
from pyspark.sql import types as t

from pyspark_pgqueue.errors import InvalidOption
from pyspark_pgqueue.source import database
from pyspark_pgqueue.source.options import Options

INFER = "infer"
#: The longest number in digits, and the deepest nesting, that Spark's parser reads.
LIMIT = 1000
#: Below this level, inferred fields are JSON text.
_DEEPEST = 20
#: Texts that Arrow's parser refuses are cut into parts of this length, to find those it takes.
_FEW = 64

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.A)
_DATE = re.compile(r"(\d{4})(?:-(\d\d?)(?:-(\d\d?)(?:[ T].*)?)?)?", re.S | re.A)
_TIME = re.compile(
    r"(\d{4})(?:-(\d\d?)(?:-(\d\d?)"
    r"(?:[ T](\d\d?)(?::(\d\d?)(?::(\d\d?)(?:\.(\d*))?([^\d.].*)?)?)?)?)?)?",
    re.S | re.A,
)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d\d?)(?::?(\d\d?))?", re.A)
# Spark 1.5 stored a date as days since 1970.
_DAYS = re.compile(r"[+-]?\d{1,9}", re.A)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_BITS = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}
# Digits and dots as zeros, to find a number that is too long.
_DIGITS = bytes(48 if chr(code) in "0123456789." else 32 for code in range(256))
_LONG = b"0" * (LIMIT + 1)
_DECLARED = (t.DateType, t.TimestampType, t.DecimalType, t.MapType)
_SPECIAL = {"NaN", "Infinity", "+Infinity", "-Infinity", "+INF", "-INF"}


class _Number(str):
    """A number of JSON, as its text."""


class _Misfit(Exception):
    """A value does not fit its type. What does fit is in ``rest``, or None."""

    def __init__(self, rest: Any = None) -> None:
        self.rest = rest


def type_of(options: Options) -> str:
    """The type that the option bodySchema asks for, as DDL. Raises InvalidOption."""
    if options.body_schema != INFER:
        return as_ddl(str(options.body_schema))
    with database.connect(options.url) as connection:
        found = known(infer(database.sample(connection, options)))
    if found is None:
        raise InvalidOption(
            "bodySchema cannot be inferred: none of the sampled bodies is an object with a field. "
            "Write the schema, or raise bodySample."
        )
    return ddl(found)


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
        return ddl(shape_of(t.StructType.fromJson(json.loads(given))))
    except (PySparkException, ValueError, KeyError, TypeError) as error:
        raise InvalidOption(
            f"bodySchema must be DDL such as 'order bigint, name string', the JSON of a "
            f"StructType, or {INFER}, not {given!r}."
        ) from error


# Types while they are inferred or changed: a struct is a dict of its fields, an array a list of its
# element, anything else Spark's type.


def shape_of(kind: t.DataType) -> Any:
    if isinstance(kind, t.StructType):
        return {field.name: shape_of(field.dataType) for field in kind.fields}
    return [shape_of(kind.elementType)] if isinstance(kind, t.ArrayType) else kind


def typed(shape: Any) -> Any:
    """Spark's type of a shape."""
    if isinstance(shape, dict):
        return t.StructType([t.StructField(name, typed(each)) for name, each in shape.items()])
    return t.ArrayType(typed(shape[0])) if isinstance(shape, list) else shape


def ddl(shape: Any) -> str:
    """A shape as DDL, with every name quoted.

    >>> ddl(infer(['{"to": {"first name": "x"}}']))
    'struct<`to`: struct<`first name`: string>>'
    """
    if isinstance(shape, dict):
        fields = (f"`{name.replace('`', '``')}`: {ddl(each)}" for name, each in shape.items())
        return f"struct<{', '.join(fields)}>"
    return f"array<{ddl(shape[0])}>" if isinstance(shape, list) else str(shape.simpleString())


def infer(texts: Iterable[str | None]) -> dict[str, Any]:
    """Infer the fields of some bodies. Bodies that are not objects have none.

    >>> ddl(infer(['{"a": 1}', '{"a": 1.5, "b": ["x"]}']))
    'struct<`a`: double, `b`: array<string>>'

    Fields that are only ever null, or empty, have no type yet: see :func:`known`.
    """
    found: dict[str, Any] = {}
    for text in texts:
        try:
            value = _decoded(text or "null")
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            merge(found, _inferred(value))
    return found


def _inferred(value: Any, level: int = 0) -> Any:
    if isinstance(value, dict) and level < _DEEPEST:
        return {name: _inferred(each, level + 1) for name, each in value.items()}
    if isinstance(value, list) and level < _DEEPEST:
        return [reduce(merge, (_inferred(each, level + 1) for each in value), t.NullType())]
    if isinstance(value, _Number):
        if "." in value:
            return t.DoubleType()
        return t.LongType() if _fits(value, 64) else t.StringType()
    if value is None:
        return t.NullType()
    return t.BooleanType() if isinstance(value, bool) else t.StringType()


def merge(one: Any, other: Any) -> Any:
    """Return a shape for values of both: double for bigint and double, else string.

    Adds the other's fields to ``one``. A type that only a declaration gives stays as it is.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        for name, shape in other.items():
            one[name] = merge(one[name], shape) if name in one else shape
        return one
    if isinstance(one, list) and isinstance(other, list):
        return [merge(one[0], other[0])]
    if one == other or isinstance(other, t.NullType) or isinstance(one, _DECLARED):
        return one
    if isinstance(one, t.NullType):
        return other
    is_number = {type(one), type(other)} == {t.LongType, t.DoubleType}
    return t.DoubleType() if is_number else t.StringType()


def known(shape: Any) -> Any:
    """The shape without fields that have no type yet: only null, ``{}`` or ``[]`` was seen there.

    >>> ddl(known(infer(['{"a": {}, "b": 1, "c": [null]}'])))
    'struct<`b`: bigint>'

    None if nothing is left.
    """
    if isinstance(shape, dict):
        types = ((name, known(each)) for name, each in shape.items())
        return {name: each for name, each in types if each is not None} or None
    if isinstance(shape, list):
        element = known(shape[0])
        return None if element is None else [element]
    return None if isinstance(shape, t.NullType) else shape


def parsed(
    texts: pa.Array,
    kind: t.DataType,
    arrow_type: pa.DataType,
    seen: pa.DataType | None = None,
    slow: list[str | None] | None = None,
) -> tuple[pa.Array, pa.Array]:
    """Convert JSON texts; returns the values, and the texts that do not fit (None: it fits).

    With ``seen``, a type that has all known fields, texts with other fields, or which do not fit,
    are appended to ``slow``.
    """
    quick = _quickly(texts, arrow_type, seen)
    if quick is not None:
        return quick, pa.nulls(len(texts), pa.string())
    if len(texts) > _FEW:
        slices = [texts[at : at + _FEW] for at in range(0, len(texts), _FEW)]
        parts = [parsed(part, kind, arrow_type, seen, slow) for part in slices]
        return tuple(map(pa.concat_arrays, zip(*parts, strict=True)))
    given = texts.to_pylist()
    if slow is not None:
        slow += given
    rows = [converted(text, kind) for text in given]
    values = [value for value, _ in rows]
    corrupt = [None if fits else text for text, (_, fits) in zip(given, rows, strict=True)]
    return pa.array(values, type=arrow_type), pa.array(corrupt, type=pa.string())


def _quickly(texts: pa.Array, wanted: pa.DataType, seen: pa.DataType | None) -> pa.Array | None:
    """Convert texts by Arrow's parser, or return None if it refuses one of them.

    What it takes, ``from_json`` takes with the same result. It refuses more.
    """
    # Null as a text crashes Arrow's parser.
    if (
        texts.null_count
        or not wanted.num_fields
        or not pc.all(pc.starts_with(texts, "{")).as_py()
        or _is_extreme(texts)
    ):
        return None
    try:
        fields = _plain(wanted if seen is None else seen)
        lines = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
        data = pc.binary_join(lines, "\n")[0].as_buffer()
        rows = arrow_json.read_json(
            pa.BufferReader(data),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=data.size + 1),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=pa.schema(list(fields)),
                unexpected_field_behavior="ignore" if seen is None else "error",
            ),
        )
        [batch] = rows.combine_chunks().to_batches()
        return _only(batch.to_struct_array(), wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _is_extreme(texts: pa.Array) -> bool:
    """Whether a number may be too long for Spark, or a value too deep."""
    long = texts.filter(pc.greater(pc.binary_length(texts), LIMIT))
    return any(
        text.count(b"[") + text.count(b"{") > LIMIT or _LONG in text.translate(_DIGITS)
        for text in long.cast(pa.binary()).to_pylist()
    )


@lru_cache(maxsize=64)
def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type to read by Arrow's parser: text for dates and times.

    Raises ArrowNotImplementedError for types that Arrow reads in another way than Spark.
    """
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return pa.string()
    if kind in _PLAIN:
        return kind
    raise pa.ArrowNotImplementedError(str(kind))


_PLAIN = {pa.null(), pa.bool_(), pa.int16(), pa.int32(), pa.int64(), pa.float64(), pa.string()}


#: The dates and times that Arrow and Spark take alike.
_ALIKE = r"^(\d{3}[1-9]|\d\d[1-9]\d|\d[1-9]\d\d|[1-9]\d{3})-\d\d-\d\d([T ]\d\d:\d\d:\d\d.*)?$"


def _only(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The values in the wanted type, without the fields that it lacks."""
    if values.type == wanted:
        return values
    if pa.types.is_struct(wanted):
        fields = list(wanted)
        parts = [_only(values.field(field.name), field.type) for field in fields]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=values.is_null())
    if pa.types.is_list(wanted):
        return pa.ListArray.from_arrays(
            values.offsets,
            _only(values.values, wanted.value_type),
            type=wanted,
            mask=values.is_null(),
        )
    if (
        pa.types.is_temporal(wanted)
        and not pc.all(pc.match_substring_regex(values, _ALIKE)).as_py()
    ):
        raise pa.ArrowInvalid("a date or time that Spark may refuse")
    return values.cast(wanted)


def converted(text: str | None, kind: t.DataType) -> tuple[Any, bool]:
    """Convert one JSON text; returns the value for Arrow, and whether it fits.

    >>> converted('{"a": 1, "b": "x"}', t.StructType().add("a", "long").add("b", "long"))
    ({'a': 1, 'b': None}, False)
    """
    if text is None or (text == "null" and not isinstance(kind, t.VariantType)):
        return None, True
    try:
        return _fitted(_decoded(text), kind), True
    except _Misfit as misfit:
        return misfit.rest, False
    except (ValueError, RecursionError, PySparkException):
        return None, False


def _number(text: str) -> _Number:
    if len(text) > LIMIT:
        raise ValueError("a number is too long")
    return _Number(text)


_JSON = json.JSONDecoder(parse_float=_number, parse_int=_number)


def _decoded(text: str) -> Any:
    """Parse JSON, with numbers as _Number. Raises ValueError for what Spark does not read."""
    if text.count("[") + text.count("{") > LIMIT:
        level = 0
        for bracket in re.findall(r"[][{}]", _STRING.sub("", text)):
            level += 1 if bracket in "[{" else -1
            if level > LIMIT:
                raise ValueError("the nesting is too deep")
    return _JSON.decode(text)


def text_of(value: Any) -> str:
    """A decoded value as the JSON text that it had in PostgreSQL."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        fields = (f"{json.dumps(k, ensure_ascii=False)}: {text_of(v)}" for k, v in value.items())
        return f"{{{', '.join(fields)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(text_of, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _fitted(value: Any, kind: t.DataType) -> Any:
    """Convert a decoded value. Raises _Misfit."""
    if isinstance(kind, t.VariantType):
        variant = t.VariantVal.parseJson(text_of(value))
        return {"value": bytes(variant.value), "metadata": bytes(variant.metadata)}
    if value is None or isinstance(kind, t.NullType):
        return None
    if isinstance(kind, t.StringType):
        return value if type(value) is str else text_of(value)
    if isinstance(value, dict) and isinstance(kind, t.StructType):
        return _all(dict, _present(value, kind))
    if isinstance(value, dict) and isinstance(kind, t.MapType):
        return _all(list, [(name, each, kind.valueType) for name, each in value.items()])
    if isinstance(value, list) and isinstance(kind, t.ArrayType):
        return _all(_values, [(None, each, kind.elementType) for each in value])
    try:
        if isinstance(value, _Number):
            return _from_number(value, kind)
        if isinstance(value, str):
            return _from_text(value, kind)
    except (ValueError, ArithmeticError, KeyError, OSError) as error:
        raise _Misfit from error
    if isinstance(value, bool) and isinstance(kind, t.BooleanType):
        return value
    raise _Misfit


def _present(value: dict[str, Any], kind: t.StructType) -> list[tuple[Any, Any, t.DataType]]:
    return [(f.name, value[f.name], f.dataType) for f in kind.fields if f.name in value]


def _values(parts: list[tuple[Any, Any]]) -> list[Any]:
    return [value for _, value in parts]


def _all(into: Any, parts: list[tuple[Any, Any, t.DataType]]) -> Any:
    """Convert the (name, value, type) of some parts. A part that does not fit is NULL."""
    found, fits = [], True
    for name, value, kind in parts:
        try:
            found.append((name, _fitted(value, kind)))
        except _Misfit as misfit:
            # As in Spark, an element that is lost entirely takes its array or map with it.
            if misfit.rest is None and into is not dict:
                raise
            found.append((name, misfit.rest))
            fits = False
    if not fits:
        raise _Misfit(into(found))
    return into(found)


def _from_number(text: str, kind: t.DataType) -> Any:
    if isinstance(kind, (t.FloatType, t.DoubleType)):
        return float(text)
    if isinstance(kind, t.DecimalType):
        return _decimal(text, kind)
    if "." in text:
        raise _Misfit
    if type(kind) in _BITS and _fits(text, _BITS[type(kind)]):
        return int(text)
    if isinstance(kind, t.TimestampType) and _fits(micros := f"{text}000000", 64):
        return int(micros)
    raise _Misfit


def _fits(text: str, bits: int) -> bool:
    return len(text) <= 20 and -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1)


def _from_text(text: str, kind: t.DataType) -> Any:
    if isinstance(kind, (t.FloatType, t.DoubleType)) and text in _SPECIAL:
        return float(text)
    if isinstance(kind, t.DecimalType):
        plain = text.replace(",", "")
        if _DECIMAL.fullmatch(plain):
            return _decimal(plain, kind)
    if isinstance(kind, t.BinaryType):
        return base64.b64decode(text, validate=True)
    if isinstance(kind, t.DateType):
        return _date(text)
    if isinstance(kind, (t.TimestampType, t.TimestampNTZType)) and (
        found := _TIME.fullmatch(text.strip())
    ):
        return _micros(*found.groups(), is_local=isinstance(kind, t.TimestampNTZType))
    raise _Misfit


def _decimal(text: str, kind: t.DecimalType) -> Decimal:
    # Raises InvalidOperation if the digits do not fit.
    digits = Context(prec=kind.precision, rounding=ROUND_HALF_UP)
    return Decimal(text).quantize(Decimal(1).scaleb(-kind.scale), context=digits)


def _date(text: str) -> dt.date:
    if found := _DATE.fullmatch(text.strip()):
        year, month, day = (int(part or 1) for part in found.groups())
        return dt.date(year, month, day)
    if not _DAYS.fullmatch(text):
        raise _Misfit
    return _EPOCH.date() + dt.timedelta(days=int(text))


def _micros(*parts: str | None, is_local: bool) -> int:
    """Microseconds since 1970 of year, month, day, hour, minute, second, fraction and zone."""
    year, month, day, hour, minute, second, fraction, zone = parts
    if zone and is_local:
        raise _Misfit
    moment = dt.datetime(
        int(year or 0),
        int(month or 1),
        int(day or 1),
        int(hour or 0),
        int(minute or 0),
        int(second or 0),
        int((fraction or "")[:6].ljust(6, "0")),
        _zone((zone or "Z").strip()),
    )
    return (moment - _EPOCH) // dt.timedelta(microseconds=1)


def _zone(name: str) -> dt.tzinfo:
    if found := _OFFSET.fullmatch(name):
        sign, hours, minutes = found.groups()
        offset = dt.timedelta(hours=int(hours), minutes=int(minutes or 0))
        return dt.timezone(-offset if sign == "-" else offset)
    return dt.timezone.utc if name in {"Z", "UTC", "GMT", "UT"} else ZoneInfo(name)
