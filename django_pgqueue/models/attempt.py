"""The errors of each attempt: why a handler's run failed, when, and in which process."""

from __future__ import annotations

import datetime as dt
from typing import ClassVar

from django.db import models

from django_pgqueue import arguments
from django_pgqueue.engine.session import OpenQueue
from django_pgqueue.engine.settle.attempts import prune
from django_pgqueue.models.clock import NOW
from django_pgqueue.models.queue import Queue
from django_pgqueue.types import Maintained

__all__ = ["Attempt", "attempts", "prune_maintained"]


def attempts(queue: OpenQueue, message_id: int) -> list[Attempt]:
    """The failed attempts of a message, oldest first: when, where and why.

    >>> [attempt.error_class for attempt in queue("orders").attempts(7)]
    ['builtins.ConnectionError']
    """
    [pk] = arguments.ids([message_id])
    return Attempt.objects.of(pk, using=queue.alias)


def prune_maintained(queue: Queue, maintained: Maintained, **kwargs: object) -> None:
    """Receives ``queue_maintained``: what retention removed has no attempts any more."""
    prune(queue.opened, maintained.before)


class AttemptManager(models.Manager["Attempt"]):
    use_in_migrations = False

    def of(self, message_id: int, *, using: str) -> list[Attempt]:
        """The failed attempts of a message that are kept, the oldest first."""
        return list(self.using(using).filter(message_id=message_id).order_by("pk"))


class Attempt(models.Model):
    """One run of a handler that failed.

    Of each message the last ``PGQUEUE["ATTEMPTS_KEPT"]`` are kept, as long as the message is.
    A message that was dead-lettered keeps those of the queue that it came from.

    >>> [attempt.error_class for attempt in queue("orders").attempts(7)]
    ['requests.exceptions.ConnectTimeout', 'shop.errors.CardRefused']
    """

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    message_id: models.BigIntegerField[int, int] = models.BigIntegerField()
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.CASCADE, db_constraint=False, db_index=False, related_name="attempts"
    )
    attempt: models.IntegerField[int, int] = models.IntegerField(
        help_text="Which run of the handler it was, from 1."
    )
    at: models.DateTimeField[dt.datetime, dt.datetime] = models.DateTimeField(db_default=NOW)
    process_id: models.IntegerField[int | None, int | None] = models.IntegerField(
        null=True, help_text="The consumer process, if one ran it."
    )
    error_class: models.TextField[str, str] = models.TextField()
    message: models.TextField[str, str] = models.TextField()
    traceback: models.TextField[str, str] = models.TextField()

    objects: ClassVar[AttemptManager] = AttemptManager()

    class Meta:
        db_table = "pgqueue_attempt"
        required_db_vendor = "postgresql"
        # No page of the admin shows them by themselves.
        default_permissions: ClassVar[tuple[str, ...]] = ()
        indexes: ClassVar[tuple[models.Index, ...]] = (
            models.Index(fields=["message_id"], name="pgqueue_attempt_message"),
            models.Index(fields=["queue", "at", "id"], name="pgqueue_attempt_at"),
        )

    def __str__(self) -> str:
        return f"attempt {self.attempt} of message {self.message_id}"
