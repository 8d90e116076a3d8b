"""The health page: who blocks whom, dead rows and who keeps them from removal, retention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import OperationalError, connections, transaction
from django.http import HttpResponse
from django.utils.translation import gettext as _

from django_pgqueue.admin.access import queues_for
from django_pgqueue.admin.overview import LONG_TRANSACTION
from django_pgqueue.admin.page import Page
from django_pgqueue.admin.queries import ask
from django_pgqueue.admin.shown import PATIENCE
from django_pgqueue.database.blockers import blockers
from django_pgqueue.database.locks import milliseconds, set_locally
from django_pgqueue.engine.names import LIVE
from django_pgqueue.engine.sqlstates import LOCK_NOT_AVAILABLE, sqlstate
from django_pgqueue.models import Queue

#: A table needs a vacuum if it has more than ``DEAD_ROWS`` dead rows, and more than ``DEAD_SHARE``
#: dead rows per live row.
DEAD_ROWS, DEAD_SHARE = 10_000, 2.0


class HealthPage(Page):
    """Blocking sessions, dead rows, the sessions that keep them from removal, and retention.

    The page waits for no lock: what another session has locked is left out.
    """

    name = "health"
    route = "health/"
    permission = "view_health"
    template = "health"

    def answer(self) -> HttpResponse:
        alias = Queue.objects.database()
        with connections[alias].cursor() as cursor:
            set_locally(cursor, lock_timeout=milliseconds(PATIENCE))
        return self.render_live(
            {
                "title": _("Database"),
                "server": ask("health/server")[0],
                # Append whether to warn: if the holder is a replication slot, or open for too long.
                "holders": [
                    (*holder, holder[-1] is None or holder[-1] > LONG_TRANSACTION)
                    for holder in ask("health/holders")
                ],
                "blockers": blockers(alias),
                "tables": _unless_locked(alias, _tables),
                "retention": _unless_locked(alias, self._retention),
            },
        )

    def _retention(self) -> list[tuple[Any, ...]]:
        kept = queues_for(self.request).filter(retention__isnull=False).order_by("name")
        return list(kept.values_list("name", "retention", "purge_mark__purged_at"))


def _tables() -> list[tuple[Any, ...]]:
    """Return the hot tables, each with whether it needs a vacuum."""
    return [
        (*table, table[2] > DEAD_ROWS and table[2] > DEAD_SHARE * table[1])
        for table in ask("health/tables", [list(LIVE)])
    ]


def _unless_locked(alias: str, look: Callable[[], list[Any]]) -> list[Any] | None:
    """Return what ``look`` finds; None if another session has locked it."""
    try:
        with transaction.atomic(using=alias):
            return look()
    except OperationalError as error:
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
        return None
