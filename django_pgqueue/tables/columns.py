"""Column types for annotations, columns of settings with their CHECKs, and server-side defaults.

A column type names the Python types that the field accepts and returns. The rules of settings are
those of :mod:`django_pgqueue.engine.arguments`: ``save()`` and forms apply them with a text that
says what to do, and the CHECKs refuse what comes by SQL, ``update()`` and ``loaddata``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from django_pgqueue.engine import arguments
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

F = TypeVar("F", bound="models.Field[Any, Any]")
M = TypeVar("M", bound=type[models.Model])


class Kind(NamedTuple):
    """A kind of setting: what an argument must be, and what a row may have.

    ``metavar`` names the value in the help of a command. ``check`` validates an argument, and
    converts it to the column's value. ``within`` (the least and the highest value) or ``matching``
    (a pattern) is the CHECK; without either the column's type is enough.
    """

    metavar: str
    check: Callable[[object, str], Any]
    within: tuple[Any, Any] | None = None
    matching: str | None = None


COUNT = Kind("N", arguments.count, within=(1, INT4))
SECONDS = Kind("TIME", arguments.seconds, within=(1, INT4))
SLOTS = Kind("N", arguments.slots, within=(1, MOST_SLOTS))
SPAN = Kind("TIME", arguments.span, within=(SHORTEST, LONGEST))
RATE = Kind("RATE", arguments.rate, matching=arguments.RATE)
FLAG = Kind("", arguments.flag)
QUEUE = Kind("QUEUE", arguments.queue_or_none)


def setting(kind: Kind, column: F) -> F:
    """Make a column a setting of its model, whose arguments ``checked`` validates."""
    column.kind = kind  # type: ignore[attr-defined]
    return column


def settings_of(model: type[models.Model]) -> dict[str, models.Field[Any, Any]]:
    """Return the columns that are settings, by name."""
    return {field.name: field for field in model._meta.local_fields if hasattr(field, "kind")}


def checked(model: type[models.Model], given: Mapping[str, Any]) -> dict[str, Any]:
    """Validate settings, and convert them to values of their columns."""
    columns: dict[str, Any] = settings_of(model)
    return {name: columns[name].kind.check(value, name) for name, value in given.items()}


def with_checks(model: M) -> M:
    """Give a model the CHECKs of its settings."""
    table, constraints = model._meta.db_table, list(model._meta.constraints)
    for name, column in settings_of(model).items():
        kind: Kind = column.kind  # type: ignore[attr-defined]
        if kind.within:
            constraints += within(table, kind.within, name)
        if kind.matching:
            constraints += matching(table, kind.matching, name)
    # Migrations look at the options that Meta names.
    model._meta.constraints = model._meta.original_attrs["constraints"] = constraints
    return model


def slots(help_text: str) -> IntegerOrNull:
    """Return a setting for a limit or a burst. NULL: not set."""
    validators = [MinValueValidator(1), MaxValueValidator(MOST_SLOTS)]
    return setting(
        SLOTS,
        models.PositiveIntegerField(
            null=True, blank=True, validators=validators, help_text=help_text
        ),
    )


def rate(help_text: str) -> CharOrNull:
    """Return a setting for a rate, such as 30/m. NULL: not set."""
    column: CharOrNull = models.CharField(
        max_length=20, null=True, blank=True, validators=[validate_rate], help_text=help_text
    )
    return setting(RATE, column)


def span(help_text: str, *, editable: bool = True) -> DurationOrNull:
    """Return a setting for a length of time, at least a second. NULL: not set."""
    column: DurationOrNull = models.DurationField(
        null=True, blank=True, editable=editable, validators=[validate_span], help_text=help_text
    )
    return setting(SPAN, column)


def count(default: int, help_text: str, kind: Kind = COUNT) -> PositiveInteger:
    """Return a setting for a number, at least 1."""
    column: PositiveInteger = models.PositiveIntegerField(
        default=default, validators=[MinValueValidator(1)], help_text=help_text
    )
    return setting(kind, column)


def flag(default: bool, help_text: str, *, editable: bool = True, is_late: bool = False) -> Boolean:
    """Return a setting that is on or off.

    ``is_late``: a later migration adds it, so that operations with older models must leave it out.
    """
    late: dict[str, Any] = {"db_default": default} if is_late else {}
    column: Boolean = models.BooleanField(
        default=default, editable=editable, help_text=help_text, **late
    )
    return setting(FLAG, column)


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
