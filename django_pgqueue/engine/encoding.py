"""Encodes Python values as JSON text, as Django's encoder does, without importing Django."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
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
        raise TypeError(f"Object of type {type(o).__name__} is not JSON serializable{_advice(o)}")


# ensure_ascii would turn each non-ASCII character into six bytes.
encode = Encoder(
    allow_nan=False, ensure_ascii=False, check_circular=True, separators=(",", ":")
).encode


def _advice(o: Any) -> str:
    """Return what to send in place of an object, with ": " in front; else nothing."""
    kind = type(o).__name__
    if isinstance(o, type):
        return ""
    if hasattr(o, "_meta") and hasattr(o, "pk"):
        return f": send its pk, {o.pk!r}, from which the consumer reads the present {kind}"
    if hasattr(o, "values_list"):
        return ": send the pks, list(objects.values_list('pk', flat=True))"
    if hasattr(o, "model_dump"):
        return ": send its model_dump(mode='json')"
    if dataclasses.is_dataclass(o):
        return ": send dataclasses.asdict() of it"
    if isinstance(o, enum.Enum):
        return ": send its value"
    if isinstance(o, (bytes, bytearray, memoryview)):
        return ": send base64.b64encode() of it, as text"
    if isinstance(o, (set, frozenset)):
        return ": send a list"
    if callable(o):
        return ": a message is data. To run a function later, make it a task and enqueue it"
    return ""


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
