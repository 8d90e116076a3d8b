"""Every setting, with its default and meaning: the keys of ``settings.PGQUEUE``.

===================  =========  =================================================================
key                  default    meaning
===================  =========  =================================================================
DATABASE             None       alias of the database that holds the queues; None: as the routers
                                say. Set it together with ``django_pgqueue.routers.QueueRouter``.
ATTEMPTS_KEPT        20         of how many failed attempts of a message the errors are kept
CACHE_SECONDS        5.0        how long a process uses a queue's settings before it asks again
COPY_THRESHOLD       500        from how many messages on ``send_batch`` goes by COPY
EXACT_COUNT_LIMIT    10000      up to how many rows ``metrics`` counts one by one
HISTORY_SECONDS      10.0       how often consumers write what they did, for the admin's history;
                                None: no history is kept
LOCK_SECONDS         30.0       how long ``drop_queue`` and ``repartition`` try to get their locks
MAINTENANCE_SECONDS  60.0       how often at most consumers do maintenance (retention); None:
                                not at all, where ``manage.py pgqueue_maintain`` does
MASK                 ()         regular expressions: what matches in a stored error becomes ********
PREPARE_STATEMENTS   True       psycopg prepares statements that run often
QUEUES_FOR           None       dotted name of a function that takes a request of the admin and
                                returns the queryset of the queues it may see; None: all of them
MASKED_KEYS          password…  the admin masks values under keys that contain one of these words
OVERVIEW_TOKEN       None       a program that sends it as ``Authorization: Bearer`` may read the
                                admin's ``overview.json`` without a session
TRACEBACK_LENGTH     8192       how many characters of a failed attempt's traceback are kept
===================  =========  =================================================================

>>> PGQUEUE = {"DATABASE": "queues"}
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

__all__ = ["DEFAULTS", "problem", "settings"]

DEFAULTS: dict[str, Any] = {
    "DATABASE": None,
    "ATTEMPTS_KEPT": 20,
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


#: By key: whether a value is good, and what it must be.
_KINDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "DATABASE": (_is_name, "an alias of DATABASES, or None"),
    "ATTEMPTS_KEPT": (_is_count, "a whole number, zero or more"),
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


def problem(name: str | None = None) -> str | None:
    """The mistake in the value of a key, or in ``PGQUEUE`` itself; None if there is none.

    >>> problem("CACHE_SECONDS") is None
    True
    """
    given = getattr(django_settings, "PGQUEUE", {})
    if not isinstance(given, dict):
        return (
            f"PGQUEUE must be a dict, not {given!r}: write PGQUEUE = {{'CACHE_SECONDS': 5.0}}, "
            f"or leave it out"
        )
    if name in given and name in _KINDS:
        is_good, kind = _KINDS[name]
        if not is_good(given[name]):
            return (
                f"PGQUEUE[{name!r}] must be {kind}, not {given[name]!r}. "
                f"The default is {DEFAULTS[name]!r}"
            )
    return None


class Settings:
    """Reads ``settings.PGQUEUE`` at first use, and again when a test changes it."""

    def __getattr__(self, name: str) -> Any:
        if name not in DEFAULTS:
            raise AttributeError(f"PGQUEUE has no setting {name!r}: see django_pgqueue.conf")
        if wrong := problem(name):
            raise ImproperlyConfigured(f"{wrong}.")
        value = getattr(django_settings, "PGQUEUE", {}).get(name, DEFAULTS[name])
        self.__dict__[name] = value
        return value

    def reload(self) -> None:
        self.__dict__.clear()


settings = Settings()


def _reload(*, setting: str, **kwargs: Any) -> None:
    if setting == "PGQUEUE":
        settings.reload()


setting_changed.connect(_reload)
