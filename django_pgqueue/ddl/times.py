"""Times as numbers, which do not depend on the time zone of Django or of the session."""

from __future__ import annotations

import datetime as dt
from typing import Any

__all__ = ["EPOCH", "as_microseconds", "moment", "server_time"]

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def as_microseconds(expression: str) -> str:
    """An SQL expression that converts a ``timestamptz`` to microseconds since 1970."""
    return f"(extract(epoch FROM {expression}) * 1000000)::bigint"


def moment(microseconds: int) -> dt.datetime:
    """The time, with a time zone, that is this many microseconds after 1970.

    >>> moment(1_500_000).isoformat()
    '1970-01-01T00:00:01.500000+00:00'
    """
    return EPOCH + dt.timedelta(microseconds=microseconds)


def server_time(cursor: Any) -> dt.datetime:
    """The server's current time, with a time zone even under ``USE_TZ = False``."""
    cursor.execute(f"SELECT {as_microseconds('statement_timestamp()')}")
    (microseconds,) = cursor.fetchone()
    return moment(microseconds)
