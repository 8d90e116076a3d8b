"""Typed columns in a lake for the fields of a queue's bodies, beside the bodies' JSON.

A field ``price`` becomes the column ``body_price``. What does not fit its column is NULL there, and
the body's text is in ``_corrupt_record``. A queue's schema is given as

* DDL or the JSON of a StructType: these fields. A later export may add fields, or change types,
* ``evolve``: the fields of all bodies. Each export adds new fields, and widens types: bigint to
  double, anything else to string,
* ``none``: no columns.

Whole numbers are stored as bigint and fractions as double. A column has one type in a lake: when it
changes, the compaction writes the queue's older files again (``"stale"`` until then).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.errors import PySparkException
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
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from django_pgqueue.engine.names import own_tables
from pyspark_pgqueue.errors import InvalidOption
from pyspark_pgqueue.lake.runs import Lake
from pyspark_pgqueue.lake.stores import key_of
from pyspark_pgqueue.source import bodies, columns, database
from pyspark_pgqueue.source.arrow import arrow_schema
from pyspark_pgqueue.source.options import Options

PREFIX = "body_"
EVOLVE, NONE = "evolve", "none"
#: Number of bodies from which a new evolving schema starts, so that a run is rarely written again.
SAMPLE = 1000
#: Maximum number of columns for the fields of a queue, nested ones counted.
MOST = 10_000

_PLAIN = (BooleanType, StringType, DateType, TimestampType)
_NOTHING: dict[str, Any] = {"fields": StructType([]).jsonValue(), "evolves": False, "stale": False}


def declare(
    connection: psycopg.Connection[Any],
    options: Options,
    lake: Lake,
    given: Mapping[str, str],
    span: tuple[int, int],
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Return the lake's schemas by queue, with new declarations.

    Arguments:
        options: select the lake's queues.
        given: new declarations by queue: fields as DDL or JSON, ``evolve`` or ``none``.
        span: the next run's transactions, from the first number up to but excluding the second.

    Raises InvalidOption.
    """
    chosen = database.queues(connection, options, may_be_dropped=True)
    known = {name.lower(): (pk, name) for pk, name in chosen}
    if unknown := [name for name in given if name.lower() not in known]:
        raise InvalidOption(
            f"The lake has no queue {', '.join(map(repr, unknown))}. Correct the queue's name in "
            f"the body schemas."
        )
    schemas = dict(lake.body_schemas)
    for queue, text in given.items():
        pk, name = known[queue.lower()]
        before = schemas.get(name, _NOTHING)
        fields = StructType.fromJson(before["fields"])
        if text == NONE:
            schemas[name] = {**_NOTHING, "stale": _is_stale(lake, before, bool(fields.fields))}
        elif text == EVOLVE:
            schemas[name] = {**before, "evolves": True}
            found = {name: bodies.infer(_sample(connection, pk, *span))}
            schemas = _evolved(lake, schemas, found, tell)
        else:
            found, changed = _changed(fields, _declared(name, text))
            reduce(_added, [*_others(schemas, name), found])
            stale = _is_stale(lake, before, changed)
            schemas[name] = {"fields": found.jsonValue(), "evolves": False, "stale": stale}
        if lake.table and schemas[name]["stale"]:
            raise InvalidOption(
                f"The lake is the Iceberg table {lake.table}, whose columns keep their types. "
                f"Export to another lake, or export this one again with --anew."
            )
    return schemas


def _declared(queue: str, text: str) -> StructType:
    try:
        declared = _wide(DataType.fromDDL(bodies.as_ddl(text)))
    except PySparkException as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidOption(
            f"The body schema of queue {queue!r} is {text!r}, which Spark cannot parse: {reason} "
            f"Write the fields and their types, as in {queue}='customer bigint, price double', or "
            f"{queue}={EVOLVE}."
        ) from error
    for name in declared.names:
        if not name.isidentifier():
            raise InvalidOption(_unnamed(name))
    return declared


def _unnamed(name: str) -> str:
    return (
        f"Field {name!r} cannot be a column: a name may contain only letters, digits and "
        f"underscores, and must not begin with a digit."
    )


def _changed(before: StructType, new: StructType) -> tuple[StructType, bool]:
    """Return the fields with new ones, and whether a column's type differs from before."""
    try:
        return _added(before, new), False
    except InvalidOption:
        names = {name.lower() for name in new.names}
        kept = [field for field in before.fields if field.name.lower() not in names]
        return _added(StructType(kept), new), True


def _is_stale(lake: Lake, schema: dict[str, Any], changed: bool) -> bool:
    return schema["stale"] or (changed and lake.exported_below > 0)


def _evolved(
    lake: Lake,
    schemas: dict[str, Any],
    found: Mapping[str, Any],
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Return the schemas with what was found in bodies, except fields that cannot be columns."""
    schemas = dict(schemas)
    for queue, new in sorted(found.items()):
        schema, others = schemas[queue], _others(schemas, queue)
        fields, changes = StructType.fromJson(schema["fields"]), False
        for field in new.fields:
            there = fields[field.name].dataType if field.name in fields.names else NullType()
            wider = StructType([StructField(field.name, bodies.merged(there, field.dataType))])
            try:
                if not field.name.isidentifier():
                    raise InvalidOption(_unnamed(field.name))
                if lake.table or field.name not in fields.names:
                    grown, changed = _added(fields, wider), False
                else:
                    grown, changed = _changed(fields, wider)
                reduce(_added, [*others, grown])
                if _columns(grown) > MOST:
                    raise InvalidOption(f"The bodies have more than {MOST:,} fields.")
                fields, changes = grown, changes or changed
            except InvalidOption as error:
                tell(f"Queue {queue!r}: field {field.name!r} gets no column. {error}")
        stale = _is_stale(lake, schema, changes)
        schemas[queue] = {**schema, "fields": fields.jsonValue(), "stale": stale}
    return schemas


def grown(
    lake: Lake, written: Iterable[dict[str, Any]], tell: Callable[[str], None]
) -> dict[str, Any]:
    """Return the lake's schemas with the new types that a run's files report."""
    found: dict[str, Any] = {}
    for file in written:
        if new := file.pop("new", None):
            queue = key_of(file["to"], "queue")
            before = found.get(queue, StructType([]))
            found[queue] = bodies.merged(before, StructType.fromJson(new))
    return _evolved(lake, lake.body_schemas, found, tell)


def misfits(written: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Describe the bodies that do not fit their columns, one line for each queue."""
    by_queue: dict[str, Counter[str]] = defaultdict(Counter)
    ids: dict[str, list[int]] = defaultdict(list)
    for file in written:
        queue = key_of(file["to"], "queue")
        by_queue[queue].update(
            {name: file.get(name, 0) for name in ("typed", "corrupt", "unknown")}
        )
        ids[queue] += file.get("ids", [])
    for queue, counts in sorted(by_queue.items()):
        rows = f"{counts['typed']:,} bodies of queue {queue!r}"
        if counts["corrupt"]:
            some = ", ".join(map(str, ids[queue][:3]))
            yield (
                f"{counts['corrupt']:,} of {rows} do not fit the schema, for example of message "
                f"{some}: see the column {columns.CORRUPT}."
            )
        if counts["unknown"]:
            yield f"{counts['unknown']:,} of {rows} have fields without a column."


def _columns(kind: DataType) -> int:
    if isinstance(kind, StructType):
        return sum(_columns(field.dataType) for field in kind.fields)
    return _columns(kind.elementType) if isinstance(kind, ArrayType) else 1


def _others(schemas: Mapping[str, Any], queue: str) -> list[StructType]:
    """The fields of the other queues."""
    return [StructType.fromJson(each["fields"]) for name, each in schemas.items() if name != queue]


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
    # Without a known type there is no column yet.
    if bodies.known(one) is None:
        return other
    if bodies.known(other) is not None and one != other:
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
    found = bodies.known(reduce(_added, _others(schemas, ""), StructType([])))
    if found is None:
        return pa.schema([])
    fields = [StructField(f"{PREFIX}{field.name}", field.dataType) for field in found.fields]
    return arrow_schema(StructType([*fields, StructField(columns.CORRUPT, StringType())]))


def without(schema: pa.Schema) -> pa.Schema:
    """The schema of a lake's file without columns for fields of bodies."""
    return pa.schema(
        [f for f in schema if not f.name.startswith(PREFIX) and f.name != columns.CORRUPT]
    )


class Typed:
    """Adds the columns of a queue to rows, and counts the bodies that do not fit."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.seen = StructType.fromJson(schema["fields"])
        self.kind = bodies.known(self.seen) or StructType([])
        self.types = [_arrow(self.kind), _arrow(self.seen)]
        self.evolves = schema["evolves"]
        self.new = StructType([])
        self.rows = self.corrupt = self.unknown = 0
        #: The ids of some messages that do not fit.
        self.ids: list[int] = []

    def add_columns(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Append a column for each field of the bodies, and ``_corrupt_record``."""
        texts, slow = rows.column("body"), list[str | None]()
        self.rows += len(rows)
        if not self.kind.fields:
            if self.evolves:
                self._look(texts.to_pylist())
            return rows
        kind, seen = self.types
        evolving = (seen, slow) if self.evolves else ()
        values, corrupt = bodies.parsed(texts, self.kind, kind, *evolving)
        self.corrupt += len(rows) - corrupt.null_count
        self.ids = [*self.ids, *rows.column("id").filter(corrupt.is_valid())[:3].to_pylist()][:3]
        self._look(slow)
        names = [f"{PREFIX}{name}" for name in self.kind.names]
        return pa.RecordBatch.from_arrays(
            [*rows.columns, *values.flatten(), corrupt],
            names=[*rows.schema.names, *names, columns.CORRUPT],
        )

    def _look(self, texts: Iterable[str | None]) -> None:
        """Note the new types of an evolving queue's bodies."""
        for text in texts if self.evolves else ():
            found = bodies.infer([text])
            self.unknown += not set(found.names) <= set(self.seen.names)
            self.new = bodies.merged(self.new, found)

    def told(self) -> dict[str, Any]:
        """The counts, for a file's record, with the types of new bodies as JSON."""
        counts = {"typed": self.rows, "corrupt": self.corrupt, "unknown": self.unknown}
        return {**counts, "ids": self.ids, "new": self.new.jsonValue() if self.evolves else None}


def _arrow(kind: StructType) -> pa.DataType:
    return arrow_schema(StructType([StructField("body", kind)])).field(0).type
