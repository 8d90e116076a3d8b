"""Times as numbers, which do not depend on the time zone of Django or of the session."""

from __future__ import annotations

import datetime as dt
from typing import Any

__all__ = ["EPOCH", "as_microseconds", "moment", "server_time"]

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def as_microseconds(expression: str) -> str:
    """Return an SQL expression that converts a ``timestamptz`` to microseconds since 1970."""
    return f"(extract(epoch FROM {expression}) * 1000000)::bigint"


def moment(microseconds: int) -> dt.datetime:
    """Return the aware datetime that is this many microseconds after the start of 1970.

    >>> moment(1_500_000).isoformat()
    '1970-01-01T00:00:01.500000+00:00'
    """
    return EPOCH + dt.timedelta(microseconds=microseconds)


def server_time(cursor: Any) -> dt.datetime:
    """Return the server's current time, which is aware even under ``USE_TZ = False``."""
    cursor.execute(f"SELECT {as_microseconds('statement_timestamp()')}")
    (microseconds,) = cursor.fetchone()
    return moment(microseconds)
