"""The consumer process that looks after leaves and retention, one at a time in a database."""

from __future__ import annotations

import os
import socket
from uuid import UUID

from django.db import connections, models

__all__ = ["Caretaker"]


_now = models.Func(function="statement_timestamp", output_field=models.DateTimeField())


class CaretakerManager(models.Manager["Caretaker"]):
    """Takes the duty, holds it and leaves it.

    It is a lease and not a lock, so that it works through any pooler, and ends when its holder
    falls silent.
    """

    use_in_migrations = False

    def hold(self, token: UUID, seconds: float, *, using: str) -> bool:
        """Have the duty for so many seconds from now; False when somebody else has it.

        Again and again by the same token to keep it.
        """
        with connections[using].cursor() as cursor:
            cursor.execute(
                "INSERT INTO pgqueue_caretaker AS c (id, token, process, until) "
                "VALUES (1, %(token)s, %(process)s, "
                "statement_timestamp() + make_interval(secs => %(seconds)s)) "
                "ON CONFLICT (id) DO UPDATE "
                "SET token = excluded.token, process = excluded.process, until = excluded.until, "
                "since = CASE c.token WHEN excluded.token THEN c.since ELSE excluded.since END "
                "WHERE c.token = excluded.token OR c.until <= statement_timestamp()",
                {
                    "token": token,
                    "process": f"{socket.gethostname()}:{os.getpid()}",
                    "seconds": seconds,
                },
            )
            return bool(cursor.rowcount)

    def leave(self, token: UUID, *, using: str) -> None:
        """Let others have the duty at once."""
        self.using(using).filter(token=token).update(until=_now)


class Caretaker(models.Model):
    """Who has the duty, since when, and until when if it falls silent: one row."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    token = models.UUIDField()
    process = models.TextField()
    since = models.DateTimeField(db_default=_now)
    until = models.DateTimeField()

    objects = CaretakerManager()

    class Meta:
        db_table = "pgqueue_caretaker"
        required_db_vendor = "postgresql"

    def __str__(self) -> str:
        return self.process
