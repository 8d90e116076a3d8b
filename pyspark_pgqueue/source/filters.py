"""Translates Spark's filters to SQL conditions with the same meaning in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql import datasource as ds
from pyspark.sql.types import IntegralType, StringType, StructType

from pyspark_pgqueue.source.columns import JSON, Column, literal

_COMPARISONS: dict[type, str] = {
    ds.EqualTo: "=",
    ds.EqualNullSafe: "IS NOT DISTINCT FROM",
    ds.GreaterThan: ">",
    ds.GreaterThanOrEqual: ">=",
    ds.LessThan: "<",
    ds.LessThanOrEqual: "<=",
}

_TEXT: dict[type, Callable[[str, str], str]] = {
    ds.StringStartsWith: lambda column, value: f"starts_with({column}, {literal(value)})",
    ds.StringContains: lambda column, value: f"strpos({column}, {literal(value)}) > 0",
    ds.StringEndsWith: lambda column, value: f"right({column}, {len(value)}) = {literal(value)}",
}


def push(
    filters: Iterable[Any], columns: dict[str, Column], body: Any = None
) -> tuple[list[tuple[str, str]], list[Any]]:
    """Return the pushed filters as (column, condition), and the filters left to Spark.

    ``body`` is the type of the column body. A condition on one of its fields passes at least the
    rows that Spark's filter passes. Spark applies the filter too, since it reads JSON in its own
    way.
    """
    pushed, left = [], []
    for offered in filters:
        condition = _condition(offered, columns)
        if condition is None:
            condition = _on_field(offered, body)
            left.append(offered)
        if condition is not None:
            pushed.append(condition)
    return pushed, left


def _on_field(offered: Any, body: Any) -> tuple[str, str] | None:
    """Return the condition for a comparison of a body's field, if its type is integer or text.

    A value of another JSON type passes, except null: Spark then decides.
    """
    column, *path = getattr(offered, "attribute", None) or [None]
    operator = "IN" if isinstance(offered, ds.In) else _COMPARISONS.get(type(offered))
    if column != "body" or not path or operator is None:
        return None
    kind = body
    for name in path:
        known = isinstance(kind, StructType) and name in kind.names
        kind = kind[name].dataType if known else None
    if kind == StringType():
        json_type, value = "string", '{text} COLLATE "C"'
    elif isinstance(kind, IntegralType):
        json_type, value = "number", "({text})::numeric"
    else:
        return None
    values = [literal(each) for each in (offered.value if operator == "IN" else [offered.value])]
    names = [literal(name) for name in path]
    if not values or None in [*values, *names]:
        return None
    arguments = f"m.body, {', '.join(map(str, names))}"
    field = f"jsonb_extract_path({arguments})"
    value = value.format(text=f"jsonb_extract_path_text({arguments})")
    wanted = f"({', '.join(map(str, values))})" if operator == "IN" else values[0]
    # CASE, since the value must not be cast before its type is known.
    return "body", (
        f"CASE jsonb_typeof({field}) WHEN '{json_type}' THEN {value} {operator} {wanted} "
        f"WHEN 'null' THEN false ELSE {field} IS NOT NULL END"
    )


def _condition(offered: Any, columns: dict[str, Column]) -> tuple[str, str] | None:
    if isinstance(offered, ds.Not):
        inner = _condition(offered.child, columns)
        return inner and (inner[0], f"NOT ({inner[1]})")
    name = offered.attribute[0]
    # jsonb normalises JSON text, so comparing texts does not compare values.
    if len(offered.attribute) != 1 or name not in columns or name in JSON:
        return None
    sql, is_text = columns[name].sql, columns[name].type == "string"
    if isinstance(offered, ds.IsNull):
        return name, f"{sql} IS NULL"
    if isinstance(offered, ds.IsNotNull):
        return name, f"{sql} IS NOT NULL"
    if isinstance(offered, ds.In):
        values = [literal(value) for value in offered.value]
        if not values or None in values:
            return None
        return name, f"{sql} IN ({', '.join(map(str, values))})"
    value = literal(offered.value)
    if value is None:
        return None
    if type(offered) in _TEXT and is_text:
        return name, _TEXT[type(offered)](sql, offered.value)
    operator = _COMPARISONS.get(type(offered))
    if operator is None:
        return None
    # Spark orders text by its bytes, as the collation C does.
    collate = ' COLLATE "C"' if is_text and operator not in {"=", "IS NOT DISTINCT FROM"} else ""
    return name, f"{sql}{collate} {operator} {value}"
