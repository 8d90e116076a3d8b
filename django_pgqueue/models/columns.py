"""Column types for annotations, columns for limits and rates, and server-side defaults.

A column type names the Python types that the field accepts and returns.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, ClassVar, TypeAlias
from uuid import UUID

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from django_pgqueue.arguments import MOST_SLOTS
from django_pgqueue.validators import validate_rate

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


def slots(help_text: str) -> IntegerOrNull:
    """Return a column for a limit or a burst. NULL: not set."""
    return models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MOST_SLOTS)],
        help_text=help_text,
    )


def rate(help_text: str) -> CharOrNull:
    """Return a column for a rate, such as 30/m. NULL: not set."""
    return models.CharField(
        max_length=20, null=True, blank=True, validators=[validate_rate], help_text=help_text
    )


class Meta:
    """The Meta options of most models: no default permissions, and PostgreSQL only."""

    default_permissions: ClassVar[tuple[str, ...]] = ()
    required_db_vendor = "postgresql"
