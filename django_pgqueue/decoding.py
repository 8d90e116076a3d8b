"""From JSON text to the values of ``json.loads``, by msgspec where it is installed."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

__all__ = ["Undecoded", "decode"]

msgspec: Any = import_module("msgspec") if find_spec("msgspec") else None

# json.loads without the white space around, of which jsonb has none.
_raw_decode = json.JSONDecoder().raw_decode


class Undecoded(str):
    """The text of a body that PostgreSQL takes for JSON, and Python's json does not.

    That is a whole number of more than 4,300 digits, or what is nested deeper than the interpreter
    goes. Raised for, it would keep from their handlers all that were read with it.
    """

    __slots__ = ()


def by_json(text: str) -> Any:
    try:
        return _raw_decode(text)[0]
    except (ValueError, RecursionError):
        return Undecoded(text)


def by_msgspec() -> Callable[[str], Any]:
    quickly = msgspec.json.Decoder().decode
    refused = (msgspec.MsgspecError, RecursionError)

    def decode(text: str) -> Any:
        try:
            return quickly(text)
        except refused:  # json takes a number beyond a float for infinity
            return by_json(text)

    return decode


decode = by_msgspec() if msgspec else by_json
