"""Which queues get what is published under which keys."""

from __future__ import annotations

from django.db import models

from django_pgqueue.models.clock import NOW
from django_pgqueue.models.queue import Queue
from django_pgqueue.topics import validate_topic_pattern

__all__ = ["Binding"]


class Binding(models.Model):
    """A pattern bound to a queue: what is published under a matching key goes there."""

    id = models.BigAutoField(primary_key=True)
    pattern = models.CharField(
        max_length=255,
        validators=[validate_topic_pattern],
        help_text="Words joined by dots; * stands for one word, # for any number of them.",
    )
    queue = models.ForeignKey(Queue, models.CASCADE, related_name="bindings")
    bound_at = models.DateTimeField(
        db_default=NOW,
        editable=False,
    )

    class Meta:
        default_permissions = ()
        db_table = "pgqueue_binding"
        ordering = ("pattern", "queue")
        required_db_vendor = "postgresql"
        constraints = (
            models.UniqueConstraint(fields=("pattern", "queue"), name="pgqueue_binding_unique"),
        )

    def __str__(self) -> str:
        return self.pattern
