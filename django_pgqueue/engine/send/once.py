"""Validates the arguments of a send with a unique key."""

from __future__ import annotations

import datetime as dt
from typing import Any, get_args

from django_pgqueue.engine import arguments
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.types import OnConflict

__all__ = ["claim"]

#: How long a message holds its key if the queue has no ``unique_window``.
UNIQUE_WINDOW = dt.timedelta(minutes=5)


def claim(
    window: dt.timedelta | None,
    unique: Any,
    until: Any,
    on_conflict: Any,
    delay: Any,
    max_wait: Any,
) -> dict[str, Any]:
    """Return the SQL parameters of a claim, except its keys. Raises InvalidArgument.

    ``window`` is the queue's ``unique_window``; the other arguments are those of a send.
    """
    if unique is None:
        raise InvalidArgument("until, on_conflict and max_wait need unique=: pass a key")
    if on_conflict not in get_args(OnConflict):
        raise InvalidArgument(
            f"on_conflict must be one of {', '.join(get_args(OnConflict))}, not {on_conflict!r}"
        )
    debounces = on_conflict == "delay"
    if debounces and not delay:
        raise InvalidArgument('on_conflict="delay" needs delay=, such as delay=5')
    if max_wait is not None:
        if not debounces:
            raise InvalidArgument('max_wait needs on_conflict="delay"')
        max_wait = arguments.duration(max_wait, "max_wait", least=arguments.POSITIVE)
    length = None
    if until is None:
        # A window could outlast a delivery, after which the message cannot be replaced.
        kind = "window" if on_conflict == "skip" else "started"
    elif until in ("started", "done"):
        kind = until
    elif isinstance(until, str):
        raise InvalidArgument(
            f'until must be "started", "done", seconds or a timedelta, not {until!r}'
        )
    else:
        kind, length = "window", arguments.duration(until, "until", least=arguments.POSITIVE)
    return {
        "kind": kind,
        "window": length or window or UNIQUE_WINDOW,
        "on_conflict": on_conflict,
        "max_wait": max_wait,
    }
