"""How values look on a page."""

from __future__ import annotations

import datetime as dt
import json

from django.utils.formats import localize
from django.utils.html import format_html
from django.utils.timezone import is_naive, localtime

__all__ = ["EMPTY", "age", "amount", "local", "preformatted", "pretty_json"]

EMPTY = "-"

#: A page shows no more of a body than this; a browser would choke on the rest.
LONGEST = 100_000


def amount(number: int, *, exact: bool = True) -> str:
    """A count, with a mark when it is an estimate.

    >>> amount(1234567), amount(20000, exact=False)
    ('1,234,567', '≈ 20,000')
    """
    return f"{number:,}" if exact else f"≈ {number:,}"


def age(seconds: float | None) -> str:
    """A span of time, in its two largest units.

    >>> age(0.4), age(75), age(3 * 3600 + 60), age(200_000), age(None)
    ('0 s', '1 min 15 s', '3 h 1 min', '2 d 7 h', '-')
    """
    if seconds is None:
        return EMPTY
    left = max(0, int(seconds))
    parts = []
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        number, left = divmod(left, length)
        parts.append((number, unit))
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return " ".join(f"{number} {unit}" for number, unit in parts[:2] if number) or "0 s"


def local(moment: dt.datetime) -> str:
    """A moment as the site shows them; naive ones come where Django uses no time zones."""
    return str(localize(moment if is_naive(moment) else localtime(moment)))


def pretty_json(value: object) -> str:
    """JSON over several lines, as text of its own in the page.

    >>> pretty_json({"a": "<b>"})
    '<pre>{\\n  &quot;a&quot;: &quot;&lt;b&gt;&quot;\\n}</pre>'
    """
    if value is None:
        return EMPTY
    return preformatted(json.dumps(value, indent=2, ensure_ascii=False))


def preformatted(text: str | None) -> str:
    """Text as it is, cut when it is very long."""
    if not text:
        return EMPTY
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}\n… and {len(text) - LONGEST:,} characters more"
    return format_html("<pre>{}</pre>", text)
