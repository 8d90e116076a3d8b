"""How values look on a page."""

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

#: A page shows no more characters of a body than this; a browser would choke on the rest.
LONGEST = 100_000

#: Control characters, and those that turn or hide text around them.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
)


def counted(number: int) -> str:
    """A number of messages, in words.

    >>> counted(1), counted(1200)
    ('1 message', '1,200 messages')
    """
    words = ngettext("%(count)s message", "%(count)s messages", number)
    return words % {"count": amount(number)}


def moment(at: dt.datetime | None) -> str:
    """A moment with its seconds, in the site's time zone; naive where Django uses none.

    >>> moment(None)
    '-'
    """
    if at is None:
        return EMPTY
    return f"{at if is_naive(at) else localtime(at):%Y-%m-%d %H:%M:%S}"


def visible(text: str) -> str:
    r"""Text whose control and direction characters are codes: no text may pass for another.

    >>> visible("invoice\u202efdp.exe")
    'invoice\\u202efdp.exe'
    """
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def cut(text: str, length: int) -> str:
    """The beginning of a text, for a cell.

    >>> cut("abcdef", 3)
    'abc…'
    """
    return visible(text if len(text) <= length else f"{text[:length]}…")


def lapse(seconds: float) -> str:
    """How long a step took.

    >>> lapse(0.0123), lapse(1.5), lapse(90)
    ('12 ms', '1.5 s', '1 min 30 s')
    """
    seconds = max(0.0, seconds)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else age(seconds)


def pretty_json(value: object) -> str:
    """JSON over several lines, as text of its own in the page; secrets are masked.

    >>> pretty_json({"a": "<b>"})
    '<pre class="pgqueue-text">{\\n  &quot;a&quot;: &quot;&lt;b&gt;&quot;\\n}</pre>'
    """
    if value is None:
        return EMPTY
    return preformatted(json.dumps(mask(value), indent=2, ensure_ascii=False))


def preformatted(text: str | None, length: int | None = None) -> str:
    """Text as it is, cut when it is very long; of ``length`` in all, if this is its beginning."""
    if not text:
        return EMPTY
    left = max(len(text), length or 0) - LONGEST
    shown = visible(text[:LONGEST])
    if left > 0:
        shown += "\n" + _("… and %s characters more") % f"{left:,}"
    return format_html('<pre class="pgqueue-text">{}</pre>', shown)
