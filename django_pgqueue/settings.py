"""The settings by name, with defaults and tests of values.

:mod:`django_pgqueue.conf` explains them, and reads them from Django's settings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

DEFAULTS: dict[str, Any] = {
    "DATABASE": None,
    "ATTEMPTS_KEPT": 20,
    "ATTEMPTS_PER_QUEUE": 100_000,
    "CACHE_SECONDS": 5.0,
    "COPY_THRESHOLD": 500,
    "EXACT_COUNT_LIMIT": 10_000,
    "HISTORY_SECONDS": 10.0,
    "LOCK_SECONDS": 30.0,
    "MAINTENANCE_SECONDS": 60.0,
    "MASK": (),
    "PREPARE_STATEMENTS": True,
    "QUEUES_FOR": None,
    "MASKED_KEYS": ("password", "passwd", "secret", "token", "authorization", "api_key", "apikey"),
    "OVERVIEW_TOKEN": None,
    "TRACEBACK_LENGTH": 8192,
}


def _is_seconds(value: object) -> bool:
    is_flag = isinstance(value, bool)
    return isinstance(value, (int, float)) and not is_flag and 0 <= value < math.inf


def _is_seconds_or_none(value: object) -> bool:
    return value is None or _is_seconds(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_words(value: object) -> TypeGuard[Sequence[str]]:
    return isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)


def _are_expressions(value: object) -> bool:
    try:
        return _is_words(value) and all(re.compile(each) for each in value)
    except re.error:
        return False


def _is_name(value: object) -> bool:
    return value is None or isinstance(value, str)


#: By key: a test of the value, and a description of valid values.
_KINDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "DATABASE": (_is_name, "an alias of DATABASES, or None"),
    "ATTEMPTS_KEPT": (_is_count, "a whole number, zero or more"),
    "ATTEMPTS_PER_QUEUE": (_is_count, "a whole number, zero or more"),
    "CACHE_SECONDS": (_is_seconds, "a number of seconds, zero or more"),
    "COPY_THRESHOLD": (_is_count, "a whole number, zero or more"),
    "EXACT_COUNT_LIMIT": (_is_count, "a whole number, zero or more"),
    "HISTORY_SECONDS": (_is_seconds_or_none, "a number of seconds, zero or more, or None"),
    "LOCK_SECONDS": (_is_seconds, "a number of seconds, zero or more"),
    "MAINTENANCE_SECONDS": (_is_seconds_or_none, "a number of seconds, zero or more, or None"),
    "MASK": (_are_expressions, "a list of regular expressions"),
    "PREPARE_STATEMENTS": (lambda value: isinstance(value, bool), "True or False"),
    "QUEUES_FOR": (_is_name, "the dotted name of a function, or None"),
    "MASKED_KEYS": (_is_words, "a list of words"),
    "OVERVIEW_TOKEN": (_is_name, "text, or None"),
    "TRACEBACK_LENGTH": (_is_count, "a whole number, zero or more"),
}


def mistake(given: Mapping[str, Any], name: str) -> str | None:
    """The error in the value of a setting; None if there is none.

    >>> mistake({"CACHE_SECONDS": -1}, "CACHE_SECONDS")
    'must be a number of seconds, zero or more, not -1. The default is 5.0'
    """
    if name not in given or name not in _KINDS:
        return None
    is_good, kind = _KINDS[name]
    if is_good(given[name]):
        return None
    return f"must be {kind}, not {given[name]!r}. The default is {DEFAULTS[name]!r}"
