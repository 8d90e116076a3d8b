"""The archive: one row for each finished message, with its outcome."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.utils.translation import gettext_lazy

from django_pgqueue.errors import ImmutableMessage
from django_pgqueue.queues.message import Message
from django_pgqueue.tables import columns
from django_pgqueue.tables.loading import OncePerQueue
from django_pgqueue.tables.queue import Queue
from django_pgqueue.types import end_choices


class ArchivedMessage(OncePerQueue, models.Model):
    """The outcome of one message. Only the column ``failure`` changes after the insert.

    ``id`` is the message's id. The body is in the message: ``archived.message.body``.
    """

    id: columns.BigInteger = models.BigIntegerField(primary_key=True)
    enqueued_at: columns.Time = models.DateTimeField()
    first_read_at: columns.TimeOrNull = models.DateTimeField(null=True)
    last_read_at: columns.TimeOrNull = models.DateTimeField(null=True)
    archived_at: columns.Time = models.DateTimeField(db_default=columns.NOW)
    # Exports select rows by transaction id. By id or time they would miss rows, since neither
    # follows the order of commits.
    archive_xid: columns.BigInteger = models.BigIntegerField(db_default=columns.XID)
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.DO_NOTHING, db_constraint=False, db_index=False, related_name="archive"
    )
    read_ct: columns.Integer = models.IntegerField()
    attempts: columns.Integer = models.IntegerField()
    state: columns.Text = models.TextField(choices=end_choices)
    error: columns.TextOrNull = models.TextField(null=True)  # noqa: DJ001
    result: columns.JSON = models.JSONField(null=True)

    class Meta(columns.Meta):
        verbose_name: ClassVar[Any] = gettext_lazy("archived message")
        verbose_name_plural: ClassVar[Any] = gettext_lazy("archived messages")
        permissions: ClassVar[tuple[tuple[str, str], ...]] = (
            ("replay_archivedmessage", "Can send archived messages again"),
        )
        db_table = "pgqueue_archive"

    def __str__(self) -> str:
        return f"archived message {self.pk}"

    @property
    def message(self) -> Message:
        """The message with its body and headers."""
        return Message.objects.using(self._state.db).get(
            pk=self.pk, queue_id=self.queue_id, enqueued_at=self.enqueued_at
        )

    @property
    def body(self) -> object:
        return self.message.body

    @property
    def headers(self) -> object:
        return self.message.headers

    def save(self, *args: object, **kwargs: object) -> None:
        raise ImmutableMessage
