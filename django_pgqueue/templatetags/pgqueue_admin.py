"""Formatters for values on the admin's pages, most of them also template filters."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django import template
from django.utils.formats import number_format
from django.utils.html import format_html, strip_tags
from django.utils.http import urlencode
from django.utils.safestring import mark_safe
from django.utils.text import capfirst
from django.utils.timezone import is_naive, localtime
from django.utils.timezone import now as aware_now
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_pgqueue.engine.wording import age, length_text

__all__ = [
    *("EMPTY", "LONGEST", "age", "ago", "ahead", "counted", "cut", "decimal", "lapse", "linked"),
    *(
        "moment",
        "number",
        "once",
        "percent",
        "preformatted",
        "rate",
        "rate_text",
        "seconds_since",
        "visible",
    ),
    "when",
]

EMPTY = "-"

#: Maximum number of characters that a page shows of a body. Longer text slows browsers.
LONGEST = 100_000

#: Control characters, and invisible ones that reorder or hide the text around them.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
)

register = template.Library()
register.filter(age)
register.filter(length_text)


@register.simple_tag
def once() -> str:
    """Return a hidden field with a token of the form: see :mod:`django_pgqueue.admin.once`."""
    return format_html('<input type="hidden" name="once" value="{}">', uuid.uuid4().hex)


@register.filter
def number(value: float, exact: bool = True) -> str:
    """Format a count for the user's language; an estimate gets the mark ≈, on the same line.

    >>> number(1234567), number(20000, exact=False)
    ('1,234,567', '≈\\xa020,000')
    """
    text = number_format(value, use_l10n=True, force_grouping=True)
    return text if exact else f"≈\N{NO-BREAK SPACE}{text}"


@register.filter
def decimal(value: float) -> str:
    """Format a number for the user's language: three digits, or an integer from 1,000 on.

    >>> decimal(0.25), decimal(1.0), decimal(12.345), decimal(1434.6)
    ('0.25', '1', '12.3', '1,435')
    """
    rounded = float(f"{value:.3g}") if value < 1000 else round(value)
    return number(int(rounded) if rounded == int(rounded) else rounded)


@register.filter
def rate(value: float) -> str:
    """Format a rate: blank for zero, without decimals from 10 on.

    >>> rate(0), rate(0.04), rate(1.23), rate(1434.6)
    ('', '0.04', '1.2', '1,435')
    """
    return "" if not value else decimal(round(value, 0 if value >= 10 else 1) or value)


@register.filter
def rate_text(value: str | None) -> str:
    """Format a rate of a queue or a group.

    >>> rate_text("30/m"), rate_text(None)
    ('30/min', '')
    """
    if not value:
        return ""
    count, _slash, unit = value.partition("/")
    return f"{number(int(count))}/{'min' if unit == 'm' else unit}"


@register.filter
def percent(share: float) -> str:
    """
    >>> percent(0.123)
    '12%'
    """
    return _("%s%%") % number(round(share * 100))


@register.filter
def counted(value: int, exact: bool = True) -> str:
    """Format a number of messages, with "message" or "messages" behind it.

    >>> counted(1), counted(1200)
    ('1 message', '1,200 messages')
    """
    words = ngettext("%(count)s message", "%(count)s messages", value)
    return words % {"count": number(value, exact)}


@register.filter
def lapse(seconds: float) -> str:
    """Format a duration in one unit, like ``1.5 min``. :func:`age` writes whole units instead.

    >>> lapse(0), lapse(0.0123), lapse(5), lapse(90), lapse(7200)
    ('0 s', '12.3 ms', '5 s', '1.5 min', '2 h')
    """
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{decimal(seconds / size)} {unit}"
    return f"{decimal(seconds * 1000)} ms" if seconds > 0 else "0 s"


@register.filter
def moment(at: dt.datetime | None) -> str:
    """Format a datetime to the second, in the site's time zone. Naive datetimes stay as they are.

    >>> moment(None)
    '-'
    """
    return EMPTY if at is None else f"{_local(at):%Y-%m-%d %H:%M:%S}"


@register.filter
def when(at: dt.datetime | None) -> str:
    """Format a datetime as HTML: the time of day if it is today, otherwise date and time."""
    if at is None:
        return ""
    is_today = _local(at).date() == _local(_now(at)).date()
    text = f"{_local(at):%H:%M:%S}" if is_today else f"{_local(at):%Y-%m-%d %H:%M}"
    return format_html('<time title="{}">{}</time>', moment(at), text)


def seconds_since(at: dt.datetime) -> float:
    """Return the seconds since a datetime; negative if it is in the future."""
    return (_now(at) - at).total_seconds()


@register.filter
def ago(at: dt.datetime) -> str:
    """Format the time since a datetime, without the word "ago"."""
    return age(seconds_since(at))


@register.filter
def ahead(at: dt.datetime) -> str:
    """Format the time until a datetime."""
    return age(-seconds_since(at))


def _local(at: dt.datetime) -> dt.datetime:
    return at if is_naive(at) else localtime(at)


def _now(like: dt.datetime) -> dt.datetime:
    return dt.datetime.now() if is_naive(like) else aware_now()


@register.filter
def visible(text: str) -> str:
    r"""Escape control characters, and invisible ones that make a text look like another.

    >>> visible("invoice\u202efdp.exe")
    'invoice\\u202efdp.exe'
    """
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


@register.filter("short")
def cut(text: object, length: int) -> str:
    """Cut a text after ``length`` characters, and escape it with :func:`visible`.

    >>> cut("abcdef", 3)
    'abc…'
    """
    text = str(text)
    return visible(text if len(text) <= length else f"{text[:length]}…")


def linked(url: str, text: object, **query: Any) -> str:
    """Return an HTML link, or only the text if ``url`` is empty."""
    if not url:
        return str(text)
    return format_html('<a href="{}">{}</a>', f"{url}?{urlencode(query)}" if query else url, text)


@register.filter(is_safe=True)
def labelled(table: str, headers: Sequence[Mapping[str, Any]]) -> str:
    """Name the column in each cell of a list by Django, for windows that show rows as cards."""
    names = [capfirst(strip_tags(str(header["text"]))) for header in headers]

    def name(row: re.Match[str]) -> str:
        left = iter(names)
        return re.sub(r"<t[dh] [^>]*", lambda cell: _with_label(cell[0], next(left, "")), row[0])

    head, tag, rows = table.partition("<tbody>")
    return mark_safe(head + tag + re.sub(r"<tr>.*?</tr>", name, rows, flags=re.DOTALL))


def _with_label(cell: str, name: str) -> str:
    return format_html('{} data-label="{}"', mark_safe(cell), name) if name else cell


@register.filter
def preformatted(text: str | None, length: int | None = None) -> str:
    """Return a text as a ``<pre>`` block, cut after ``LONGEST`` characters.

    ``length`` is the length of the whole text, if ``text`` is only its beginning.
    """
    if not text:
        return EMPTY
    left = max(len(text), length or 0) - LONGEST
    shown = visible(text[:LONGEST])
    if left > 0:
        shown += "\n" + _("… and %s characters more") % number(left)
    return format_html('<pre class="pgqueue-text">{}</pre>', shown)
