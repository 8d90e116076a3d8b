"""A message that is not sent yet."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from typing import Any

from django_pgqueue.engine import arguments
from django_pgqueue.errors import InvalidArgument

__all__ = ["OPTIONS", "UnsentMessage", "unsent"]

#: The options of its send.
OPTIONS = ("headers", "delay", "expires", "priority", "group")


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


def unsent(
    queue: str,
    using: str | None,
    body: Any,
    *,
    headers: dict[str, Any] | None = None,
    delay: float | dt.timedelta | None = 0,
    expires: float | dt.timedelta | None = None,
    priority: int = 0,
    group: str | None = None,
) -> UnsentMessage:
    """Return a message that is not sent yet, for ``batch(then=...)``. Makes no query.

    Arguments:
        body, headers, priority, group: as for :meth:`send`.
        delay, expires: seconds or a timedelta, from the send on.

    >>> queue("reports").message({"report": "mails"}, delay=60).body
    {'report': 'mails'}

    Raises InvalidMessage and InvalidArgument.
    """
    given: dict[str, Any] = {
        "headers": _json(arguments.headers_text(headers)),
        "delay": _seconds(delay or None, "delay"),
        "expires": _seconds(expires, "expires"),
        "priority": arguments.priority(priority),
        "group": arguments.key(group, "group"),
    }
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
