"""Operations on many messages: a row each, done in steps by whichever process comes by.

The ids are fixed when an operation is begun, a part a step; so it never touches more than was
asked about. A step is one transaction: it acts on a part, removes it and counts. A process that is
killed in the midst leaves the part to the next one, and no message is touched twice.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from django.db import DatabaseError, connections, models, transaction
from django.utils.timezone import now
from django.utils.translation import gettext, gettext_lazy

from django_pgqueue import signals
from django_pgqueue.ddl.locks import KEPT, milliseconds, set_locally
from django_pgqueue.engine.redrive import redriving
from django_pgqueue.engine.session import OpenQueue
from django_pgqueue.engine.settle import settling
from django_pgqueue.errors import PgQueueError, QueueNotFound
from django_pgqueue.models.archive import ArchivedMessage
from django_pgqueue.models.clock import NOW
from django_pgqueue.models.queue import Queue
from django_pgqueue.sqlstates import sqlstate

__all__ = ["Kind", "Operation", "OperationPart"]

#: Messages of a part: a step takes about a tenth of a second.
PART = 1000
#: Seconds that a step waits for messages that other transactions hold.
_PATIENCE = 0.5


class Kind(models.TextChoices):
    """The action."""

    READABLE = "readable", "Make readable"
    REDRIVE = "redrive", "Redrive"
    ARCHIVE = "archive", "Archive"
    DELETE = "delete", "Delete"
    PURGE = "purge", "Purge"
    REPLAY = "replay", "Send again"
    DISCARD = "discard", "Discard"

    @property
    def is_of_archive(self) -> bool:
        """Whether it takes archived messages; the others take those in a queue."""
        return self in (Kind.REPLAY, Kind.DISCARD)


class OperationManager(models.Manager["Operation"]):
    """Begins operations, and does their steps."""

    def begin(
        self, queue: Queue, kind: Kind, ids: Sequence[int], values: Mapping[str, Any]
    ) -> Operation:
        """An operation on these messages of a queue, to be done in steps.

        ``values`` are of the other fields.
        """
        with transaction.atomic(using=queue.alias):
            operation = self.using(queue.alias).create(
                queue=queue,
                kind=kind,
                count=len(ids),
                highest_id=max(ids, default=0),
                **values,
            )
            OperationPart.objects.using(queue.alias).bulk_create(
                OperationPart(operation=operation, ids=list(ids[first : first + PART]))
                for first in range(0, len(ids), PART)
            )
        return operation

    def drive(self, seconds: float = 1.0, *, using: str, only: int | None = None) -> float | None:
        """Do steps of the operations that run, in turn, for about that many seconds.

        Returns in how many seconds there is more to do, None if there is none. Several processes
        may call it at once: each operation is in the hands of one of them at a time.
        """
        until = time.monotonic() + seconds
        rows = self.using(using).filter(state=Operation.RUNNING)
        if only is not None:
            rows = rows.filter(pk=only)
        waits = dict.fromkeys(rows.order_by("pk").values_list("pk", flat=True), 0.0)
        while waits:
            for pk in list(waits):
                wait = self._step(pk, using)
                if wait is None:
                    del waits[pk]
                else:
                    waits[pk] = wait
            pause = min(waits.values(), default=0.0)
            if time.monotonic() + pause >= until:
                break
            time.sleep(pause)
        return min(waits.values(), default=None)

    def _step(self, pk: int, using: str) -> float | None:
        """One step; the seconds until the next one, None for no more."""
        try:
            with transaction.atomic(using=using):
                with connections[using].cursor() as cursor:
                    set_locally(cursor, lock_timeout=milliseconds(_PATIENCE))
                operation = (
                    self.using(using)
                    .select_for_update(skip_locked=True, of=("self",))
                    .select_related("queue")
                    .filter(pk=pk, state=Operation.RUNNING)
                    .first()
                )
                # None: ended, stopped, or in the hands of another process.
                return None if operation is None else operation.step()
        except DatabaseError as error:
            if sqlstate(error) not in KEPT:
                raise
            return 1.0  # others work on these messages


class Operation(models.Model):
    """An action on many messages of one queue: who asked for what, and how far it is.

    ``count`` and ``highest_id`` are those of the question: nothing beyond them is touched.
    """

    RUNNING, STOPPED, DONE, FAILED = "running", "stopped", "done", "failed"

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.CASCADE, db_constraint=False, related_name="operations"
    )
    kind: models.TextField[str, str] = models.TextField(choices=Kind.choices)
    target: models.TextField[str, str] = models.TextField(
        default="", help_text="The queue to send them to, if not their own."
    )
    rate: models.FloatField[float | None, float | None] = models.FloatField(
        null=True, help_text="The most messages a second."
    )
    in_flight: models.BooleanField[bool, bool] = models.BooleanField(
        default=False, help_text="Also those that a consumer holds."
    )
    filter: models.JSONField[Any, Any] = models.JSONField(
        default=dict, help_text="The list that it was asked for."
    )
    user_id: models.TextField[str, str] = models.TextField(
        default="", help_text="The key of the user who asked for it."
    )
    username: models.TextField[str, str] = models.TextField(default="")
    highest_id: models.BigIntegerField[int, int] = models.BigIntegerField()
    count: models.IntegerField[int, int] = models.IntegerField()
    done: models.IntegerField[int, int] = models.IntegerField(default=0)
    passed: models.IntegerField[int, int] = models.IntegerField(
        default=0, help_text="Left alone: gone meanwhile, or in flight."
    )
    state: models.TextField[str, str] = models.TextField(
        default=RUNNING, choices=[(s, s) for s in (RUNNING, STOPPED, DONE, FAILED)]
    )
    error: models.TextField[str, str] = models.TextField(default="")
    created_at: models.DateTimeField[dt.datetime, dt.datetime] = models.DateTimeField(
        db_default=NOW
    )
    stepped_at: models.DateTimeField[dt.datetime | None, dt.datetime | None] = models.DateTimeField(
        null=True
    )
    finished_at: models.DateTimeField[dt.datetime | None, dt.datetime | None] = (
        models.DateTimeField(null=True)
    )
    #: Until when the rate is used up.
    paced_until: models.DateTimeField[dt.datetime | None, dt.datetime | None] = (
        models.DateTimeField(null=True)
    )

    objects: ClassVar[OperationManager] = OperationManager()

    class Meta:
        verbose_name: ClassVar[Any] = gettext_lazy("operation")
        verbose_name_plural: ClassVar[Any] = gettext_lazy("operations")
        default_permissions: ClassVar[tuple[str, ...]] = ("view",)
        db_table = "pgqueue_operation"
        ordering: ClassVar[tuple[str, ...]] = ("-id",)
        required_db_vendor = "postgresql"
        indexes: ClassVar[tuple[models.Index, ...]] = (
            models.Index(
                fields=["id"],
                condition=models.Q(state="running"),
                name="pgqueue_operation_running",
            ),
        )

    def __str__(self) -> str:
        return gettext("operation %s") % self.pk

    @property
    def left(self) -> int:
        """How many messages it has yet to come to."""
        return int(self.count) - int(self.done) - int(self.passed)

    def stop(self) -> bool:
        """Let it rest after the step that runs; False when it does not run."""
        return self._switch(self.RUNNING, self.STOPPED)

    def resume(self) -> bool:
        """Go on where it was stopped; False when it was not."""
        return self._switch(self.STOPPED, self.RUNNING)

    def _switch(self, before: str, after: str) -> bool:
        rows = type(self).objects.using(self._state.db).filter(pk=self.pk, state=before)
        return bool(rows.update(state=after))

    def step(self) -> float | None:
        """Act on the next part, with this row locked; the seconds until the next step."""
        parts = OperationPart.objects.using(self._state.db).filter(operation=self)
        part = parts.order_by("pk").first()
        if part is None:
            self._end()
            return None
        at = now()
        if self.paced_until is not None and at < self.paced_until:
            return float((self.paced_until - at).total_seconds())
        allowed = self._allowed(at)
        ids, rest = part.ids[:allowed], part.ids[allowed:]
        try:
            done = self.act(self.queue.opened, ids)
        except PgQueueError as error:  # the queue to send them to is gone, for one
            self.error = str(error)
            self._end(self.FAILED)
            return None
        if rest:
            parts.filter(pk=part.pk).update(ids=rest)
        else:
            part.delete()
        self.done += done
        self.passed += len(ids) - done
        self.stepped_at = at
        if not self.left:
            self._end()
            return None
        self.save(update_fields=["done", "passed", "stepped_at", "paced_until"])
        return 0.0

    def act(self, queue: OpenQueue, ids: Sequence[int]) -> int:
        """Do it to these messages; returns how many there were to do."""
        return _ACTS[Kind(self.kind)](self, queue, ids)

    def _allowed(self, at: dt.datetime) -> int:
        """How many messages may go in this step; notes until when that uses the rate up."""
        if self.rate is None:
            return PART
        # A tenth of a second's worth. What a pause left unused is gone, but for a second.
        allowed = max(1, min(PART, int(self.rate / 10)))
        since = max(self.paced_until or at, at - dt.timedelta(seconds=1))
        self.paced_until = since + dt.timedelta(seconds=allowed / self.rate)
        return allowed

    def _end(self, state: str = DONE) -> None:
        self.state, self.finished_at = state, now()
        self.save()
        signals.operation_ended.send_robust(type(self), operation=self)


class OperationPart(models.Model):
    """The ids of one step, until it is done."""

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    operation: models.ForeignKey[Operation, Operation] = models.ForeignKey(
        Operation, models.CASCADE, related_name="parts"
    )
    ids: models.JSONField[Any, Any] = models.JSONField()

    class Meta:
        default_permissions: ClassVar[tuple[str, ...]] = ()
        db_table = "pgqueue_operation_part"
        required_db_vendor = "postgresql"

    def __str__(self) -> str:
        return f"part of operation {self.operation_id}"


def _readable(operation: Operation, queue: OpenQueue, ids: Sequence[int]) -> int:
    return len(settling.set_vt(queue, ids, 0, in_flight=operation.in_flight))


def _redriven(operation: Operation, queue: OpenQueue, ids: Sequence[int]) -> int:
    return _counted(redriving.redrive, operation, queue, ids)


def _archived(operation: Operation, queue: OpenQueue, ids: Sequence[int]) -> int:
    by = f"archived by hand, by {operation.username}" if operation.username else "archived by hand"
    return len(settling.cancel(queue, ids, reason=by, in_flight=operation.in_flight))


def _deleted(operation: Operation, queue: OpenQueue, ids: Sequence[int]) -> int:
    return len(settling.delete(queue, ids, in_flight=operation.in_flight))


def _sent_again(operation: Operation, queue: OpenQueue, ids: Sequence[int]) -> int:
    return _counted(redriving.replay, operation, queue, ids)


def _discarded(operation: Operation, queue: OpenQueue, ids: Sequence[int]) -> int:
    # Erasing takes live messages, too.
    archived = ArchivedMessage.objects.using(queue.alias).filter(queue_id=queue.id, pk__in=ids)
    return len(settling.erase(queue, list(archived.values_list("pk", flat=True))))


def _counted(
    act: Callable[..., int], operation: Operation, queue: OpenQueue, ids: Sequence[int]
) -> int:
    """Those that went, also when the queue that others came from is gone."""
    went = [0]
    try:
        act(queue, to=operation.target or None, ids=ids, progress=partial(went.__setitem__, 0))
    except QueueNotFound:
        if operation.target:
            raise
    return went[0]


_ACTS: dict[Kind, Callable[[Operation, OpenQueue, Sequence[int]], int]] = {
    Kind.READABLE: _readable,
    Kind.REDRIVE: _redriven,
    Kind.ARCHIVE: _archived,
    Kind.DELETE: _deleted,
    Kind.PURGE: _deleted,
    Kind.REPLAY: _sent_again,
    Kind.DISCARD: _discarded,
}
