"""Formats numbers and lengths of time, for the admin and the commands."""

from __future__ import annotations

import datetime as dt
import re

_SECONDS = {"w": 604_800, "d": 86_400, "h": 3600, "min": 60, "m": 60, "s": 1}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(min|[wdhms])", re.ASCII)
_WHOLE = re.compile(rf"(?:{_PART.pattern}\s*)+", re.ASCII)
_SHOWN = ("d", "h", "min", "s")


def amount(number: int, *, exact: bool = True) -> str:
    """Format a number with thousands separators, and an estimate with ≈.

    >>> amount(1234567), amount(20000, exact=False)
    ('1,234,567', '≈ 20,000')
    """
    return f"{number:,}" if exact else f"≈ {number:,}"


def age(seconds: float | None) -> str:
    """Format a length of time in its two largest units; "-" for None.

    >>> age(0.4), age(75), age(3 * 3600 + 60), age(200_000), age(None)
    ('0 s', '1 min 15 s', '3 h 1 min', '2 d 7 h', '-')
    """
    if seconds is None:
        return "-"
    parts = _parts(max(0, int(seconds)))
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return " ".join(f"{number} {unit}" for number, unit in parts[:2] if number) or "0 s"


def length_of(text: str) -> dt.timedelta | None:
    """Parse a length of time with units; None if the text is not one.

    >>> length_of("7d"), length_of("1d 12h"), length_of("90 min"), length_of("90")
    (datetime.timedelta(days=7), datetime.timedelta(days=1, seconds=43200), \
datetime.timedelta(seconds=5400), None)

    Raises OverflowError.
    """
    if _WHOLE.fullmatch(text) is None:
        return None
    return dt.timedelta(
        seconds=sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
    )


def length_text(length: dt.timedelta) -> str:
    """Format a length of time, so that :func:`length_of` can parse it.

    >>> length_text(dt.timedelta(days=7)), length_text(dt.timedelta(hours=36))
    ('7d', '1d 12h')
    """
    seconds = length.total_seconds()
    if seconds != int(seconds) or seconds <= 0:
        return f"{seconds:g}s"
    return " ".join(f"{number}{unit}" for number, unit in _parts(int(seconds)) if number)


def _parts(seconds: int) -> list[tuple[int, str]]:
    parts = []
    for unit in _SHOWN:
        number, seconds = divmod(seconds, _SECONDS[unit])
        parts.append((number, unit))
    return parts
