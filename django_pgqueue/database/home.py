"""Which database our models are read from: the one that they are written to."""

from __future__ import annotations

from typing import Any, TypeVar

from django.db import models, router

from django_pgqueue.conf import settings

M = TypeVar("M", bound=models.Model)


class HomeManager(models.Manager[M]):
    """Reads from the database that has the rows, even if a router sends reads to a replica.

    A replica lags: a setting would be read as it was before the write that it belongs to. And an
    object's database is where its methods write. ``using("replica")`` reads from a replica.
    """

    def database(self, using: str | None = None) -> str:
        """Return the database alias: ``using``, PGQUEUE["DATABASE"], or the routers' choice."""
        return using or self._db or settings.DATABASE or router.db_for_write(self.model)

    def get_queryset(self) -> models.QuerySet[M]:
        # Related objects are in the database of their object: a related manager has it as
        # ``instance``, a foreign key as a hint.
        hints: dict[str, Any] = self._hints  # type: ignore[attr-defined]
        instance = getattr(self, "instance", None) or hints.get("instance")
        known = instance._state.db if isinstance(instance, models.Model) else None
        return super().get_queryset().using(self._db or known or self.database())
