"""The health page: dead rows, sessions that keep them from removal, retention."""

from __future__ import annotations

from django.http import HttpResponse
from django.utils.translation import gettext as _

from django_pgqueue.admin.access import queues_for
from django_pgqueue.admin.overview import LONG_TRANSACTION
from django_pgqueue.admin.page import Page
from django_pgqueue.admin.queries import ask
from django_pgqueue.engine.names import LIVE

#: A table needs a vacuum if it has more than ``DEAD_ROWS`` dead rows, and more than ``DEAD_SHARE``
#: dead rows per live row.
DEAD_ROWS, DEAD_SHARE = 10_000, 2.0


class HealthPage(Page):
    """Dead rows, the sessions that keep them from removal, and retention."""

    name = "health"
    route = "health/"
    permission = "view_health"
    template = "health"

    def answer(self) -> HttpResponse:
        kept = queues_for(self.request).filter(retention__isnull=False).order_by("name")
        return self.render_live(
            {
                "title": _("Database"),
                "server": ask("health/server")[0],
                # Append whether to warn: if the holder is a replication slot, or open for too long.
                "holders": [
                    (*holder, holder[-1] is None or holder[-1] > LONG_TRANSACTION)
                    for holder in ask("health/holders")
                ],
                "tables": [
                    (*table, table[2] > DEAD_ROWS and table[2] > DEAD_SHARE * table[1])
                    for table in ask("health/tables", [list(LIVE)])
                ],
                "retention": kept.values_list("name", "retention", "purge_mark__purged_at"),
            },
        )
