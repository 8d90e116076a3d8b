"""Column types for annotations, columns of settings with their CHECKs, and server-side defaults.

A column type names the Python types that the field accepts and returns. The rules of settings are
those of :mod:`django_pgqueue.engine.arguments`: ``save()`` and forms apply them with a text that
says what to do, and the CHECKs refuse what comes by SQL, ``update()`` and ``loaddata``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, ClassVar, TypeAlias
from uuid import UUID

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from django_pgqueue.engine.arguments import INT4, LONGEST, MOST_SLOTS, SHORTEST
from django_pgqueue.validators import validate_rate, validate_span

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


def span(help_text: str, *, editable: bool = True) -> DurationOrNull:
    """Return a column for a length of time, at least a second. NULL: not set."""
    return models.DurationField(
        null=True, blank=True, editable=editable, validators=[validate_span], help_text=help_text
    )


def count(default: int, help_text: str) -> PositiveInteger:
    """Return a column for a number, at least 1."""
    return models.PositiveIntegerField(
        default=default, validators=[MinValueValidator(1)], help_text=help_text
    )


#: The least and the highest value of a count, a limit or burst, and a span.
COUNT, SLOTS, SPAN = (1, INT4), (1, MOST_SLOTS), (SHORTEST, LONGEST)


class Check(models.CheckConstraint):
    """A CHECK that forms need not query: validators and ``clean()`` have the same rule."""

    def validate(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def deconstruct(self) -> Any:
        _path, args, kwargs = super().deconstruct()
        return "django.db.models.CheckConstraint", args, kwargs


def within(table: str, limits: tuple[Any, Any], *names: str) -> Iterator[Check]:
    """Yield the CHECKs that columns are in the range, or NULL."""
    for name in names:
        condition = models.Q((f"{name}__gte", limits[0]), (f"{name}__lte", limits[1]))
        yield Check(condition=condition, name=f"{table}_{name}")


def matching(table: str, pattern: str, *names: str) -> Iterator[Check]:
    """Yield the CHECKs that the whole text of columns matches the pattern, or is NULL."""
    for name in names:
        condition = models.Q((f"{name}__regex", f"^({pattern})$"))
        yield Check(condition=condition, name=f"{table}_{name}")


def listing(table: str, kind: str, *names: str) -> Iterator[Check]:
    """Yield the CHECKs that columns are JSON arrays whose elements have the JSON type ``kind``."""
    return _json(table, "array", f'strict $[*] ? (@.type() != "{kind}")', names)


def tally(table: str, *names: str) -> Iterator[Check]:
    """Yield the CHECKs that columns are JSON objects whose values are whole numbers."""
    wrong = f'@.type() != "number" || @ < 0 || @ > {10**15} || @.floor() != @'
    return _json(table, "object", f"strict $.* ? ({wrong})", names)


def _json(table: str, kind: str, wrong: str, names: Iterable[str]) -> Iterator[Check]:
    for name in names:
        condition = models.Func(
            models.F(name),
            template=f"jsonb_typeof(%(expressions)s) = '{kind}' "
            f"AND NOT jsonb_path_exists(%(expressions)s, '{wrong}', '{{}}', true)",
            output_field=models.BooleanField(),
        )
        yield Check(condition=condition, name=f"{table}_{name}")


def one_of(table: str, values: Collection[str], name: str) -> Check:
    """Return the CHECK that a column has one of the values."""
    return Check(condition=models.Q((f"{name}__in", list(values))), name=f"{table}_{name}")


def given_with(table: str, name: str, other: str) -> Check:
    """Return the CHECK that a column is set only if the other one is."""
    condition = models.Q((f"{name}__isnull", True), (f"{other}__isnull", False), _connector="OR")
    return Check(condition=condition, name=f"{table}_{name}_needs_{other}")


def given_without(table: str, name: str, other: str) -> Check:
    """Return the CHECK that a column is set only if the other one is not."""
    condition = models.Q((f"{name}__isnull", True), (f"{other}__isnull", True), _connector="OR")
    return Check(condition=condition, name=f"{table}_{name}_or_{other}")


class Meta:
    """The Meta options of most models: no default permissions, and PostgreSQL only."""

    default_permissions: ClassVar[tuple[str, ...]] = ()
    required_db_vendor = "postgresql"
