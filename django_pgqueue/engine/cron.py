"""Computes the next tick of a cron expression.

cronsim (``pip install django-postgres-mq[schedules]``) parses expressions as Debian's cron does.
"""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django_pgqueue.errors import InvalidArgument

#: None if cronsim is not installed: then only schedules with intervals work.
cronsim: Any = import_module("cronsim") if find_spec("cronsim") else None

_UTC = dt.timezone.utc


@lru_cache(maxsize=100)
def zone(name: str) -> ZoneInfo:
    """Return the time zone with this name. Raises InvalidArgument."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidArgument(
            f"there is no time zone {name!r}: use a name such as 'Europe/Berlin' or 'UTC'. If the "
            f"system has no time zones, pip install tzdata"
        ) from error


def check(expression: str, time_zone: str) -> None:
    """Raise InvalidArgument unless this is a cron expression with a next tick."""
    following(expression, time_zone, dt.datetime.now(_UTC))


def following(expression: str, time_zone: str, after: dt.datetime) -> dt.datetime:
    """Return the first tick of the expression after ``after``, in UTC.

    If daylight saving time skips an hour, its ticks move to the end of that hour. If it repeats an
    hour, a tick at a fixed time comes only once.

    >>> at = dt.datetime(2026, 3, 28, 12, tzinfo=dt.timezone.utc)
    >>> following("30 2 * * *", "Europe/Berlin", at).isoformat()
    '2026-03-29T01:00:00+00:00'

    Raises InvalidArgument.
    """
    if cronsim is None:
        raise InvalidArgument(
            "cron expressions need cronsim: pip install 'django-postgres-mq[schedules]', or use "
            "an interval"
        )
    if len(expression.split()) != 5:
        raise InvalidArgument(
            f"{expression!r} is not a cron expression: give five fields (minute, hour, day of "
            f"month, month, day of week), such as '0 4 * * *'. For seconds, use an interval"
        )
    try:
        ticks = cronsim.CronSim(expression, after.astimezone(zone(time_zone)))
        for tick in ticks:
            moment: dt.datetime = tick.astimezone(_UTC)
            # In a repeated hour, cronsim's first result may be before ``after``.
            if moment > after:
                return moment
    except cronsim.CronSimError as error:
        raise InvalidArgument(f"{expression!r} is not a cron expression: {error}") from error
    raise InvalidArgument(
        f"{expression!r} has no tick in the next fifty years: change its day or month"
    )
