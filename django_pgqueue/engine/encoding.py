"""Encodes Python values as JSON text, as Django's encoder does, without importing Django."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import sys
import uuid
from typing import Any


class Encoder(json.JSONEncoder):
    """A JSON encoder that writes dates, times, Decimal, UUID and Django's lazy texts as text."""

    def default(self, o: Any) -> Any:
        if isinstance(o, dt.datetime):
            text = _milliseconds(o.isoformat(), o.microsecond)
            return f"{text.removesuffix('+00:00')}Z" if text.endswith("+00:00") else text
        if isinstance(o, dt.date):
            return o.isoformat()
        if isinstance(o, dt.time):
            if o.utcoffset() is not None:
                raise ValueError("JSON can't represent timezone-aware times.")
            return _milliseconds(o.isoformat(), o.microsecond)
        if isinstance(o, dt.timedelta):
            return _duration(o)
        if isinstance(o, (decimal.Decimal, uuid.UUID)) or _is_lazy(o):
            return str(o)
        return super().default(o)


# ensure_ascii would turn each non-ASCII character into six bytes.
encode = Encoder(
    allow_nan=False, ensure_ascii=False, check_circular=True, separators=(",", ":")
).encode


def _milliseconds(text: str, microsecond: int) -> str:
    """Cut the microseconds in the text of a datetime or time to milliseconds."""
    if not microsecond:
        return text
    end = text.index(".") + 4
    return text[:end] + text[end + 3 :]


def _duration(length: dt.timedelta) -> str:
    sign = ""
    if length < dt.timedelta(0):
        sign, length = "-", -length
    minutes, seconds = divmod(length.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    rest = f".{length.microseconds:06d}" if length.microseconds else ""
    return f"{sign}P{length.days}DT{hours:02d}H{minutes:02d}M{seconds:02d}{rest}S"


def _is_lazy(value: Any) -> bool:
    # A lazy text of Django can exist only if Django is imported already.
    module = sys.modules.get("django.utils.functional")
    return module is not None and isinstance(value, module.Promise)
