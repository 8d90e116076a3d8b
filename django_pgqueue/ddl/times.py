"""Times as numbers, which mean the same whatever time zone Django or the session uses."""

from __future__ import annotations

import datetime as dt
from typing import Any

__all__ = ["EPOCH", "as_microseconds", "moment", "server_time"]

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def as_microseconds(expression: str) -> str:
    """The SQL of a ``timestamptz`` expression as microseconds since 1970."""
    return f"(extract(epoch FROM {expression}) * 1000000)::bigint"


def moment(microseconds: int) -> dt.datetime:
    """The moment that lies this long after 1970, with a time zone.

    >>> moment(1_500_000).isoformat()
    '1970-01-01T00:00:01.500000+00:00'
    """
    return EPOCH + dt.timedelta(microseconds=microseconds)


def server_time(cursor: Any) -> dt.datetime:
    """Now, by the server's clock; with a time zone, also under ``USE_TZ = False``."""
    cursor.execute(f"SELECT {as_microseconds('statement_timestamp()')}")
    (microseconds,) = cursor.fetchone()
    return moment(microseconds)
