"""Batches: messages of a queue, and a callback that is sent when all of them have ended."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar, NamedTuple

from django.db import DatabaseError, DataError, connections, models, transaction
from django.db.models.functions import Coalesce
from django.dispatch import Signal
from django.utils.translation import gettext, gettext_lazy

from django_pgqueue import signals
from django_pgqueue.acks import text_of
from django_pgqueue.database.home import HomeManager
from django_pgqueue.database.locks import milliseconds, settings_for
from django_pgqueue.database.runner import open_blocks, runner
from django_pgqueue.engine import arguments
from django_pgqueue.engine.audit.entry import record, unrecorded
from django_pgqueue.engine.settle import settling
from django_pgqueue.engine.sqlstates import LOCK_NOT_AVAILABLE, is_conflict, sqlstate
from django_pgqueue.errors import BatchSealed, InvalidArgument
from django_pgqueue.flows import batches
from django_pgqueue.flows.batches import HEADER, OUTCOMES
from django_pgqueue.queues.decorators import twin_of
from django_pgqueue.queues.message import Message
from django_pgqueue.queues.unsent import OPTIONS, UnsentMessage
from django_pgqueue.tables import columns
from django_pgqueue.tables.queue import Queue
from django_pgqueue.types import Sent, was_skipped

__all__ = ["Batch", "BatchManager", "BatchPart"]

_TABLE = "pgqueue_batch"
#: How long a batch stays open by default, if nothing seals it.
OPEN_FOR = dt.timedelta(days=1)
#: Members that a count looks at, of all its batches.
MOST = 4000
#: Batches that one transaction counts, and those that one look finds.
TOGETHER, LOOKED = 100, 1000
#: How often each open batch is looked at, if none of its messages has ended in a consumer.
_EVERY = dt.timedelta(seconds=8)
#: Seconds between two counts of a batch that has more to count.
_PAUSE = 0.005
#: The seconds that a cancel waits for the locks of a part's messages, and how many it tries alone
#: if one is locked.
_PATIENCE, _FEW = 0.05, 50


class Counted(NamedTuple):
    """Batches to count again: those with more to count, and those that others had locked."""

    more: set[int]
    locked: set[int]


_MAY_SETTLE = models.Func(
    models.F("queue_id"),
    models.Value("DELETE"),
    function="pgqueue_may",
    output_field=models.BooleanField(),
)


class BatchManager(HomeManager["Batch"]):
    """Finds batches, counts their members, and ends those that are done."""

    def of(self, message: Message) -> Batch | None:
        """Return the batch that a message is a member of, or the callback of. None without one.

        A copy that ``replay`` has sent names the batch of its original.

        >>> Batch.objects.of(message).counts["failed"]
        2
        """
        pk = id_in(message.headers)
        return None if pk is None else self.using(message._state.db).filter(pk=pk).first()

    def begin(
        self, queue: Queue, then: UnsentMessage | None, name: str, open_for: dt.timedelta | None
    ) -> Batch:
        """Store a new batch. ``open_for``: after how long it is sealed, if nothing else seals it.

        Raises InvalidArgument, and QueueNotFound if the callback's queue is missing.
        """
        queue.opened.refuse_subscription("send a batch to its source")
        then_queue = ""
        if then is not None:
            if not isinstance(then, UnsentMessage):
                raise InvalidArgument(
                    f"then must be a message that is not sent yet, such as "
                    f"queue('reports').message({{...}}), or message_of(task, ...) of "
                    f"django_pgqueue.tasks, not {then!r}"
                )
            if then.using is not None and then.using != queue.alias:
                raise InvalidArgument(
                    f"then is a message of database {then.using!r}, and the batch is in "
                    f"{queue.alias!r}: a transaction cannot span both. Choose a queue of "
                    f"{queue.alias!r}, whose handler sends on"
                )
            target = Queue.objects.resolve(then.queue, queue.alias)
            target.opened.refuse_subscription("send the callback to its source")
            then_queue = target.name
        until: Any = None if open_for is None else columns.NOW + models.Value(open_for)
        batch = self.using(queue.alias).create(
            queue=queue,
            name=arguments.text(name, "name") or "",
            then_queue=then_queue,
            callback=None if then is None else {"body": then.body, "options": then.options},
            open_until=until,
        )
        batch.refresh_from_db(fields=["created_at", "open_until"])
        return batch

    def due(self, *, using: str) -> list[int]:
        """Return batches to count, although no consumer here has ended a message of theirs.

        Seals those that were left open for too long. Several processes share the work.
        """
        rows = self._countable(using)
        if not rows.exists():
            return []
        with transaction.atomic(using=using):
            late = rows.filter(sealed_at=None, open_until__lte=columns.NOW)
            for batch in late.select_related("queue").select_for_update(
                skip_locked=True, of=("self",)
            ):
                batch._update(sealed_at=columns.NOW, abandoned=True)
                batch._tell(signals.batch_abandoned)
        with transaction.atomic(using=using):
            looked = models.Q(looked_at=None) | models.Q(looked_at__lte=columns.NOW - _EVERY)
            first = rows.filter(looked).order_by(models.F("looked_at").asc(nulls_first=True), "pk")
            locked = first.select_for_update(skip_locked=True)
            found = list(locked.values_list("pk", flat=True)[:LOOKED])
            self.using(using).filter(pk__in=found).update(looked_at=columns.NOW)
        return found

    def count_members(self, ids: Collection[int], *, using: str) -> set[int]:
        """Count the members of batches that have ended, and end the batches that are done.

        Returns the batches to count again: another process was counting them, or there is more to
        count. Any process may call it, at any time. Raises the first error of a queue, after the
        batches of the others are counted.
        """
        again: set[int] = set()
        errors: list[Exception] = []
        chosen = sorted(set(ids))
        for start in range(0, len(chosen), TOGETHER):
            try:
                counted = self.count_some(chosen[start : start + TOGETHER], using=using)
                again |= counted.more | counted.locked
            except Exception as error:
                if not connections[using].is_usable():
                    raise
                errors.append(error)
        if errors:
            raise errors[0]
        return again

    def count_out(self, ids: Collection[int], *, using: str) -> None:
        """Count batches until there is nothing left to count, as :meth:`count_members` does."""
        while ids := self.count_members(ids, using=using):
            time.sleep(_PAUSE)  # another process may count them

    def open_of(self, queues: Collection[int], *, using: str) -> set[int]:
        """Return the batches of these queues that are not done. Without queues, makes no query."""
        return set(
            self.using(using).filter(queue__in=queues, done_at=None).values_list("pk", flat=True)
        )

    def count_some(self, ids: Sequence[int], *, using: str) -> Counted:
        """Count batches in one transaction, as :meth:`count_members` does."""
        errors: list[Exception] = []
        with transaction.atomic(using=using):
            counted = self._count(ids, using, errors)
        if errors:
            raise errors[0]
        return counted

    def _countable(self, using: str) -> models.QuerySet[Batch]:
        """Return the batches that are not done, of queues whose messages the role may settle.

        Without their callbacks, of which Python may refuse one that was stored by plain SQL.
        """
        return self.using(using).filter(_MAY_SETTLE, done_at=None).defer("callback")

    def _count(self, ids: Sequence[int], using: str, errors: list[Exception]) -> Counted:
        # Without an order: for an order by pk the planner may read the whole index on pk.
        rows = self._countable(using).filter(pk__in=ids).order_by()
        # The lock first: what counts is a statement after it, whose snapshot sees every end that
        # the last count saw, and those that its process wrote before it asked for this count.
        locked = rows.select_related("queue").select_for_update(skip_locked=True, of=("self",))
        found = list(locked)
        by_queue: dict[Queue, list[Batch]] = {}
        for batch in found:
            by_queue.setdefault(batch.queue, []).append(batch)
        locked_ids: set[int] = set()
        if len(found) < len(ids):  # done, or locked by another count, which may be too early
            locked_ids = set(rows.values_list("pk", flat=True)) - {batch.pk for batch in found}
        more: set[int] = set()
        for queue, theirs in by_queue.items():
            more |= self._count_or_tell(queue, theirs, errors)
        return Counted(more, locked_ids)

    def _count_or_tell(
        self, queue: Queue, theirs: list[Batch], errors: list[Exception]
    ) -> set[int]:
        """Count batches of one queue that are locked, and append an error to ``errors``.

        If the data of one cannot be counted, the others are counted alone.
        """
        try:
            with transaction.atomic(using=queue.alias):
                return self._count_of(queue, {batch.pk: batch for batch in theirs})
        except Exception as error:
            if not connections[queue.alias].is_usable():
                raise
            if isinstance(error, DataError) and len(theirs) > 1:
                return set().union(
                    *(self._count_or_tell(queue, [batch], errors) for batch in theirs)
                )
            errors.append(error)
            return set()

    def _count_of(self, queue: Queue, locked: dict[int, Batch]) -> set[int]:
        """Count batches of one queue that are locked. Returns those with more to count."""
        most = max(MOST // len(locked), batches.PART)
        ended = batches.count(queue.opened, list(locked), most)
        again = {pk for pk, looked in ended.items() if looked >= most}  # there may be more behind
        for pk, batch in locked.items():
            if batch.cancelled_at is not None and (_cancelled(queue, pk) or pk in ended):
                again.add(pk)
        whole = self.using(queue.alias).defer("callback").order_by()
        for batch in whole.filter(pk__in=list(locked), sealed_at__isnull=False, members=_ENDED):
            batch.queue = queue
            batch._end()
            again.discard(batch.pk)
        return again


def _cancelled(queue: Queue, batch: int) -> list[int]:
    """Cancel the next members of a batch, but for those that a transaction has locked.

    Such a one is of a handler with ``locked=True``, which may take long. Returns the ids.
    """
    left = batches.uncounted(runner(queue.alias), batch)
    reason = f"batch {batch} was cancelled"
    done = _cancel(queue, left, reason)
    if done is None:
        parts = (left[at : at + _FEW] for at in range(0, len(left), _FEW))
        done = [pk for part in parts for pk in _cancel(queue, part, reason) or ()]
    return done


def _cancel(queue: Queue, ids: list[int], reason: str) -> list[int] | None:
    """Cancel messages; None if one is locked."""
    try:
        with (
            transaction.atomic(using=queue.alias),
            connections[queue.alias].cursor() as cursor,
            settings_for(cursor, lock_timeout=milliseconds(_PATIENCE)),
            unrecorded(),  # the entry of the batch's cancel is there already
        ):
            return settling.cancel(queue.opened, ids, reason=reason)
    except DatabaseError as error:
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
        return None


_ENDED = sum((models.F(each) for each in OUTCOMES[1:]), start=models.F(OUTCOMES[0]))


def _counter() -> columns.BigInteger:
    return models.BigIntegerField(default=0)


class Batch(models.Model):
    """Messages of a queue, the *members*, and a callback that is sent when all have ended.

    Members are sent by :meth:`send`, :meth:`send_batch` and :meth:`enqueue`, until the batch is
    sealed. When each has ended, the batch is *done*: in the same transaction its callback is sent,
    with the numbers in the header ``x-batch``. An end is counted once; a member that is redriven or
    sent again after it was counted changes nothing any more.

    ::

        with queue("mails").batch(then=queue("reports").message({"report": "mails"})) as batch:
            batch.send_batch([{"user": pk} for pk in users])
    """

    id: columns.BigAutoKey = models.BigAutoField(primary_key=True)
    queue: models.ForeignKey[Queue, Queue] = models.ForeignKey(
        Queue, models.CASCADE, db_constraint=False, db_index=False, related_name="batches"
    )
    name: columns.Text = models.TextField(default="", blank=True)
    then_queue: columns.Text = models.TextField(
        default="", help_text="The queue of the callback. Empty: no callback."
    )
    callback: columns.JSON = models.JSONField(null=True)
    callback_id: columns.BigIntegerOrNull = models.BigIntegerField(
        null=True, help_text="The message that was sent as the callback."
    )
    members: columns.BigInteger = models.BigIntegerField(
        default=0, help_text="Messages that were sent in the batch."
    )
    passed: columns.BigInteger = models.BigIntegerField(
        default=0, help_text="The member that counts have reached. Some before it may be left."
    )
    completed: columns.BigInteger = _counter()
    failed: columns.BigInteger = _counter()
    dead_lettered: columns.BigInteger = _counter()
    cancelled: columns.BigInteger = _counter()
    expired: columns.BigInteger = _counter()
    replaced: columns.BigInteger = _counter()
    deleted: columns.BigInteger = _counter()
    created_at: columns.Time = models.DateTimeField(db_default=columns.NOW)
    open_until: columns.TimeOrNull = models.DateTimeField(
        null=True, help_text="When it is sealed, if nothing has sealed it."
    )
    sealed_at: columns.TimeOrNull = models.DateTimeField(
        null=True, help_text="Since when no member can be added."
    )
    cancelled_at: columns.TimeOrNull = models.DateTimeField(null=True)
    abandoned: columns.Boolean = models.BooleanField(
        default=False, help_text="Whether its time ran out before it was sealed."
    )
    done_at: columns.TimeOrNull = models.DateTimeField(null=True)
    looked_at: columns.TimeOrNull = models.DateTimeField(null=True)
    error: columns.Text = models.TextField(
        default="", help_text="Why the callback could not be sent. It is tried again."
    )

    objects: ClassVar[BatchManager] = BatchManager()

    #: The ids of members that are not stored yet; None outside of a ``with`` block.
    _gathered: list[int] | None = None
    #: Where the ``with`` block is: its connection, and how many transactions are open there.
    _at: tuple[Any, int] = (None, 0)

    class Meta(columns.Meta):
        verbose_name: ClassVar[Any] = gettext_lazy("batch")
        verbose_name_plural: ClassVar[Any] = gettext_lazy("batches")
        default_permissions: ClassVar[tuple[str, ...]] = ("view", "change")
        db_table = _TABLE
        ordering: ClassVar[tuple[str, ...]] = ("-id",)
        indexes: ClassVar[tuple[models.Index, ...]] = (
            models.Index(
                fields=["queue", "created_at"],
                condition=models.Q(done_at=None),
                name="pgqueue_batch_open",
            ),
            models.Index(fields=["queue", "done_at"], name="pgqueue_batch_done"),
        )

    def __str__(self) -> str:
        return gettext("batch %s") % self.pk

    @property
    def counts(self) -> dict[str, int]:
        """How many members have ended, by how they ended."""
        return {each: getattr(self, each) for each in OUTCOMES}

    @property
    def ended(self) -> int:
        """How many members have ended. Reload the batch with ``refresh_from_db()`` for news."""
        return sum(self.counts.values())

    @property
    def progress(self) -> float:
        """The part of the members that have ended, from 0 to 1."""
        return self.ended / self.members if self.members else float(self.done_at is not None)

    @property
    def outcome(self) -> str:
        """``open`` while members can be added, then ``running``, ``done``, or how else it ended.

        ``cancelled``: by :meth:`cancel`. ``abandoned``: nothing sealed it in time, so members may
        be missing.
        """
        if self.cancelled_at is not None:
            return "cancelled"
        if self.abandoned:
            return "abandoned"
        if self.done_at is not None:
            return "done"
        return "open" if self.sealed_at is None else "running"

    def send(self, /, body: Any, *, headers: dict[str, Any] | None = None, **options: Any) -> Sent:
        """Send a message as a member of the batch; arguments and result as for ``queue().send``.

        A message that is skipped as a duplicate is no member.

        Raises BatchSealed, and what a send raises.
        """
        gathers = self._gathers
        with self._sending(gathers):
            sent: Sent = Message.objects.using(self._alias).send(
                self.queue, body, headers=self._marked(headers), **options
            )
            self._add([sent], gathers)
        return sent

    @twin_of(send)
    def asend(self, *args, **kwargs):
        return self.send(*args, **kwargs)

    def send_batch(
        self,
        /,
        bodies: Sequence[Any],
        *,
        headers: Sequence[dict[str, Any] | None] | dict[str, Any] | None = None,
        **options: Any,
    ) -> list[Sent]:
        """Send many messages as members; arguments and result as for ``queue().send_batch``.

        Raises BatchSealed, and what ``send_batch`` raises.
        """
        marked: Any = self._marked(headers)
        if isinstance(headers, Iterable) and not isinstance(headers, (dict, str, bytes)):
            marked = [self._marked(each) for each in headers]
        gathers = self._gathers
        with self._sending(gathers):
            sent = Message.objects.using(self._alias).send_batch(
                self.queue, bodies, headers=marked, **options
            )
            self._add(sent, gathers)
        return sent

    @twin_of(send_batch)
    def asend_batch(self, *args, **kwargs):
        return self.send_batch(*args, **kwargs)

    def enqueue(self, task: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Enqueue a task of this queue as a member. Returns its TaskResult.

        >>> with queue("default").batch(then=message_of(report)) as batch:
        ...     result = batch.enqueue(welcome, 7)

        Raises InvalidArgument for a task of another queue or backend, BatchSealed, and what
        ``task.enqueue`` raises.
        """
        backend = sending_backend(task)
        if (task.queue_name.lower(), backend.database) != (self.queue.name.lower(), self._alias):
            raise InvalidArgument(
                f"task {task.name!r} is of queue {task.queue_name!r}, and this batch of "
                f"{self.queue.name!r}: enqueue task.using(queue_name={self.queue.name!r}), or make "
                f"the batch of the task's queue"
            )
        return backend.enqueue_in(self, task, args, kwargs)

    @twin_of(enqueue)
    def aenqueue(self, *args, **kwargs):
        return self.enqueue(*args, **kwargs)

    def seal(self) -> bool:
        """Say that all members are sent. From now on, the end of the last one ends the batch.

        Returns False if it was sealed before. A batch without members is done at once.

        Raises InvalidArgument in the ``with`` block of the batch, which seals it at its end.
        """
        self._refuse_block("it is sealed at the end of the block")
        return self._seal()

    def _seal(self) -> bool:
        with transaction.atomic(using=self._alias):
            rows = type(self).objects.using(self._alias).filter(pk=self.pk, sealed_at=None)
            sealed = bool(rows.update(sealed_at=columns.NOW))
            self.refresh_from_db()
            if sealed and self.members == 0:
                self._end()  # also in a role that may only send
            elif sealed:  # no later end may tell of what has ended before
                type(self).objects.count_out([self.pk], using=self._alias)
            if sealed:
                self.refresh_from_db()
        return sealed

    @twin_of(seal)
    def aseal(self, *args, **kwargs):
        return self.seal(*args, **kwargs)

    def cancel(self) -> bool:
        """Seal the batch, and cancel all members that have not ended, those in flight, too.

        The callback is sent, as for each batch: its header says ``cancelled``. An interrupted
        cancel goes on in any consumer. Returns False if the batch was done before.

        Raises InvalidArgument in the batch's ``with`` block.
        """
        self._refuse_block("an exception in the block leaves nothing of it")
        alias = self._alias
        with transaction.atomic(using=alias):
            rows = type(self).objects.using(alias).filter(pk=self.pk, done_at=None)
            if not rows.update(
                cancelled_at=Coalesce("cancelled_at", columns.NOW),
                sealed_at=Coalesce("sealed_at", columns.NOW),
            ):
                return False
            record(runner(alias), "cancel", (self.queue_id, self.queue.name), {"batch": self.pk})
        type(self).objects.count_out([self.pk], using=alias)
        self.refresh_from_db()
        return True

    @twin_of(cancel)
    def acancel(self, *args, **kwargs):
        return self.cancel(*args, **kwargs)

    @property
    def _alias(self) -> str:
        return str(self._state.db)

    @contextmanager
    def _block(self) -> Iterator[Batch]:
        """Run a ``with`` block: its members are stored, and the batch is sealed, at its end."""
        connection = connections[self._alias]
        self._gathered, self._at = [], (connection, open_blocks(connection))
        try:
            yield self
            if self._gathered:
                self._add_now(self._gathered)
        finally:
            self._gathered = None
        self._seal()

    @property
    def _gathers(self) -> bool:
        """Whether members are stored at the end of the ``with`` block.

        Not in a savepoint within the block, which may be rolled back alone, nor in another thread,
        whose connection does not see the batch.
        """
        connection = connections[self._alias]
        return self._gathered is not None and self._at == (connection, open_blocks(connection))

    def _sending(self, gathers: bool) -> Any:
        """The transaction of a send: in a ``with`` block the block's own."""
        return nullcontext() if gathers else transaction.atomic(using=self._alias)

    def _marked(self, headers: Any) -> Any:
        if headers is None:
            return {HEADER: self.pk}
        return {**headers, HEADER: self.pk} if isinstance(headers, dict) else headers

    def _add(self, sent: Sequence[Sent], gathers: bool) -> None:
        ids = [int(each) for each in sent if not was_skipped(each)]
        if self._gathered is not None and gathers:
            self._gathered += ids
        elif ids:
            self._add_now(ids)

    def _add_now(self, ids: list[int]) -> None:
        members = batches.add(runner(self._alias), self.pk, ids)
        if members is None:
            raise BatchSealed(self.pk)
        self.members = members

    def _refuse_block(self, instead: str) -> None:
        if self._gathered is not None:
            raise InvalidArgument(f"batch {self.pk} is in its with block: {instead}")

    def _end(self) -> None:
        """Send the callback, and mark the batch as done. The caller has locked the row.

        An error is stored, and the next count tries again.
        """
        try:
            with transaction.atomic(using=self._alias):
                self._update(callback_id=self._call(), done_at=columns.NOW, error="")
                self.refresh_from_db(fields=["done_at"])
        except Exception as error:
            if is_conflict(error) or not connections[self._alias].is_usable():
                raise
            told = text_of(error)
            if told != self.error:
                self._tell(signals.batch_failed, error=error)
            self._update(error=told, callback_id=None, done_at=None)
            return
        self._tell(signals.batch_done)

    def _tell(self, signal: Signal, **about: Any) -> None:
        """Send a signal after the commit, so that no receiver's error undoes anything."""
        send = partial(signal.send_robust, self.queue.name, batch=self, **about)
        transaction.on_commit(send, using=self._alias)

    def _call(self) -> int | None:
        """Send the callback. Returns its id; None if the batch has none."""
        if not self.then_queue:
            return None
        # Only these, whatever a sender has stored by plain SQL: it must not replace messages.
        options = {k: v for k, v in self.callback["options"].items() if k in OPTIONS}
        headers = {**(options.pop("headers", None) or {}), HEADER: self._told()}
        return int(
            Message.objects.using(self._alias).send(
                self.then_queue, self.callback["body"], headers=headers, **options
            )
        )

    def _told(self) -> dict[str, Any]:
        """The header of the callback: id, name, outcome, members, and the counts."""
        named = {"name": self.name} if self.name else {}
        outcome = "done" if self.outcome == "running" else self.outcome
        return {"id": self.pk, **named, "outcome": outcome, "members": self.members, **self.counts}

    def _update(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)
        self.save(update_fields=list(values))


class BatchPart(models.Model):
    """Up to a thousand members of a batch that are not counted yet."""

    pk: Any = models.CompositePrimaryKey("batch", "first")
    batch: models.ForeignKey[Batch, Batch] = models.ForeignKey(
        Batch, models.CASCADE, db_index=False, related_name="parts"
    )
    first: columns.BigInteger = models.BigIntegerField(
        help_text="How many members were sent before those of this part."
    )
    ids: columns.JSON = models.JSONField()

    class Meta(columns.Meta):
        db_table = "pgqueue_batch_part"

    def __str__(self) -> str:
        return f"part of batch {self.batch_id}"


def sending_backend(task: Any) -> Any:
    """Return the backend of a task. Raises InvalidArgument for one that sends no messages."""
    backend = task.get_backend()
    if not hasattr(backend, "enqueue_in"):
        raise InvalidArgument(
            f"task {task.name!r} is of the backend {type(backend).__name__}, which sends no "
            f"messages: choose django_pgqueue.tasks.PgQueueBackend in TASKS"
        )
    return backend


def id_in(headers: Any) -> int | None:
    """Return the id of the batch that headers of a message name; None without one.

    >>> id_in({"x-batch": 7}), id_in({"x-batch": {"id": 7}}), id_in(None)
    (7, 7, None)
    """
    found = headers.get(HEADER) if isinstance(headers, dict) else None
    if isinstance(found, dict):
        found = found.get("id")
    is_id = isinstance(found, int) and not isinstance(found, bool) and 0 < found < 2**63
    return found if is_id else None
