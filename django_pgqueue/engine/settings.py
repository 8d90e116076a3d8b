"""The settings by name, with defaults and validators.

:mod:`django_pgqueue.conf` explains them, and reads them from Django's settings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """A kind of value: the function that tests a value, and a description of valid values."""

    fits: Callable[[Any], bool]
    text: str


def _is_seconds(value: Any) -> bool:
    is_flag = isinstance(value, bool)
    return isinstance(value, (int, float)) and not is_flag and 0 <= value < math.inf


def _are_words(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)


def _are_expressions(value: Any) -> bool:
    try:
        return _are_words(value) and all(re.compile(each) for each in value)
    except re.error:
        return False


def _is_name(value: Any) -> bool:
    return value is None or isinstance(value, str)


_COUNT = Kind(lambda value: type(value) is int and value >= 0, "a whole number, zero or more")
_SECONDS = Kind(_is_seconds, "a number of seconds, zero or more")
_SECONDS_OR_NONE = Kind(
    lambda value: value is None or _is_seconds(value), "a number of seconds, zero or more, or None"
)
_DAYS_OR_NONE = Kind(
    lambda value: value is None or _is_seconds(value), "a number of days, zero or more, or None"
)
_WORDS = ("password", "passwd", "secret", "token", "authorization", "api_key", "apikey")

#: The parts of the admin that are hidden until they are used.
ADMIN_PARTS = ("schedules", "topics", "exports", "rollups", "batches")


def _are_parts(value: Any) -> bool:
    return _are_words(value) and set(value) <= set(ADMIN_PARTS)


_SETTINGS: dict[str, tuple[Any, Kind]] = {
    "DATABASE": (None, Kind(_is_name, "an alias of DATABASES, or None")),
    "ADMIN_SHOWS": ((), Kind(_are_parts, f"a list of some of {', '.join(map(repr, ADMIN_PARTS))}")),
    "ATTEMPTS_KEPT": (20, _COUNT),
    "ATTEMPTS_PER_QUEUE": (100_000, _COUNT),
    "AUDIT_DAYS": (90.0, _DAYS_OR_NONE),
    "CACHE_SECONDS": (5.0, _SECONDS),
    "COPY_THRESHOLD": (500, _COUNT),
    "EXACT_COUNT_LIMIT": (10_000, _COUNT),
    "HISTORY_SECONDS": (10.0, _SECONDS_OR_NONE),
    "LOCK_SECONDS": (30.0, _SECONDS),
    "MAINTENANCE_SECONDS": (60.0, _SECONDS_OR_NONE),
    "MASK": ((), Kind(_are_expressions, "a list of regular expressions")),
    "PREPARE_STATEMENTS": (True, Kind(lambda value: isinstance(value, bool), "True or False")),
    "QUEUES_FOR": (None, Kind(_is_name, "the dotted name of a function, or None")),
    "MASKED_KEYS": (_WORDS, Kind(_are_words, "a list of words")),
    "OVERVIEW_TOKEN": (None, Kind(_is_name, "text, or None")),
    "TRACEBACK_LENGTH": (8192, _COUNT),
}

DEFAULTS: dict[str, Any] = {name: default for name, (default, _) in _SETTINGS.items()}


def mistake(given: Mapping[str, Any], name: str) -> str | None:
    """Return the error in the value of a setting; None if there is none.

    >>> mistake({"CACHE_SECONDS": -1}, "CACHE_SECONDS")
    'must be a number of seconds, zero or more, not -1. The default is 5.0'
    """
    if name not in given or name not in _SETTINGS:
        return None
    default, kind = _SETTINGS[name]
    if kind.fits(given[name]):
        return None
    return f"must be {kind.text}, not {given[name]!r}. The default is {default!r}"
