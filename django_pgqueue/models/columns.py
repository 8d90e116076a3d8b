"""Column types for annotations, defaults that the server computes, and Meta options.

A column type names the Python types that the field accepts and returns.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, ClassVar, TypeAlias
from uuid import UUID

from django.db import models

AutoKey: TypeAlias = "models.AutoField[int, int]"
BigAutoKey: TypeAlias = "models.BigAutoField[int, int]"
BigInteger: TypeAlias = "models.BigIntegerField[int, int]"
BigIntegerOrNull: TypeAlias = "models.BigIntegerField[int | None, int | None]"
Boolean: TypeAlias = "models.BooleanField[bool, bool]"
Char: TypeAlias = "models.CharField[str, str]"
CharOrNull: TypeAlias = "models.CharField[str | None, str | None]"
DurationOrNull: TypeAlias = "models.DurationField[timedelta | None, timedelta | None]"
Float: TypeAlias = "models.FloatField[float, float]"
FloatOrNull: TypeAlias = "models.FloatField[float | None, float | None]"
Integer: TypeAlias = "models.IntegerField[int, int]"
IntegerOrNull: TypeAlias = "models.IntegerField[int | None, int | None]"
JSON: TypeAlias = "models.JSONField[Any, Any]"
PositiveInteger: TypeAlias = "models.PositiveIntegerField[int, int]"
SmallInteger: TypeAlias = "models.SmallIntegerField[int, int]"
Text: TypeAlias = "models.TextField[str, str]"
TextOrNull: TypeAlias = "models.TextField[str | None, str | None]"
Time: TypeAlias = "models.DateTimeField[datetime, datetime]"
TimeOrNull: TypeAlias = "models.DateTimeField[datetime | None, datetime | None]"
UUIDOrNull: TypeAlias = "models.UUIDField[UUID | None, UUID | None]"

NOW = models.Func(function="statement_timestamp", output_field=models.DateTimeField())
XID = models.Func(
    template="pg_current_xact_id()::text::bigint", output_field=models.BigIntegerField()
)


class Meta:
    """The Meta options of most models: no default permissions, and PostgreSQL only."""

    default_permissions: ClassVar[tuple[str, ...]] = ()
    required_db_vendor = "postgresql"
