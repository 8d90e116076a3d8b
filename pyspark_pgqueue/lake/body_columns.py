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

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from functools import partial, reduce
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as t

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

_PLAIN = (t.BooleanType, t.StringType, t.DateType, t.TimestampType)
_NOTHING: dict[str, Any] = {"fields": t.StructType([]).jsonValue(), "stale": False}


def declare(
    connection: psycopg.Connection[Any],
    options: Options,
    lake: Lake,
    given: Mapping[str, str],
    span: tuple[int, int],
) -> dict[str, Any]:
    """Return the lake's schemas by queue, with new declarations.

    Arguments:
        options: select the lake's queues.
        given: new declarations by queue: fields as DDL or JSON, ``evolve`` or ``none``.
        span: the next run's transactions, from the first number up to but excluding the second.

    Raises InvalidOption.
    """
    chosen = database.queues(connection, options, may_be_dropped=True)
    there = {name.lower(): (pk, name) for pk, name in chosen}
    dropped = {name.lower(): (0, name) for name in lake.body_schemas}
    schemas, declared, found = _shapes(lake), dict[str, Any](), dict[str, Any]()
    for queue, text in given.items():
        pk, name = ({**dropped, **there} if text == NONE else there).get(queue.lower(), (0, ""))
        if not name:
            raise InvalidOption(
                f"The lake has no queue {queue!r}. Correct the queue's name in the body schemas."
            )
        schema = schemas.setdefault(name, {"fields": {}, "evolves": False})
        schema["evolves"] = text == EVOLVE
        if text == NONE:
            schema["fields"] = {}
        elif text == EVOLVE:
            found[name] = bodies.infer(_sample(connection, pk, *span))
        else:
            declared[name] = _declared(name, text)
            schema["fields"] = _joined(name, schema["fields"], declared[name], _the_later)
    for name, fields in declared.items():
        for field in fields:
            _widen(lake, schemas, name, field, schemas[name]["fields"][field])
    _evolve(lake, schemas, found)
    return _stored(lake, schemas)


def grown(lake: Lake, written: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Return the lake's schemas with the new types that a run's files report.

    Also returns notices: a line for each queue with fields that cannot be columns.
    """
    found: dict[str, Any] = defaultdict(dict)
    for file in written:
        if new := file.pop("new", None):
            bodies.merge(found[key_of(file["to"], "queue")], _shape(new))
    schemas = _shapes(lake)
    notices = _evolve(lake, schemas, found)
    return _stored(lake, schemas), notices


def compacted(schemas: Mapping[str, Any]) -> dict[str, Any]:
    """The schemas once no file has columns of a former type."""
    return {
        queue: {**schema, "stale": False}
        for queue, schema in schemas.items()
        if schema["evolves"] or schema["fields"]["fields"]
    }


def _shape(fields: Any) -> Any:
    return bodies.shape_of(t.StructType.fromJson(fields))


def _shapes(lake: Lake) -> dict[str, Any]:
    """The lake's schemas, with shapes that can be changed."""
    return {
        queue: {**schema, "fields": _shape(schema["fields"])}
        for queue, schema in lake.body_schemas.items()
    }


def _stored(lake: Lake, schemas: dict[str, Any]) -> dict[str, Any]:
    """The schemas as JSON. Raises InvalidOption if a column has two types."""
    reduce(_added, (each["fields"] for each in schemas.values()), {})
    stored = {}
    for queue, schema in schemas.items():
        before = lake.body_schemas.get(queue, _NOTHING)
        changes = lake.exported_below > 0 and _changes(_shape(before["fields"]), schema["fields"])
        if changes and lake.table:
            raise InvalidOption(
                f"The lake is the Iceberg table {lake.table}, whose columns keep their types. "
                f"Export to another lake, or export this one again with --anew."
            )
        fields = bodies.typed(schema["fields"]).jsonValue()
        stored[queue] = {**schema, "fields": fields, "stale": before["stale"] or changes}
    return stored


def _changes(before: Any, after: Any) -> bool:
    """Whether files with the columns of before have others than those of after."""
    try:
        _added(before, after)
    except InvalidOption:
        return True
    return not before.keys() <= after.keys()


def _declared(queue: str, text: str) -> Any:
    try:
        declared = _wide(bodies.shape_of(t.DataType.fromDDL(bodies.as_ddl(text))))
    except PySparkException as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidOption(
            f"The body schema of queue {queue!r} is {text!r}, which Spark cannot parse: {reason} "
            f"Write the fields and their types, as in {queue}='customer bigint, price double', or "
            f"{queue}={EVOLVE}."
        ) from error
    for name in declared:
        _check_name(name)
    return declared


def _check_name(name: str) -> None:
    if not name.isidentifier():
        raise InvalidOption(
            f"Field {name!r} cannot be a column: a name may contain only letters, digits and "
            f"underscores, and must not begin with a digit."
        )


def _evolve(lake: Lake, schemas: dict[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Add what was found in bodies to the schemas, except fields that cannot be columns."""
    notices = []
    spelled = {name.lower(): name for each in schemas.values() for name in each["fields"]}
    for queue, new in sorted(found.items()):
        fields, refused = schemas[queue]["fields"], dict[str, InvalidOption]()
        size = _columns(fields)
        for name, shape in new.items():
            before = fields.get(name, {})
            wider = bodies.merge(deepcopy(before), shape) if name in fields else shape
            more = _columns(wider) - _columns(before)
            try:
                _check_name(name)
                if spelled.setdefault(name.lower(), name) != name:
                    raise InvalidOption(_one_column(spelled[name.lower()], name))
                if size + more > MOST:
                    raise InvalidOption(f"The bodies have more than {MOST:,} fields.")
                _widen(lake, schemas, queue, name, wider)
                size += more
            except InvalidOption as error:
                refused[name] = error
        if refused:
            name, reason = next(iter(refused.items()))
            others = f" and {len(refused) - 1:,} more get" if len(refused) > 1 else " gets"
            notices.append(f"queue {queue!r}: field {name!r}{others} no column. {reason}")
    return notices


def _widen(lake: Lake, schemas: dict[str, Any], queue: str, name: str, wider: Any) -> None:
    """Give a field a wider type, in all queues that share its column.

    Raises InvalidOption if a queue's type was declared, or if the lake's types cannot change.
    """
    sharing = {each: schema for each, schema in schemas.items() if name in schema["fields"]}
    types = {
        each: bodies.merge(deepcopy(schema["fields"][name]), wider)
        if schema["evolves"]
        else schema["fields"][name]
        for each, schema in sharing.items()
        if each != queue
    }
    kept = [schema["fields"][name] for schema in sharing.values()] if lake.table else []
    # The new type with itself, too: two of its own fields may be one column.
    reduce(partial(_joined, name), [*kept, *types.values(), wider, wider])
    for each, shape in (types | {queue: wider}).items():
        schemas[each]["fields"][name] = shape


def misfits(written: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Describe the bodies that do not fit their columns, one line for each queue."""
    by_queue: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for file in written:
        if "typed" in file:
            by_queue[key_of(file["to"], "queue")].append(file)
    for queue, found in sorted(by_queue.items()):
        typed, corrupt, unknown = (
            sum(file[name] for file in found) for name in ("typed", "corrupt", "unknown")
        )
        rows = f"{typed:,} bodies of queue {queue!r}"
        if corrupt:
            some = ", ".join([str(pk) for file in found for pk in file["ids"]][:3])
            yield (
                f"{corrupt:,} of {rows} do not fit the schema, for example of message {some}: see "
                f"the column {columns.CORRUPT}."
            )
        if unknown:
            yield f"{unknown:,} of {rows} have fields without a column."


def _columns(shape: Any) -> int:
    if isinstance(shape, dict):
        return sum(map(_columns, shape.values()))
    return _columns(shape[0]) if isinstance(shape, list) else 1


def _one_column(one: str, other: str) -> str:
    return (
        f"Fields {one!r} and {other!r} would be the same column, since readers ignore case. "
        f"Declare only one of them."
    )


def _refuse(name: str, one: Any, other: Any) -> Any:
    there, new = bodies.typed(one).simpleString(), bodies.typed(other).simpleString()
    raise InvalidOption(
        f"Column {PREFIX}{name} of this lake has the type {there}, so the field {name} cannot be "
        f"{new}. Declare it as {there}, or export to another lake."
    )


def _the_later(name: str, one: Any, other: Any) -> Any:
    return other


def _joined(name: str, one: Any, other: Any, decide: Callable[..., Any] = _refuse) -> Any:
    """Merge two shapes of a field. ``decide`` returns the type of a column that has two.

    Raises InvalidOption if a field has two spellings.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        found, spelled = dict(one), {field.lower(): field for field in one}
        for field, shape in other.items():
            if spelled.setdefault(field.lower(), field) != field:
                raise InvalidOption(_one_column(spelled[field.lower()], field))
            found[field] = _joined(field, found.get(field, shape), shape, decide)
        return found
    if isinstance(one, list) and isinstance(other, list):
        return [_joined(name, one[0], other[0], decide)]
    # Without a known type there is no column yet.
    if bodies.known(one) is None:
        return other
    return one if one == other or bodies.known(other) is None else decide(name, one, other)


def _added(one: Any, other: Any) -> Any:
    return _joined("", one, other)


def _wide(shape: Any) -> Any:
    """Return the shape with bigint for whole numbers and double for fractions."""
    if isinstance(shape, dict):
        return {name: _wide(each) for name, each in shape.items()}
    if isinstance(shape, list):
        return [_wide(shape[0])]
    if isinstance(shape, t.MapType) and isinstance(shape.keyType, t.StringType):
        return t.MapType(t.StringType(), bodies.typed(_wide(bodies.shape_of(shape.valueType))))
    if isinstance(shape, t.DecimalType):
        return t.DecimalType(38, shape.scale)
    if isinstance(shape, t.IntegralType):
        return t.LongType()
    if isinstance(shape, (t.FloatType, t.DoubleType)):
        return t.DoubleType()
    if isinstance(shape, _PLAIN):
        return shape
    raise InvalidOption(
        f"A lake's column cannot have the type {shape.simpleString()}. Declare another type, such "
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
    found = bodies.known(reduce(_added, (_shape(each["fields"]) for each in schemas.values()), {}))
    if found is None:
        return pa.schema([])
    fields = {f"{PREFIX}{name}": shape for name, shape in found.items()}
    return arrow_schema(bodies.typed({**fields, columns.CORRUPT: t.StringType()}))


def without(schema: pa.Schema) -> pa.Schema:
    """The schema of a lake's file without columns for fields of bodies."""
    return pa.schema(
        [f for f in schema if not f.name.startswith(PREFIX) and f.name != columns.CORRUPT]
    )


class Typed:
    """Adds the columns of a queue to rows, and counts the bodies that do not fit."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.seen = _shape(schema["fields"])
        self.kind = bodies.typed(bodies.known(self.seen) or {})
        self.types = [_arrow(self.kind), _arrow(bodies.typed(self.seen))]
        self.evolves = schema["evolves"]
        self.new: dict[str, Any] = {}
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
        """Note the new types of an evolving queue's bodies, until there are too many."""
        if not self.evolves or _columns(self.new) > MOST:
            return
        for text in texts:
            found = bodies.infer([text])
            self.unknown += not found.keys() <= self.seen.keys()
            bodies.merge(self.new, found)

    def told(self) -> dict[str, Any]:
        """The counts, for a file's record, with the types of new bodies as JSON."""
        new = {"new": bodies.typed(self.new).jsonValue()} if self.new else {}
        counts = {"typed": self.rows, "corrupt": self.corrupt, "unknown": self.unknown}
        return {**counts, "ids": self.ids, **new}


def _arrow(kind: t.StructType) -> pa.DataType:
    return arrow_schema(t.StructType([t.StructField("body", kind)])).field(0).type
