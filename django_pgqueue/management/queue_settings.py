"""The settings of a queue, as options of a command and in its answer."""

from __future__ import annotations

from argparse import SUPPRESS, BooleanOptionalAction
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from django.core.management.base import CommandParser

from django_pgqueue.management.base import duration, positive, whole_seconds
from django_pgqueue.models import Queue
from django_pgqueue.tables import columns
from django_pgqueue.tables.queue import SETTINGS, plain

#: The functions that parse an option's value; others are texts.
_PARSERS: dict[columns.Kind, Callable[[str], Any]] = {
    columns.COUNT: positive,
    columns.SLOTS: positive,
    columns.SECONDS: whole_seconds,
    columns.SPAN: duration,
}

#: The value of an option that means None.
NONE = "none"


def add_settings(parser: CommandParser, names: Iterable[str], *, defaults: bool = False) -> None:
    """Add an option for each setting. ``defaults``: whether the help shows them."""
    for name in names:
        column: Any = SETTINGS[name]
        kind: columns.Kind = column.kind
        parse = partial(_none_or, _PARSERS.get(kind, str), column.null)
        parsed: dict[str, Any] = {"metavar": kind.metavar, "type": parse}
        if kind is columns.FLAG:
            parsed = {"action": BooleanOptionalAction}
        default = f" (default: {column.default})" if defaults and column.has_default() else ""
        help = f"{column.help_text}{default}".replace("Empty:", f"{NONE}:")
        parser.add_argument(_option(name), default=SUPPRESS, help=help, **parsed)


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the command line gives."""
    return {name: options[name] for name in SETTINGS if name in options}


def stored(queue: Queue) -> dict[str, Any]:
    """Return all settings of a queue, for JSON."""
    return {name: plain(getattr(queue, name)) for name in SETTINGS}


def differing(
    queue: Queue, differs: Mapping[str, Any], command: str, options: Mapping[str, Any]
) -> str:
    """Say that a queue exists with other settings than ``differs``, and how to change them."""
    where = f" --database {queue.alias}" if options["database"] else ""
    found = as_options({name: getattr(queue, name) for name in differs})
    return (
        f"queue {queue.name!r} exists with {found}; {command} does not change it: "
        f"manage.py pgqueue_alter {queue.name}{where} {as_options(differs)}"
    )


def as_options(settings: Mapping[str, Any]) -> str:
    """Write settings as options of a command, such as ``--limit 5 --no-notify``."""
    return " ".join(_as_option(name, plain(value)) for name, value in settings.items())


def shown(value: Any) -> str:
    """Write a value as an option takes it."""
    value = plain(value)
    return NONE if value is None else str(value)


def _as_option(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return _option(name if value else f"no_{name}")
    return f"{_option(name)} {shown(value)}"


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _none_or(parse: Callable[[str], Any], nullable: bool, text: str) -> Any:
    return None if nullable and text.lower() == NONE else parse(text)
