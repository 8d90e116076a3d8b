"""A database router that keeps the queues in ``PGQUEUE["DATABASE"]``.

::

    DATABASE_ROUTERS = ["django_pgqueue.routers.QueueRouter"]
    PGQUEUE = {"DATABASE": "queues"}
"""

from __future__ import annotations

from typing import Any

from django.db import models

from django_pgqueue.conf import settings

__all__ = ["QueueRouter"]

APP = "django_pgqueue"


class QueueRouter:
    """Routes this app's models to ``PGQUEUE["DATABASE"]``, and leaves other models alone.

    If ``PGQUEUE["DATABASE"]`` is not set, it routes nothing.
    """

    def db_for_read(self, model: type[models.Model], **hints: Any) -> str | None:
        if model._meta.app_label != APP:
            return None
        # Objects related to a queue or message are in the database that it was read from.
        instance = hints.get("instance")
        if instance is not None and instance._meta.app_label == APP and instance._state.db:
            return str(instance._state.db)
        return settings.DATABASE or None

    db_for_write = db_for_read

    def allow_relation(
        self, first: models.Model, second: models.Model, **hints: Any
    ) -> bool | None:
        if {first._meta.app_label, second._meta.app_label} != {APP}:
            return None
        return first._state.db == second._state.db

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        if app_label != APP or not settings.DATABASE:
            return None
        return db == str(settings.DATABASE)
