"""The errors of each attempt: why a handler's run failed, when, and in which process."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from typing import Any

from django.db import connections, models

from django_pgqueue.acks import Failure
from django_pgqueue.conf import settings
from django_pgqueue.models.queue import Queue
from django_pgqueue.types import Upkeep

__all__ = ["Attempt", "masked"]

_MASK = "********"
#: Rows of one statement that prunes.
_BATCH = 1000

_TRIM = """
DELETE FROM pgqueue_attempt WHERE id IN (
    SELECT id FROM (
        SELECT id, row_number() OVER (PARTITION BY message_id ORDER BY id DESC) AS place
        FROM pgqueue_attempt WHERE message_id = ANY(%(ids)s::bigint[])) numbered
    WHERE place > %(kept)s)
"""

# In the order of an index, a page at a time: the statement stays short however many there are.
_PRUNE = """
WITH looked AS MATERIALIZED (
    SELECT id, message_id, at FROM pgqueue_attempt
    WHERE queue_id = %(queue_id)s AND at < coalesce(%(before)s, statement_timestamp())
      AND (at, id) > (%(at)s::timestamptz, %(id)s::bigint)
    ORDER BY at, id LIMIT %(batch)s
),
gone AS (
    DELETE FROM pgqueue_attempt WHERE id = ANY(ARRAY(
        SELECT id FROM looked l
        WHERE NOT EXISTS (SELECT FROM pgqueue_message m WHERE m.id = l.message_id)))
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM looked), l.at, l.id
FROM looked l ORDER BY l.at DESC, l.id DESC LIMIT 1
"""


def masked(text: str) -> str:
    """The text without what ``PGQUEUE["MASK"]`` matches: secrets do not belong in an archive."""
    for pattern in settings.MASK:
        text = re.sub(pattern, _MASK, text)
    return text


class AttemptManager(models.Manager["Attempt"]):
    """Notes failed attempts, and removes those of messages that are gone."""

    use_in_migrations = False

    def note(
        self, queue: Queue, failures: Iterable[tuple[int, Failure]], process_id: int | None
    ) -> None:
        """Keep why these messages, by their ids, failed; of each the last attempts only."""
        length = settings.TRACEBACK_LENGTH
        rows = [
            Attempt(
                message_id=message_id,
                queue_id=queue.pk,
                attempt=failure.attempt,
                process_id=process_id,
                error_class=failure.error_class,
                message=masked(failure.message)[:length],
                # The end tells most: there is the exception, and where it was raised.
                traceback=masked(failure.traceback)[-length:],
            )
            for message_id, failure in failures
        ]
        if not rows or settings.ATTEMPTS_KEPT < 1:
            return
        self.using(queue.alias).bulk_create(rows)
        with connections[queue.alias].cursor() as cursor:
            ids = [row.message_id for row in rows]
            cursor.execute(_TRIM, {"ids": ids, "kept": settings.ATTEMPTS_KEPT})

    def of(self, message_id: int, *, using: str) -> list[Attempt]:
        """The failed attempts of a message that are kept, the oldest first."""
        return list(self.using(using).filter(message_id=message_id).order_by("pk"))

    def on_maintained(self, queue: Queue, upkeep: Upkeep, **kwargs: object) -> None:
        """Receives ``queue_maintained``: what retention removed has no attempts any more."""
        self.prune(queue, upkeep.before)

    def prune(self, queue: Queue, before: dt.datetime | None = None) -> int:
        """Remove those of messages that are gone; how many went.

        ``before`` leaves out what is newer: its messages are still there.
        """
        removed = 0
        after: dict[str, Any] = {"at": "-infinity", "id": 0}
        looked = _BATCH
        while looked == _BATCH:
            params: dict[str, Any] = {
                "queue_id": queue.pk,
                "before": before,
                "batch": _BATCH,
                **after,
            }
            with connections[queue.alias].cursor() as cursor:
                cursor.execute(_PRUNE, params)
                row = cursor.fetchone()
            if row is None:
                break
            gone, looked, at, last = row
            removed += gone
            after = {"at": at, "id": last}
        return removed


class Attempt(models.Model):
    """One run of a handler that failed.

    Of each message the last ``PGQUEUE["ATTEMPTS_KEPT"]`` are kept, as long as the message is.
    A message that was dead-lettered keeps those of the queue that it came from.

    >>> [attempt.error_class for attempt in queue("orders").attempts(7)]
    ['requests.exceptions.ConnectTimeout', 'shop.errors.CardRefused']
    """

    id = models.BigAutoField(primary_key=True)
    message_id = models.BigIntegerField()
    queue = models.ForeignKey(
        Queue, models.CASCADE, db_constraint=False, db_index=False, related_name="attempts"
    )
    attempt = models.IntegerField(help_text="Which run of the handler it was, from 1.")
    at = models.DateTimeField(
        db_default=models.Func(function="statement_timestamp", output_field=models.DateTimeField())
    )
    process_id = models.IntegerField(null=True, help_text="The consumer process, if one ran it.")
    error_class = models.TextField()
    message = models.TextField()
    traceback = models.TextField()

    objects = AttemptManager()

    class Meta:
        db_table = "pgqueue_attempt"
        required_db_vendor = "postgresql"
        indexes = (
            models.Index(fields=["message_id"], name="pgqueue_attempt_message"),
            models.Index(fields=["queue", "at", "id"], name="pgqueue_attempt_at"),
        )

    def __str__(self) -> str:
        return f"attempt {self.attempt} of message {self.message_id}"
