"""Marks of deploys and the like: on charts, on sparklines, and beside what began after one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from django.utils.timezone import now
from django.utils.translation import gettext as _

from django_pgqueue.engine.wording import age
from django_pgqueue.models import Mark

#: A mark is named beside what began at most this long after it.
FOLLOWED = dt.timedelta(minutes=15)
HOUR = dt.timedelta(hours=1)


def recent_marks(using: str, first: dt.datetime | None = None) -> list[Mark]:
    """Return the marks to which the last hour may be due, or those from ``first`` on."""
    needed = now() - HOUR - FOLLOWED
    return Mark.objects.since(min(needed, first or needed), using=using)


def followed(marks: Sequence[Mark], at: dt.datetime | None) -> str:
    """Return what came shortly before a time, such as "8 s after v42"; "" if nothing did."""
    if at is not None:
        before = [mark for mark in marks if mark.at <= at <= mark.at + FOLLOWED]
        if before:
            told = {"age": age((at - before[-1].at).total_seconds()), "mark": before[-1].text}
            return _("%(age)s after %(mark)s") % told
    return ""


def lines(marks: Sequence[Mark], width: int, height: int) -> str:
    """Return the SVG path of the last hour's marks on a sparkline of complete two-minute slots."""
    minute = now().replace(second=0, microsecond=0)
    found = ""
    for mark in marks:
        # The middle of the newest slot is a minute ago, that of the oldest one 59 minutes.
        minutes = (minute - mark.at).total_seconds() / 60
        x = width * (59 - max(minutes, 1)) / 58
        found += f"M{x:.1f} 0V{height}" if x >= 0 else ""
    return found
