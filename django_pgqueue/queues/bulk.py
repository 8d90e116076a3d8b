"""Bulk actions: actions on many messages of a queue, done in steps by any process.

A bulk action stores its message ids, in parts, when it starts, so later messages are not touched. A
step is one transaction: it acts on ids of one part, removes these ids and updates the counts. If
its process is killed, the transaction rolls back and another process repeats the step.

After a ``statement_timeout``, a lock timeout or a lost connection the step is tried again with half
of its messages. After each success the step size grows. Any other error fails the bulk action.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from django.db import DatabaseError, Error, connections, models, transaction
from django.utils.timezone import now
from django.utils.translation import gettext, gettext_lazy

from django_pgqueue import signals
from django_pgqueue.acks import text_of
from django_pgqueue.database.home import HomeManager
from django_pgqueue.database.locks import KEPT, milliseconds, set_locally
from django_pgqueue.database.runner import runner
from django_pgqueue.engine.arguments import INT4
from django_pgqueue.engine.audit.entry import add, record, unrecorded
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.redrive import redriving
from django_pgqueue.engine.settle import settling
from django_pgqueue.engine.sqlstates import QUERY_CANCELED, SERIALIZATION_FAILURE, sqlstate
from django_pgqueue.errors import QueueNotFound
from django_pgqueue.maintenance.round import is_lost
from django_pgqueue.queues.archive import ArchivedMessage
from django_pgqueue.tables import columns
from django_pgqueue.tables.queue import Queue

_TABLE = "pgqueue_bulk_action"
#: Messages per part. A step with this many takes about a tenth of a second.
PART = 1000
#: Lock timeout of a step, in seconds.
_PATIENCE = 0.5
#: Seconds until a step is tried again, if another transaction holds a lock that it needs.
_PAUSE = 1.0
#: PostgreSQL's error codes for conflicts with other transactions.
_IN_THE_WAY = (*KEPT, SERIALIZATION_FAILURE)


class Kind(models.TextChoices):
    """The kinds of bulk actions."""

    READABLE = "readable", "Make readable"
    REDRIVE = "redrive", "Redrive"
    CANCEL = "cancel", "Cancel"
    DELETE = "delete", "Delete"
    PURGE = "purge", "Purge"
    REPLAY = "replay", "Send again"
    DISCARD = "discard", "Discard"

    @property
    def is_of_archive(self) -> bool:
        """Whether it acts on archived messages, rather than on messages in the queue."""
        return self in (Kind.REPLAY, Kind.DISCARD)


class BulkActionManager(HomeManager["BulkAction"]):
    """Starts bulk actions, and runs their steps."""

    def begin(
        self, queue: Queue, kind: Kind, ids: Sequence[int], values: Mapping[str, Any]
    ) -> BulkAction:
        """Store a bulk action on these messages of a queue. Its steps run later.

        ``ids`` are the message ids, ``values`` the values of further fields of BulkAction.
        """
        with transaction.atomic(using=queue.alias):
            bulk_action = self.using(queue.alias).create(
                queue=queue,
                queue_name=queue.name,
                kind=kind,
                count=len(ids),
                highest_id=max(ids, default=0),
                **values,
            )
            bulk_action.record()
            bulk_action.save(update_fields=["entry"])
            BulkActionPart.objects.using(queue.alias).bulk_create(
                BulkActionPart(bulk_action=bulk_action, ids=list(ids[first : first + PART]))
                for first in range(0, len(ids), PART)
            )
        return bulk_action

    def drive(
        self, seconds: float = 1.0, *, using: str, only: Iterable[int] | None = None
    ) -> float | None:
        """Run steps of the running bulk actions, in rotation, for about ``seconds`` seconds.

        Returns the seconds until the next step is due; None if there is none. Several processes
        may call it at the same time: a row lock lets only one of them act on a bulk action.
        ``only`` are the ids of the bulk actions to drive; None: all.

        Raises django.db.Error if a step was interrupted, for example by a lost connection, and any
        error that a step could not store. The error is raised after the other bulk actions have
        run. The next call repeats the step.
        """
        cut_off: Exception | None = None
        until = time.monotonic() + seconds
        rows = self.using(using).filter(state=BulkAction.RUNNING)
        if only is not None:
            rows = rows.filter(pk__in=list(only))
        due = dict.fromkeys(rows.order_by("pk").values_list("pk", flat=True), 0.0)
        while due:
            for pk, at in list(due.items()):
                if at > time.monotonic():
                    continue
                try:
                    wait = self._step(pk, using)
                except Exception as error:
                    cut_off, wait = error, None
                    if isinstance(error, Error):
                        self._slow_down(pk, using, error)
                if wait is None:
                    del due[pk]
                else:
                    due[pk] = time.monotonic() + wait
            first = min(due.values(), default=0.0)
            if max(first, time.monotonic()) >= until:
                break
            time.sleep(max(0.0, first - time.monotonic()))
        if cut_off is not None:
            raise cut_off
        return max(0.0, min(due.values()) - time.monotonic()) if due else None

    def abandon(self, queue: Queue, *, using: str) -> None:
        """Fail the unfinished bulk actions of a queue that is about to be dropped."""
        known = self.using(using).filter(queue_id=queue.pk)
        BulkActionPart.objects.using(using).filter(bulk_action__in=known).delete()
        known.filter(state__in=(BulkAction.RUNNING, BulkAction.STOPPED)).update(
            state=BulkAction.FAILED, error="The queue was dropped.", finished_at=columns.NOW
        )

    def _step(self, pk: int, using: str) -> float | None:
        """Run one step. Returns the seconds until the next step, or None if there is none."""
        try:
            with transaction.atomic(using=using):
                bulk_action = self._take(pk, using)
                return None if bulk_action is None else bulk_action.step()
        except DatabaseError as error:
            if sqlstate(error) not in KEPT:
                raise
            return _PAUSE  # the table of bulk actions is locked

    def _take(self, pk: int, using: str) -> BulkAction | None:
        """Lock and return a bulk action; None if it is not running, or another process has it."""
        with connections[using].cursor() as cursor:
            set_locally(cursor, lock_timeout=milliseconds(_PATIENCE))
        return (
            self.using(using)
            .select_for_update(skip_locked=True, of=("self",))
            .select_related("queue")
            .filter(pk=pk, state=BulkAction.RUNNING)
            .first()
        )

    def _slow_down(self, pk: int, using: str, error: Error) -> None:
        """Halve the step size: the server's or a pooler's timeout may have ended the last step."""
        with suppress(Error), transaction.atomic(using=using):
            bulk_action = self._take(pk, using)
            if bulk_action is not None:
                bulk_action.step_size = max(1, bulk_action.step_size // 2)
                bulk_action.error = f"A step was interrupted, and is tried again: {text_of(error)}"
                bulk_action.save(update_fields=["step_size", "error"])


class BulkAction(models.Model):
    """An action on many messages of one queue: its options, its user and its progress.

    The user has confirmed ``count`` messages with ids up to ``highest_id``; no others are touched.
    The row stays when its queue is dropped.
    """

    RUNNING, STOPPED, DONE, FAILED = "running", "stopped", "done", "failed"

    id: columns.BigAutoKey = models.BigAutoField(primary_key=True)
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.DO_NOTHING, db_constraint=False, related_name="bulk_actions"
    )
    kind: columns.Text = models.TextField(choices=Kind.choices)
    target: columns.Text = models.TextField(
        default="", help_text="The queue to send the messages to. Empty: their own."
    )
    rate: columns.FloatOrNull = models.FloatField(
        null=True, help_text="Maximum number of messages a second."
    )
    in_flight: columns.Boolean = models.BooleanField(
        default=False, help_text="Whether to act on leased messages, too."
    )
    question: columns.UUIDOrNull = models.UUIDField(
        null=True, help_text="The confirmation page. Its answer is accepted once."
    )
    filter: columns.JSON = models.JSONField(
        default=dict, help_text="The filter of the list from which it was started."
    )
    user_id: columns.Text = models.TextField(
        default="", help_text="The key of the user who started it."
    )
    username: columns.Text = models.TextField(default="")
    queue_name: columns.Text = models.TextField(
        default="", help_text="The queue's name, kept after the queue is dropped."
    )
    highest_id: columns.BigInteger = models.BigIntegerField()
    count: columns.Integer = models.IntegerField()
    done: columns.Integer = models.IntegerField(default=0)
    passed: columns.Integer = models.IntegerField(
        default=0, help_text="Number of messages that were skipped: gone by then, or in flight."
    )
    state: columns.Text = models.TextField(
        default=RUNNING, choices=[(s, s) for s in (RUNNING, STOPPED, DONE, FAILED)]
    )
    error: columns.Text = models.TextField(
        default="", help_text="Why it failed, or why it is waiting."
    )
    created_at: columns.Time = models.DateTimeField(db_default=columns.NOW)
    stepped_at: columns.TimeOrNull = models.DateTimeField(null=True)
    finished_at: columns.TimeOrNull = models.DateTimeField(null=True)
    step_size: columns.Integer = models.IntegerField(
        default=PART, help_text="Maximum number of messages in the next step."
    )
    entry: columns.BigIntegerOrNull = models.BigIntegerField(
        null=True, help_text="Its entry in the audit log."
    )
    #: The earliest time of the next step, if there is a rate.
    paced_until: columns.TimeOrNull = models.DateTimeField(null=True)

    objects: ClassVar[BulkActionManager] = BulkActionManager()

    class Meta(columns.Meta):
        verbose_name: ClassVar[Any] = gettext_lazy("bulk action")
        verbose_name_plural: ClassVar[Any] = gettext_lazy("bulk actions")
        default_permissions: ClassVar[tuple[str, ...]] = ("view",)
        db_table = _TABLE
        ordering: ClassVar[tuple[str, ...]] = ("-id",)
        indexes: ClassVar[tuple[models.Index, ...]] = (
            models.Index(
                fields=["id"],
                condition=models.Q(state="running"),
                name="pgqueue_bulk_action_running",
            ),
        )
        constraints: ClassVar[tuple[models.BaseConstraint, ...]] = (
            models.UniqueConstraint(
                fields=["question", "queue", "kind"], name="pgqueue_bulk_action_question"
            ),
            columns.one_of(_TABLE, Kind.values, "kind"),
            columns.one_of(_TABLE, ["running", "stopped", "done", "failed"], "state"),
            *columns.within(_TABLE, redriving.RATES, "rate"),
            *columns.within(_TABLE, (0, INT4), "count", "done", "passed"),
            *columns.within(_TABLE, (1, PART), "step_size"),
        )

    def __str__(self) -> str:
        return gettext("bulk action %s") % self.pk

    @property
    def left(self) -> int:
        """The number of messages that are not processed yet."""
        return int(self.count) - int(self.done) - int(self.passed)

    def stop(self) -> bool:
        """Stop after the current step. Returns False if it was not running."""
        return self._change("stop", (self.RUNNING,), state=self.STOPPED)

    def resume(self) -> bool:
        """Continue after a stop or a failure. Returns False if it cannot: its queue was dropped, or
        it was neither stopped nor failed."""
        queues = Queue.objects.using(self._state.db).values("pk")
        states, values = (self.STOPPED, self.FAILED), {"error": "", "finished_at": None}
        return self._change("resume", states, queues, state=self.RUNNING, **values)

    def _change(
        self, operation: str, states: Sequence[str], queues: Any = None, **values: Any
    ) -> bool:
        """Update the row if it is in one of these states, and record that."""
        alias = str(self._state.db)
        rows = type(self).objects.using(alias).filter(pk=self.pk, state__in=states)
        if queues is not None:
            rows = rows.filter(queue_id__in=queues)
        with transaction.atomic(using=alias):
            changed = bool(rows.update(**values))
            if changed:
                told = {"bulk_action": self.pk}
                record(runner(alias), operation, (self.queue_id, self.queue_name), told)
        return changed

    def step(self) -> float | None:
        """Act on the next part. Returns the seconds until the next step, None after the last step.

        The caller has locked this row. Raises django.db.Error if the connection is lost. Any other
        error is stored in ``error``.
        """
        alias = self.queue.alias
        parts = BulkActionPart.objects.using(alias).filter(bulk_action=self)
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
            # A savepoint, so that the row stays locked when the action rolls back.
            with transaction.atomic(using=alias):
                done = self.act(self.queue.opened, ids)
                # Make deferred constraints fail here, not at the commit.
                connections[alias].check_constraints()
        except Exception as error:
            if is_lost(alias):
                raise
            return self._undone(ids, error)
        if rest:
            parts.filter(pk=part.pk).update(ids=rest)
        else:
            part.delete()
        self.done += done
        self.passed += len(ids) - done
        self.stepped_at = at
        self.error = ""
        self.step_size = min(PART, self.step_size + self.step_size // 10 + 1)
        if not self.left:
            self._end()
            return None
        self.save()
        return 0.0

    def _undone(self, ids: Sequence[int], error: Exception) -> float | None:
        """Handle a failed step. Returns the seconds until a retry, or None if the action failed."""
        code = sqlstate(error)
        if len(ids) > 1 and code in (*_IN_THE_WAY, QUERY_CANCELED):
            self.step_size = len(ids) // 2
            self.save(update_fields=["step_size"])
            return 0.0
        if code in _IN_THE_WAY:
            self.error = (
                f"Another transaction has locked message {ids[0]}. The step is tried again until "
                f"that transaction ends; see pg_stat_activity. PostgreSQL says: {text_of(error)}"
            )
            self.save(update_fields=["error"])
            return _PAUSE
        self.error = text_of(error)
        if code == QUERY_CANCELED:
            self.error = (
                f"A step with message {ids[0]} alone took too long: give the database role a "
                f"longer statement_timeout, then resume. PostgreSQL says: {text_of(error)}"
            )
        self._end(self.FAILED)
        return None

    def act(self, queue: OpenQueue, ids: Sequence[int]) -> int:
        """Perform the action on these messages, and record it. Returns how many were changed."""
        with unrecorded():
            done = self._act(queue, ids)
        if done and self.entry is not None:
            add(queue.runner, self.entry, done)
        return done

    def record(self) -> None:
        """Write the entry in the audit log. Steps add to its count."""
        given: dict[str, Any] = {"bulk_action": self.pk, "messages": self.count}
        if self.target:
            given["to"] = self.target
        if self.rate is not None:
            given["rate"] = self.rate
        if self.filter:
            given["filter"] = self.filter
        self.entry = record(
            self.queue.opened.runner,
            str(self.kind),
            (self.queue_id, self.queue_name),
            given,
            0,
            ended=False,
        )

    def _act(self, queue: OpenQueue, ids: Sequence[int]) -> int:
        match Kind(self.kind):
            case Kind.REDRIVE:
                return self._send(redriving.redrive, queue, ids)
            case Kind.REPLAY:
                return self._send(redriving.replay, queue, ids)
            case Kind.READABLE:
                return len(settling.set_vt(queue, ids, 0, in_flight=self.in_flight))
            case Kind.CANCEL:
                reason = f"cancelled by {self.username or 'hand'}"
                return len(settling.cancel(queue, ids, reason=reason, in_flight=self.in_flight))
            case Kind.DELETE | Kind.PURGE:
                return len(settling.delete(queue, ids, in_flight=self.in_flight))
            case Kind.DISCARD:
                # Pass only archived messages: settling.erase() would also delete queued ones.
                archive = ArchivedMessage.objects.using(queue.alias).filter(queue_id=queue.id)
                archived = archive.filter(pk__in=ids).values_list("pk", flat=True)
                return len(settling.erase(queue, list(archived)))

    def _send(self, send: Callable[..., int], queue: OpenQueue, ids: Sequence[int]) -> int:
        """Call redrive or replay. Returns the number sent, even if a source queue is missing."""
        sent = [0]
        try:
            send(queue, to=self.target or None, ids=ids, progress=partial(sent.__setitem__, 0))
        except QueueNotFound:
            if self.target:
                raise
        return sent[0]

    def _allowed(self, at: dt.datetime) -> int:
        """Return how many messages the rate allows in this step. Sets ``paced_until``."""
        most = min(PART, self.step_size)
        if self.rate is None:
            return most
        # Steps of 0.1 s keep the rate even. After a pause, at most one second's worth is caught up.
        allowed = max(1, min(most, int(self.rate / 10)))
        since = max(self.paced_until or at, at - dt.timedelta(seconds=1))
        self.paced_until = since + dt.timedelta(seconds=allowed / self.rate)
        return allowed

    def _end(self, state: str = DONE) -> None:
        self.state, self.finished_at = state, now()
        if state == self.DONE and self.entry is not None:
            add(self.queue.opened.runner, self.entry, 0, ended=True)
        self.save()
        signals.bulk_action_ended.send_robust(type(self), bulk_action=self)


class BulkActionPart(models.Model):
    """Up to ``PART`` message ids that are not processed yet. Steps remove the ids they process."""

    id: columns.BigAutoKey = models.BigAutoField(primary_key=True)
    bulk_action: models.ForeignKey[BulkAction, BulkAction] = models.ForeignKey(
        BulkAction, models.CASCADE, related_name="parts"
    )
    ids: columns.JSON = models.JSONField()

    class Meta(columns.Meta):
        db_table = "pgqueue_bulk_action_part"
        constraints: ClassVar[tuple[models.BaseConstraint, ...]] = (
            *columns.listing("pgqueue_bulk_action_part", "number", "ids"),
        )

    def __str__(self) -> str:
        return f"part of bulk action {self.bulk_action_id}"
