"""Decodes JSON text to the values of ``json.loads``, with msgspec if it is installed."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

msgspec: Any = import_module("msgspec") if find_spec("msgspec") else None

# Like json.loads, but does not skip surrounding white space: jsonb has none.
_raw_decode = json.JSONDecoder().raw_decode


class Undecoded(str):
    """The text of a body that PostgreSQL accepts as JSON, but Python's json cannot decode.

    The text has a whole number of more than 4,300 digits, or nests too deeply for the interpreter.
    An exception would fail the whole read, and the read's other messages would not be handled.
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
        except refused:  # such as a number too large for a float, which json decodes as infinity
            return by_json(text)

    return decode


decode = by_msgspec() if msgspec else by_json
