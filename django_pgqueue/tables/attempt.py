"""The model of failed attempts to handle a message."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from django_pgqueue.tables import columns
from django_pgqueue.tables.queue import Queue


class AttemptManager(models.Manager["Attempt"]):
    def of(self, message_id: int, *, using: str) -> list[Attempt]:
        """Return the stored failed attempts of a message, the oldest first."""
        return list(self.using(using).filter(message_id=message_id).order_by("pk"))


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
