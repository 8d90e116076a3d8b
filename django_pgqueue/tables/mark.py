"""Marks: what happened outside the queues at a time, such as a deploy. Charts show them."""

from __future__ import annotations

import datetime as dt
from typing import ClassVar

from django.db import connections, models

from django_pgqueue.database.home import HomeManager
from django_pgqueue.tables import columns

#: Maximum number of characters of a mark.
LONGEST = 100
#: Maximum number of marks that are read at once, the newest ones.
MOST = 50

# A release is new unless it was the last one, or a live process has it: while one release replaces
# another, processes of the old one may start, too.
_RELEASED = """
    INSERT INTO pgqueue_mark (text, at, is_release) SELECT %(release)s, statement_timestamp(), true
    WHERE NOT EXISTS (SELECT FROM pgqueue_process WHERE release = %(release)s AND gone_at IS NULL
                      AND heartbeat_at > statement_timestamp()
                                         - make_interval(secs => %(dead_after)s))
      AND %(release)s IS DISTINCT FROM (
          SELECT text FROM pgqueue_mark WHERE is_release ORDER BY at DESC, id DESC LIMIT 1)
"""


class MarkManager(HomeManager["Mark"]):
    def released(self, release: str, dead_after: float, *, using: str) -> None:
        """Mark the first start of a consumer of a release. Call it in a transaction.

        ``dead_after`` is the number of seconds without a heartbeat after which a process is dead.
        """
        with connections[using].cursor() as cursor:
            # Of two processes that start together the second sees the first one's mark.
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended('pgqueue.mark', 0))")
            cursor.execute(_RELEASED, {"release": release, "dead_after": dead_after})

    def since(self, first: dt.datetime, *, using: str) -> list[Mark]:
        """Return the marks from a time on, the oldest first."""
        return list(self.using(using).filter(at__gte=first).order_by("-at", "-pk")[:MOST])[::-1]


class Mark(models.Model):
    """Something that happened at a time: a deploy, a change of the configuration.

    ``manage.py pgqueue_mark`` sets one. The first consumer of a release (``PGQUEUE_RELEASE``) sets
    one, too, with ``is_release``.
    """

    id: columns.BigAutoKey = models.BigAutoField(primary_key=True)
    text: columns.Text = models.TextField()
    at: columns.Time = models.DateTimeField(db_default=columns.NOW)
    is_release: columns.Boolean = models.BooleanField(default=False)

    objects: ClassVar[MarkManager] = MarkManager()

    class Meta(columns.Meta):
        db_table = "pgqueue_mark"
        indexes: ClassVar[tuple[models.Index, ...]] = (
            models.Index(fields=["at"], name="pgqueue_mark_at"),
        )

    def __str__(self) -> str:
        return self.text
