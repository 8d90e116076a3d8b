"""Filters that Spark offers, as conditions that PostgreSQL understands alike."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql import datasource as ds

from pyspark_pgqueue.columns import JSON, Column

__all__ = ["literal", "push"]

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
    filters: Iterable[Any], columns: dict[str, Column]
) -> tuple[list[tuple[str, str]], list[Any]]:
    """Each filter as (column, condition), and those that stay with Spark."""
    pushed, left = [], []
    for offered in filters:
        condition = _condition(offered, columns)
        if condition is None:
            left.append(offered)
        else:
            pushed.append(condition)
    return pushed, left


def _condition(offered: Any, columns: dict[str, Column]) -> tuple[str, str] | None:
    if isinstance(offered, ds.Not):
        inner = _condition(offered.child, columns)
        return inner and (inner[0], f"NOT ({inner[1]})")
    name = offered.attribute[0]
    # jsonb writes JSON in its own way, so that its text says little of equality.
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


def literal(value: Any) -> str | None:
    """A value as SQL text, None where it has no sure form.

    >>> literal("it's"), literal(7), literal(None)
    ("'it''s'", '7', None)
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str) and "\\" not in value and "\x00" not in value:
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, dt.datetime):
        aware = value if value.tzinfo else value.astimezone()
        return f"'{aware.isoformat()}'::timestamptz"
    return None
