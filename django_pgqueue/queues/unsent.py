"""A message that is not sent yet."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django_pgqueue.engine import arguments
from django_pgqueue.errors import InvalidArgument

__all__ = ["OPTIONS", "UnsentMessage", "unsent"]


@dataclass(frozen=True)
class UnsentMessage:
    """A message that a batch sends when it is done. Made by ``queue("reports").message(...)``.

    All its values are JSON.
    """

    queue: str
    body: Any
    #: By the names of OPTIONS; delay and expires in seconds.
    options: dict[str, Any]
    #: The alias of the queue's database, if it was named.
    using: str | None = None


def unsent(queue: str, using: str | None, body: Any, options: Mapping[str, Any]) -> UnsentMessage:
    """Validate a message that is not sent yet. ``options`` has all OPTIONS."""
    given = {name: check(options[name]) for name, check in _CHECKS.items()}
    return UnsentMessage(queue, _json(arguments.json_text(body)), given, using)


def _json(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _seconds(value: float | dt.timedelta | None, name: str) -> float | None:
    """Return a length of time in seconds."""
    if isinstance(value, dt.datetime):
        raise InvalidArgument(
            f"{name} must be seconds or a timedelta, not {value!r}: it counts from the send, whose "
            f"time is not known yet"
        )
    if value is None:
        return None
    return arguments.duration(value, name, least=arguments.POSITIVE).total_seconds()


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "headers": lambda value: _json(arguments.headers_text(value)),
    "delay": lambda value: _seconds(value or None, "delay"),
    "expires": lambda value: _seconds(value, "expires"),
    "priority": arguments.priority,
    "group": lambda value: arguments.key(value, "group"),
}
#: The options of its send.
OPTIONS = tuple(_CHECKS)
