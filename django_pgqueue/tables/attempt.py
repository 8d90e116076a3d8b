"""The model of failed attempts to handle a message."""

from __future__ import annotations

from typing import ClassVar

from django.db import connections, models

from django_pgqueue.tables import columns
from django_pgqueue.tables.queue import Queue

# The subscription from which a dead letter came, and the id that it had there.
_ORIGIN = """
SELECT q.id, m.headers #> '{x-dead-letter,id}'
FROM pgqueue_message m JOIN pgqueue_queue q ON q.id = m.source_id AND q.source_id IS NOT NULL
WHERE m.queue_id = %s AND m.id = %s
"""


class AttemptManager(models.Manager["Attempt"]):
    def of(self, message_id: int, queue: Queue | None = None, *, using: str) -> list[Attempt]:
        """Return the stored failed attempts of a message, the oldest first.

        A dead letter keeps those of the queue from which it came. A subscription's attempts are its
        own, since its messages have the ids of its source's: they are left out for another queue.
        """
        found = self.using(using).filter(message_id=message_id).order_by("pk")
        if queue is not None and queue.source_id is not None:
            return list(found.filter(queue=queue))
        attempts = list(found.filter(queue__source=None))
        if queue is not None and not attempts:
            with connections[using].cursor() as cursor:
                cursor.execute(_ORIGIN, [queue.pk, message_id])
                for reader, origin in cursor.fetchall():
                    rows = self.using(using).filter(queue_id=reader, message_id=int(origin))
                    attempts += rows.order_by("pk")
        return attempts


class Attempt(models.Model):
    """A failed run of a handler: its error, its time and its process.

    The newest ``PGQUEUE["ATTEMPTS_KEPT"]`` attempts are kept for each message, and the newest
    ``PGQUEUE["ATTEMPTS_PER_QUEUE"]`` for each queue. They are deleted with their message. A message
    keeps its attempts when it is moved to a dead-letter queue. See :meth:`BoundQueue.attempts`.
    """

    id: columns.BigAutoKey = models.BigAutoField(primary_key=True)
    message_id: columns.BigInteger = models.BigIntegerField()
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.CASCADE, db_constraint=False, db_index=False, related_name="attempts"
    )
    attempt: columns.Integer = models.IntegerField(
        help_text="The number of the handler's run, from 1."
    )
    at: columns.Time = models.DateTimeField(db_default=columns.NOW)
    process_id: columns.IntegerOrNull = models.IntegerField(
        null=True, help_text="The consumer process that ran it, if any."
    )
    error_class: columns.Text = models.TextField()
    message: columns.Text = models.TextField()
    traceback: columns.Text = models.TextField()

    objects: ClassVar[AttemptManager] = AttemptManager()

    class Meta(columns.Meta):
        db_table = "pgqueue_attempt"
        indexes: ClassVar[tuple[models.Index, ...]] = (
            models.Index(fields=["message_id"], name="pgqueue_attempt_message"),
            models.Index(fields=["queue", "at", "id"], name="pgqueue_attempt_at"),
        )

    def __str__(self) -> str:
        return f"attempt {self.attempt} of message {self.message_id}"
