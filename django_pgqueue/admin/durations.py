"""Form fields for durations, such as ``7d``. They refuse a number without a unit."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

from django import forms
from django.utils.dateparse import parse_duration
from django.utils.translation import gettext as _

from django_pgqueue.engine.wording import length_of, length_text

_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?", re.ASCII)


def span_of(text: str) -> dt.timedelta:
    """Parse a duration that a user typed.

    >>> span_of("7d"), span_of("1d 12h"), span_of("90 min"), span_of("7 00:00:00")
    (datetime.timedelta(days=7), datetime.timedelta(days=1, seconds=43200), \
datetime.timedelta(seconds=5400), datetime.timedelta(days=7))

    Raises ValueError with a text that tells the user what to write.
    """
    text = text.strip().lower()
    if _NUMBER.fullmatch(text):
        raise ValueError(
            _("Add the unit: %(n)sd for days, %(n)sh for hours, %(n)ss for seconds.") % {"n": text}
        )
    try:
        length = length_of(text)
        if length is None:
            length = parse_duration(text)
    except (OverflowError, ValueError):
        length = None
    if length is None:
        raise ValueError(_("Enter a duration, such as 30s, 10min, 2h, 7d or 1d 12h."))
    return length


class SpanField(forms.Field):
    """A form field for a duration such as ``7d``."""

    def prepare_value(self, value: Any) -> Any:
        return length_text(value) if isinstance(value, dt.timedelta) else value

    def to_python(self, value: Any) -> dt.timedelta | None:
        if value in self.empty_values:
            return None
        if isinstance(value, dt.timedelta):
            return value
        try:
            length = span_of(str(value))
        except ValueError as error:
            raise forms.ValidationError(str(error)) from error
        if length < dt.timedelta(seconds=1):
            raise forms.ValidationError(_("Enter at least one second."))
        if length > dt.timedelta(days=365_000):
            raise forms.ValidationError(_("Enter less than a thousand years."))
        return length
