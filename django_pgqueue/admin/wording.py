"""Formatters for values on a page."""

from __future__ import annotations

import datetime as dt
import json
import re

from django.utils.html import format_html
from django.utils.timezone import is_naive, localtime
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_pgqueue.admin.masking import mask
from django_pgqueue.wording import age, amount

__all__ = [
    "EMPTY",
    "LONGEST",
    "counted",
    "cut",
    "lapse",
    "moment",
    "preformatted",
    "pretty_json",
    "visible",
]

EMPTY = "-"

#: Maximum number of characters of a body on a page. Longer text makes browsers slow.
LONGEST = 100_000

#: Control characters, and invisible ones that reorder or hide the text around them.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
)


def counted(number: int) -> str:
    """A number of messages with its noun.

    >>> counted(1), counted(1200)
    ('1 message', '1,200 messages')
    """
    words = ngettext("%(count)s message", "%(count)s messages", number)
    return words % {"count": amount(number)}


def moment(at: dt.datetime | None) -> str:
    """A datetime to the second, in the site's time zone. Naive datetimes are not converted.

    >>> moment(None)
    '-'
    """
    if at is None:
        return EMPTY
    return f"{at if is_naive(at) else localtime(at):%Y-%m-%d %H:%M:%S}"


def visible(text: str) -> str:
    r"""Escape control and direction characters, so that no text can pass for another.

    >>> visible("invoice\u202efdp.exe")
    'invoice\\u202efdp.exe'
    """
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def cut(text: str, length: int) -> str:
    """The first ``length`` characters of a text, escaped as by :func:`visible`.

    >>> cut("abcdef", 3)
    'abc…'
    """
    return visible(text if len(text) <= length else f"{text[:length]}…")


def lapse(seconds: float) -> str:
    """A duration with a unit that suits it.

    >>> lapse(0.0123), lapse(1.5), lapse(90)
    ('12 ms', '1.5 s', '1 min 30 s')
    """
    seconds = max(0.0, seconds)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else age(seconds)


def pretty_json(value: object) -> str:
    """Indented JSON as a ``<pre>`` block, with secrets masked.

    >>> pretty_json({"a": "<b>"})
    '<pre class="pgqueue-text">{\\n  &quot;a&quot;: &quot;&lt;b&gt;&quot;\\n}</pre>'
    """
    if value is None:
        return EMPTY
    return preformatted(json.dumps(mask(value), indent=2, ensure_ascii=False))


def preformatted(text: str | None, length: int | None = None) -> str:
    """Text as a ``<pre>`` block, cut after LONGEST characters.

    ``length`` is the length of the whole text, if ``text`` is only its beginning.
    """
    if not text:
        return EMPTY
    left = max(len(text), length or 0) - LONGEST
    shown = visible(text[:LONGEST])
    if left > 0:
        shown += "\n" + _("… and %s characters more") % f"{left:,}"
    return format_html('<pre class="pgqueue-text">{}</pre>', shown)
