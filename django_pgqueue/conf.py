"""The keys of ``settings.PGQUEUE``, with defaults and meanings.

===================  =========  =================================================================
key                  default    meaning
===================  =========  =================================================================
DATABASE             None       alias of the database that holds the queues; None: the routers
                                choose. Set it together with ``django_pgqueue.routers.QueueRouter``.
ADMIN_SHOWS          ()         parts of the admin that are shown before they are used: "schedules",
                                "topics", "exports", "rollups", "batches"
ATTEMPTS_KEPT        20         maximum number of failed attempts that are stored for a message
ATTEMPTS_PER_QUEUE   100000     maximum number of failed attempts that are stored for a queue
AUDIT_DAYS           90.0       days for which the audit log keeps its entries; None: for ever
CACHE_SECONDS        5.0        seconds for which a process caches a queue's settings
COPY_THRESHOLD       500        number of messages from which ``send_batch`` uses COPY
EXACT_COUNT_LIMIT    10000      number of rows up to which ``metrics`` counts exactly
HISTORY_SECONDS      10.0       seconds between two writes of a consumer to the admin's history;
                                None: no history is kept
LOCK_SECONDS         30.0       seconds that ``drop_queue`` and ``repartition`` wait for locks
MAINTENANCE_SECONDS  60.0       minimum seconds between two rounds of maintenance by consumers;
                                None: consumers do none, ``manage.py pgqueue_maintain`` does it
MASK                 ()         regular expressions: matches in stored errors become ********
PREPARE_STATEMENTS   True       psycopg prepares statements that run often
QUEUES_FOR           None       dotted name of a function that takes an admin request and returns
                                the queryset of the queues that its user may see; None: all
MASKED_KEYS          password…  words: the admin masks values whose key contains one of them
OVERVIEW_TOKEN       None       token: a program that sends it as ``Authorization: Bearer`` may
                                read the admin's ``overview.json`` without a session
TRACEBACK_LENGTH     8192       characters of a failed attempt's traceback that are stored
===================  =========  =================================================================

>>> PGQUEUE = {"DATABASE": "queues"}
"""

from __future__ import annotations

from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver

from django_pgqueue.engine.settings import DEFAULTS, mistake


def problem(name: str | None = None) -> str | None:
    """Return the error in the value of a key, or in ``PGQUEUE`` itself; None if there is none.

    >>> problem("CACHE_SECONDS") is None
    True
    """
    given = getattr(django_settings, "PGQUEUE", {})
    if not isinstance(given, dict):
        return (
            f"PGQUEUE must be a dict, not {given!r}: write PGQUEUE = {{'CACHE_SECONDS': 5.0}}, "
            f"or leave it out"
        )
    wrong = None if name is None else mistake(given, name)
    return wrong and f"PGQUEUE[{name!r}] {wrong}"


class Settings:
    """Reads keys of ``settings.PGQUEUE`` at first use, and again after a test has changed them."""

    def __getattr__(self, name: str) -> Any:
        if name not in DEFAULTS:
            raise AttributeError(f"PGQUEUE has no setting {name!r}: see django_pgqueue.conf")
        if wrong := problem(name):
            raise ImproperlyConfigured(f"{wrong}.")
        value = getattr(django_settings, "PGQUEUE", {}).get(name, DEFAULTS[name])
        self.__dict__[name] = value
        return value


settings = Settings()


@receiver(setting_changed)
def _reload(*, setting: str, **kwargs: Any) -> None:
    if setting == "PGQUEUE":
        settings.__dict__.clear()
