"""The models of steps, notes, waits and signals."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

from django_pgqueue.tables import columns
from django_pgqueue.tables.queue import Queue

__all__ = ["Note", "PendingWait", "SentSignal", "Step"]


class Step(models.Model):
    """A step that a handler has done, with its value. See :meth:`Message.step`.

    It is deleted after its message. A message keeps its steps in a dead-letter queue.
    """

    pk: Any = models.CompositePrimaryKey("queue", "message_id", "name")
    message_id: columns.BigInteger = models.BigIntegerField()
    at: columns.Time = models.DateTimeField(db_default=columns.NOW)
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.CASCADE, db_constraint=False, db_index=False, related_name="steps"
    )
    name: columns.Text = models.TextField()
    value: columns.JSON = models.JSONField(null=True)

    class Meta(columns.Meta):
        db_table = "pgqueue_step"

    def __str__(self) -> str:
        return f"step {self.name} of message {self.message_id}"


class Note(models.Model):
    """What a handler has noted last about its message. See :meth:`Message.note`."""

    pk: Any = models.CompositePrimaryKey("queue", "message_id")
    message_id: columns.BigInteger = models.BigIntegerField()
    at: columns.Time = models.DateTimeField(db_default=columns.NOW)
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.CASCADE, db_constraint=False, db_index=False, related_name="notes"
    )
    value: columns.JSON = models.JSONField(null=True)

    class Meta(columns.Meta):
        db_table = "pgqueue_note"

    def __str__(self) -> str:
        return f"note of message {self.message_id}"


class PendingWait(models.Model):
    """A message that waits for a signal, or for a time. See :meth:`Message.wait_for`.

    A signal, or the handler after the deadline, replaces it by a step with the outcome.
    """

    pk: Any = models.CompositePrimaryKey("queue", "message_id", "name")
    message_id: columns.BigInteger = models.BigIntegerField()
    until: columns.Time = models.DateTimeField(
        help_text="When the handler goes on without a signal."
    )
    at: columns.Time = models.DateTimeField(db_default=columns.NOW)
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.CASCADE, db_constraint=False, db_index=False, related_name="waits"
    )
    name: columns.Text = models.TextField(
        help_text="The name of the step that the outcome becomes."
    )
    key: columns.TextOrNull = models.TextField(null=True)  # noqa: DJ001

    class Meta(columns.Meta):
        db_table = "pgqueue_wait"
        indexes: ClassVar[tuple[models.Index, ...]] = (
            models.Index(
                fields=["key"], condition=models.Q(key__isnull=False), name="pgqueue_wait_key"
            ),
        )

    def __str__(self) -> str:
        return f"wait of message {self.message_id}"


class SentSignal(models.Model):
    """A signal that was sent, kept for waits that begin later; or, not sent, one that is awaited.

    Whoever sends a signal or waits for one locks its row, so one of the two sees the other.
    """

    key: columns.Text = models.TextField(primary_key=True)
    at: columns.Time = models.DateTimeField(db_default=columns.NOW)
    sent_at: columns.TimeOrNull = models.DateTimeField(null=True)
    keep_until: columns.TimeOrNull = models.DateTimeField(null=True)
    value: columns.JSON = models.JSONField(null=True)

    class Meta(columns.Meta):
        db_table = "pgqueue_signal"
        indexes: ClassVar[tuple[models.Index, ...]] = (
            models.Index(fields=["keep_until"], name="pgqueue_signal_keep_until"),
        )

    def __str__(self) -> str:
        return f"signal {self.key}"
