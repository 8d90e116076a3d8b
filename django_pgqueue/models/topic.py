"""Topic bindings: the queues that get messages with a matching key."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from django_pgqueue.models import columns
from django_pgqueue.models.queue import Queue
from django_pgqueue.validators import validate_topic_pattern

__all__ = ["Binding"]


class Binding(models.Model):
    """A topic pattern bound to a queue, which gets the messages published with a matching key."""

    id: columns.BigAutoKey = models.BigAutoField(primary_key=True)
    pattern: columns.Char = models.CharField(
        max_length=255,
        validators=[validate_topic_pattern],
        help_text="Words joined by dots; * stands for one word, # for any number of them.",
    )
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.CASCADE, related_name="bindings"
    )
    bound_at: columns.Time = models.DateTimeField(db_default=columns.NOW, editable=False)

    class Meta:
        default_permissions: ClassVar[tuple[str, ...]] = ()
        db_table = "pgqueue_binding"
        ordering: ClassVar[tuple[str, ...]] = ("pattern", "queue")
        required_db_vendor = "postgresql"
        constraints: ClassVar[tuple[models.BaseConstraint, ...]] = (
            models.UniqueConstraint(fields=("pattern", "queue"), name="pgqueue_binding_unique"),
        )

    def __str__(self) -> str:
        return self.pattern
