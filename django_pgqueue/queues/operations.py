"""The operations on one queue, as methods."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, models

from django_pgqueue import maintenance
from django_pgqueue.acks import Failure, Outcome
from django_pgqueue.engine import arguments
from django_pgqueue.engine.habits import METHODS, SEND, unexpected
from django_pgqueue.engine.metrics import measuring
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.read import grouped, polling, reading
from django_pgqueue.engine.redrive import redriving
from django_pgqueue.engine.rows import Delivery
from django_pgqueue.engine.send import sending
from django_pgqueue.engine.settle import outcomes, settling
from django_pgqueue.engine.settle.outcomes import settle as settle_each
from django_pgqueue.engine.settle.settling import Target
from django_pgqueue.engine.subscriptions import positions
from django_pgqueue.engine.subscriptions.positions import Start
from django_pgqueue.flows.steps import note_of
from django_pgqueue.flows.tables import Step
from django_pgqueue.queues import announcing, results
from django_pgqueue.queues.all_queues import QueuesManager, warn_of
from django_pgqueue.queues.decorators import documented, takes, twin_of
from django_pgqueue.queues.group import BoundGroup
from django_pgqueue.tables.attempt import Attempt
from django_pgqueue.tables.queue import (
    ChangeableSettings,
    Queue,
    QueueSettings,
    SubscriptionSettings,
    reopened,
)
from django_pgqueue.types import (
    Delay,
    Lag,
    Maintained,
    Metrics,
    OnConflict,
    Receipt,
    Sent,
    Settled,
    State,
    Until,
    Wait,
)

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=models.Model)


class Operations(Generic[M]):
    """A queue's name and database, with all operations on it as methods.

    ``M`` is the class of the messages that it returns: the model's manager needs the operations, so
    they cannot import the model.

    >>> orders = queue("orders")
    >>> orders.send({"order": 7})
    1
    >>> [message] = orders.read()
    >>> orders.archive(message)
    [1]
    """

    #: The class of the returned messages.
    _model: Any

    def __init__(self, name: str | Queue, *, using: str | None = None) -> None:
        if isinstance(name, Queue):
            using = using or name.alias
            name = name.name
        self.name: str = arguments.queue_name(name)
        self.using = using
        self._target: str | Queue = self.name

    @classmethod
    def _of(cls, target: str | Queue, using: str | None) -> Self:
        """Return the operations on a queue. A Queue is used as it is, not looked up by its name."""
        bound = cls(target, using=using)
        bound._target = target
        return bound

    def __repr__(self) -> str:
        using = f", using={self.using!r}" if self.using else ""
        return f"queue({self.name!r}{using})"

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Operations) and (self.name.lower(), self.using) == (
            other.name.lower(),
            other.using,
        )

    def __hash__(self) -> int:
        return hash((self.name.lower(), self.using))

    @documented(QueuesManager.create_queue)
    @takes(QueueSettings)
    def create(self, **settings: Unpack[QueueSettings]) -> Queue:
        """Make a queue. If it exists, return it unchanged."""
        queues: QueuesManager[Any] = self._model.objects.using(self.using)
        return queues.create_queue(self.name, **settings)

    @takes(SubscriptionSettings)
    def subscribe(
        self,
        *,
        to: str | Queue,
        start: Start = "now",
        **settings: Unpack[SubscriptionSettings],
    ) -> Queue:
        """Make this queue a subscription: it reads the messages of another queue, its source.

        Every subscription gets every message of the source, and none is stored twice. If it exists,
        it is returned unchanged.

        Arguments:
            to: the source.
            start: ``"now"``: messages whose transaction commits later. ``"earliest"``: all that the
                source has. An aware datetime, or the id of a message: from there, as :meth:`seek`.
            settings: the settings of the subscription, each by its name.

        >>> queue("audit").subscribe(to="orders", start="earliest", max_deliveries=5)
        <Queue: audit>

        Raises InvalidQueueName, InvalidArgument, QueueNotFound, QueueMismatch if the queue exists
        and is no subscription to this source, and QueueBusy if transactions that write to the
        source take longer than ``LOCK_SECONDS``.
        """
        with self._model.objects.using(self.using)._on_database() as alias:
            asked = SubscriptionSettings(**settings)
            queue, differs = Queue.subscribe(self.name, to, start, alias, asked)
            warn_of(queue, differs, "subscribe")
            return queue

    @documented(positions.seek)
    def seek(self, to: Start) -> None:
        """Move a subscription, forward or back. The next read begins there."""
        self._run(positions.seek, to)

    @twin_of(seek)
    def aseek(self, *args, **kwargs):
        return self.seek(*args, **kwargs)

    @documented(positions.lag)
    def lag(self, limit: int | None = None) -> Lag | None:
        """Return how far a subscription is behind its source; None if its position is lost."""
        return self._run(positions.lag, limit)

    @twin_of(lag)
    def alag(self, *args, **kwargs):
        return self.lag(*args, **kwargs)

    @takes(ChangeableSettings, defaults=False)
    def alter(self, **settings: Unpack[ChangeableSettings]) -> Queue:
        """Change settings of the queue, and return it. Others keep their values.

        Running consumers notice a change within ``CACHE_SECONDS``, a change of limits sooner. In a
        migration use :class:`~django_pgqueue.operations.AlterQueue`.

        Arguments:
            settings: the settings of the queue, each by its name.

        A length of time is a number of seconds or a timedelta.

        >>> queue("orders").alter(limit=20, retention=None)
        <Queue: orders>

        Raises QueueNotFound, also for a missing dead-letter queue, and InvalidArgument, also for a
        limit that contradicts another one of the queue.
        """
        with self._model.objects.using(self.using)._on_database() as alias:
            return Queue.alter(self.name, alias, ChangeableSettings(**settings))[0]

    @documented(QueuesManager.drop_queue)
    def drop(self) -> bool:
        """Drop a queue with its messages and its archive. Returns False if there is none."""
        dropped: bool = self._model.objects.using(self.using).drop_queue(self.name)
        return dropped

    @documented(sending.send)
    def send(
        self,
        /,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        delay: Delay | None = 0,
        expires: Delay | None = None,
        priority: int = 0,
        group: str | None = None,
        unique: str | None = None,
        until: Until | None = None,
        on_conflict: OnConflict = "skip",
        max_wait: float | dt.timedelta | None = None,
        **unknown: NoReturn,
    ) -> Sent:
        """Send one message and return its id."""
        if unknown:
            raise unexpected(self.send, unknown, SEND)
        return self._run(
            announcing.send,
            body,
            headers=headers,
            delay=delay,
            expires=expires,
            priority=priority,
            group=group,
            unique=unique,
            until=until,
            on_conflict=on_conflict,
            max_wait=max_wait,
        )

    @twin_of(send)
    def asend(self, *args, **kwargs):
        return self.send(*args, **kwargs)

    @documented(sending.send_batch)
    def send_batch(
        self,
        /,
        bodies: Sequence[Any],
        *,
        headers: Sequence[dict[str, Any] | None] | dict[str, Any] | None = None,
        delay: Delay | None = 0,
        expires: Delay | None = None,
        priority: int = 0,
        group: Sequence[str | None] | str | None = None,
        unique: Sequence[str | None] | None = None,
        until: Until | None = None,
        on_conflict: OnConflict = "skip",
        max_wait: float | dt.timedelta | None = None,
        **unknown: NoReturn,
    ) -> list[Sent]:
        """Send many messages at once, all or none, and return their ids in the same order."""
        if unknown:
            raise unexpected(self.send_batch, unknown, SEND)
        return self._run(
            announcing.send_batch,
            bodies,
            headers=headers,
            delay=delay,
            expires=expires,
            priority=priority,
            group=group,
            unique=unique,
            until=until,
            on_conflict=on_conflict,
            max_wait=max_wait,
        )

    @twin_of(send_batch)
    def asend_batch(self, *args, **kwargs):
        return self.send_batch(*args, **kwargs)

    @documented(reading.read)
    def read(
        self,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        conditional: dict[str, Any] | None = None,
        in_transaction: bool = False,
    ) -> list[M]:
        """Lease up to ``qty`` messages, each hidden from other readers for ``vt``."""
        return self._messages(
            reading.read, vt=vt, qty=qty, conditional=conditional, in_transaction=in_transaction
        )

    @twin_of(read)
    def aread(self, *args, **kwargs):
        return self.read(*args, **kwargs)

    @documented(polling.read_with_poll)
    def read_with_poll(
        self,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
        conditional: dict[str, Any] | None = None,
    ) -> list[M]:
        """Read; if there are no messages, wait for some."""
        return self._messages(
            polling.read_with_poll,
            vt=vt,
            qty=qty,
            max_poll_seconds=max_poll_seconds,
            poll_interval_ms=poll_interval_ms,
            conditional=conditional,
        )

    @twin_of(read_with_poll)
    def aread_with_poll(self, *args, **kwargs):
        return self.read_with_poll(*args, **kwargs)

    @documented(grouped.read_grouped)
    def read_grouped(
        self, *, vt: float | dt.timedelta | None = None, qty: int = 1, in_transaction: bool = False
    ) -> list[M]:
        """Lease up to ``qty`` messages: all of the first group, then all of the next."""
        return self._messages(grouped.read_grouped, vt=vt, qty=qty, in_transaction=in_transaction)

    @twin_of(read_grouped)
    def aread_grouped(self, *args, **kwargs):
        return self.read_grouped(*args, **kwargs)

    @documented(grouped.read_grouped_rr)
    def read_grouped_rr(
        self, *, vt: float | dt.timedelta | None = None, qty: int = 1, in_transaction: bool = False
    ) -> list[M]:
        """Lease up to ``qty`` messages in rounds: one of each group, then the second of each."""
        return self._messages(
            grouped.read_grouped_rr, vt=vt, qty=qty, in_transaction=in_transaction
        )

    @twin_of(read_grouped_rr)
    def aread_grouped_rr(self, *args, **kwargs):
        return self.read_grouped_rr(*args, **kwargs)

    @documented(reading.peek)
    def peek(
        self,
        *,
        qty: int | None = 1,
        conditional: dict[str, Any] | None = None,
        blocked: bool = False,
    ) -> list[M]:
        """Return the messages that a read would find. Nothing is leased or counted."""
        return self._messages(reading.peek, qty=qty, conditional=conditional, blocked=blocked)

    @twin_of(peek)
    def apeek(self, *args, **kwargs):
        return self.peek(*args, **kwargs)

    @documented(reading.pop)
    def pop(self, qty: int | None = 1) -> list[M]:
        """Read up to ``qty`` messages and delete them: each is delivered at most once."""
        return self._messages(reading.pop, qty)

    @twin_of(pop)
    def apop(self, *args, **kwargs):
        return self.pop(*args, **kwargs)

    @documented(reading.why)
    def why(self, message_id: int) -> Wait | None:
        """Why a message in the queue is not delivered now. None if it is not in the queue."""
        return self._run(reading.why, message_id)

    @documented(reading.next_due)
    def next_due(self) -> float:
        """Seconds until the next delayed or leased message is due; infinity if there is none."""
        return self._run(reading.next_due)

    @documented(reading.drained)
    def drained(self) -> bool:
        """Whether nothing is ready, due or waiting for its next attempt."""
        return self._run(reading.drained)

    @documented(settling.archive)
    def archive(
        self, receipts_or_ids: Target | Iterable[Target], *, in_flight: bool = True
    ) -> Settled:
        """Complete messages: move them from the queue to the archive."""
        return self._run(settling.archive, receipts_or_ids, in_flight=in_flight)

    @twin_of(archive)
    def aarchive(self, *args, **kwargs):
        return self.archive(*args, **kwargs)

    @documented(settling.cancel)
    def cancel(
        self,
        receipts_or_ids: Target | Iterable[Target],
        *,
        reason: str | None = None,
        in_flight: bool = True,
    ) -> Settled:
        """Cancel messages: move them to the archive as CANCELLED, from any place."""
        return self._run(settling.cancel, receipts_or_ids, reason=reason, in_flight=in_flight)

    @twin_of(cancel)
    def acancel(self, *args, **kwargs):
        return self.cancel(*args, **kwargs)

    @documented(settling.delete)
    def delete(
        self, receipts_or_ids: Target | Iterable[Target], *, in_flight: bool = True
    ) -> Settled:
        """Delete messages from the queue, with their bodies. Archived messages stay."""
        return self._run(settling.delete, receipts_or_ids, in_flight=in_flight)

    @twin_of(delete)
    def adelete(self, *args, **kwargs):
        return self.delete(*args, **kwargs)

    @documented(settling.set_vt)
    def set_vt(
        self,
        receipts_or_ids: Target | Iterable[Target],
        vt: float | dt.timedelta | dt.datetime,
        *,
        in_flight: bool = True,
    ) -> Settled:
        """Make messages readable ``vt`` from now (seconds, timedelta or an aware datetime)."""
        return self._run(settling.set_vt, receipts_or_ids, vt, in_flight=in_flight)

    @twin_of(set_vt)
    def aset_vt(self, *args, **kwargs):
        return self.set_vt(*args, **kwargs)

    @documented(outcomes.complete)
    def complete(
        self,
        receipts: Iterable[Receipt],
        *,
        ran: bool = True,
        results: Mapping[Receipt, Any] | None = None,
    ) -> Settled:
        """Complete messages: move them to the archive as COMPLETED."""
        return self._run(outcomes.complete, receipts, ran=ran, results=results)

    @twin_of(complete)
    def acomplete(self, *args, **kwargs):
        return self.complete(*args, **kwargs)

    @documented(outcomes.retry)
    def retry(
        self,
        delays: Mapping[Receipt, float],
        *,
        ran: bool = True,
        errors: Mapping[Receipt, str] | None = None,
        failures: Mapping[Receipt, Failure] | None = None,
        process_id: int | None = None,
    ) -> Settled:
        """Retry messages: each is due again after a delay."""
        return self._run(
            outcomes.retry, delays, ran=ran, errors=errors, failures=failures, process_id=process_id
        )

    @twin_of(retry)
    def aretry(self, *args, **kwargs):
        return self.retry(*args, **kwargs)

    @documented(outcomes.release)
    def release(self, receipts: Iterable[Receipt]) -> Settled:
        """Release messages whose handler did not start, or was interrupted."""
        return self._run(outcomes.release, receipts)

    @twin_of(release)
    def arelease(self, *args, **kwargs):
        return self.release(*args, **kwargs)

    @documented(outcomes.fail)
    def fail(
        self,
        errors: Mapping[Receipt, str],
        *,
        reason: str = "rejected",
        ran: bool = True,
        failures: Mapping[Receipt, Failure] | None = None,
        process_id: int | None = None,
    ) -> Settled:
        """Move messages to the dead-letter queue, or without one to the archive as FAILED."""
        return self._run(
            outcomes.fail, errors, reason=reason, ran=ran, failures=failures, process_id=process_id
        )

    @twin_of(fail)
    def afail(self, *args, **kwargs):
        return self.fail(*args, **kwargs)

    @documented(settle_each)
    def settle(
        self,
        outcomes: Mapping[Receipt, Outcome],
        *,
        ran: bool = True,
        process_id: int | None = None,
    ) -> Settled:
        """Settle each message by its outcome, with one statement for each kind of outcome."""
        return self._run(settle_each, outcomes, ran=ran, process_id=process_id)

    @documented(settling.purge)
    def purge(self, *, progress: Any = None) -> int:
        """Delete every live message, ready, delayed or in flight. Returns how many."""
        return self._run(settling.purge, progress=progress)

    @documented(results.result)
    def result(self, message_id: int, *, timeout: float | None = 0) -> Any:
        """The return value of a message's handler, if its consumer has ``keep_result``."""
        return self._run(results.result, message_id, timeout=timeout)

    def wait(self, message_id: int, timeout: float | None = None) -> Any:
        """Wait until a message is done, and return its :meth:`result`. Default: wait for ever.

        >>> queue("orders").wait(queue("orders").send({"order": 7}), timeout=5)
        {'charged': True}
        """
        return self.result(message_id, timeout=timeout)

    async def aresult(self, message_id: int, *, timeout: float | None = 0) -> Any:
        """The async twin of :meth:`result`; other tasks of the loop run while it waits."""
        look = sync_to_async(lambda: self._run(results.look, message_id))
        return await results.aresult(look, timeout=timeout)

    def attempts(self, message_id: int) -> list[Attempt]:
        """The stored failed attempts of a message, the oldest first.

        >>> [attempt.error_class for attempt in queue("orders").attempts(7)]
        ['builtins.ConnectionError']
        """
        [pk] = arguments.ids([message_id])
        opened = self._open()
        return Attempt.objects.of(pk, opened.source, using=opened.alias)

    def steps(self, message_id: int) -> list[Step]:
        """The steps that handlers of a message have done, in the order of their ends.

        >>> [(step.name, step.value) for step in queue("orders").steps(7)]
        [('charge', {'receipt': 'r-41'})]
        """
        [pk] = arguments.ids([message_id])
        opened = self._open()
        found = Step.objects.using(opened.alias).filter(queue_id=opened.id, message_id=pk)
        return list(found.order_by("at", "name"))

    @documented(note_of)
    def note(self, message_id: int) -> Any:
        """Return what a message's handler has noted last. None without a note."""
        return self._run(note_of, message_id)

    @twin_of(note)
    def anote(self, *args, **kwargs):
        return self.note(*args, **kwargs)

    @documented(redriving.redrive)
    def redrive(
        self,
        *,
        to: str | None = None,
        ids: Iterable[int] | None = None,
        conditional: dict[str, Any] | None = None,
        rate: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Send dead letters back, each to its source queue. Returns how many."""
        return self._run(
            redriving.redrive, to=to, ids=ids, conditional=conditional, rate=rate, progress=progress
        )

    @documented(redriving.replay)
    def replay(
        self,
        *,
        to: str | None = None,
        ids: Iterable[int] | None = None,
        state: State | str | None = None,
        conditional: dict[str, Any] | None = None,
        rate: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Send archived messages again, to their queue or another. Returns how many."""
        return self._run(
            redriving.replay,
            to=to,
            ids=ids,
            state=state,
            conditional=conditional,
            rate=rate,
            progress=progress,
        )

    @documented(measuring.metrics)
    def metrics(self) -> Metrics:
        """Count the messages of one queue; see :class:`django_pgqueue.types.Metrics`."""
        return self._run(measuring.metrics)

    @twin_of(metrics)
    def ametrics(self, *args, **kwargs):
        return self.metrics(*args, **kwargs)

    @documented(maintenance.maintain)
    def maintain(
        self,
        *,
        patience: float = 1.0,
        stall: float = 0.1,
        progress: Callable[[int], None] | None = None,
    ) -> Maintained:
        """Maintain one queue: make partitions ahead, remove messages whose retention is over."""
        return self._run(
            lambda queue: maintenance.maintain(
                queue.source, patience=patience, stall=stall, progress=progress
            )
        )

    @documented(maintenance.repartition)
    def repartition(
        self,
        partition_interval: dt.timedelta | float | None,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> bool:
        """Partition a queue by time, or change the interval of its partitions."""
        return self._run(
            lambda queue: maintenance.repartition(
                queue.source, partition_interval, progress=progress
            )
        )

    def group(self, key: str) -> BoundGroup:
        """Return one group of the queue, to give it a limit, a rate or a pause of its own.

        Makes no query. To send a message to a group, pass ``group=key`` to :meth:`send`: that
        needs no call of this method.

        >>> queue("mails").group("customer 12").pause()

        Raises InvalidArgument.
        """
        return BoundGroup(self.name, key, using=self.using)

    def _open(self) -> OpenQueue:
        return Queue.objects.resolve(self._target, self.using).opened

    def _run(
        self,
        act: Callable[Concatenate[OpenQueue, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call a function of the engine. If the queue was dropped and re-created, call it again."""
        try:
            opened = self._open()
            try:
                return act(opened, *args, **kwargs)
            except DatabaseError as error:
                return act(reopened(opened, error), *args, **kwargs)
        except SynchronousOnlyOperation as error:
            raise self._in_async_code(act.__name__) from error

    def _messages(
        self,
        act: Callable[Concatenate[OpenQueue, P], Sequence[Delivery]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[M]:
        try:
            opened = self._open()
            try:
                found = act(opened, *args, **kwargs)
            except DatabaseError as error:
                opened = reopened(opened, error)
                found = act(opened, *args, **kwargs)
        except SynchronousOnlyOperation as error:
            raise self._in_async_code(act.__name__) from error
        messages: list[M] = self._model.from_deliveries(opened, found)
        return messages

    def _in_async_code(self, name: str) -> SynchronousOnlyOperation:
        """Return the error for an operation that was called in async code."""
        twin = f"{self!r}.a{name}(...)"
        if not hasattr(type(self), f"a{name}"):
            twin = f"sync_to_async({self!r}.{name})(...), with asgiref's sync_to_async"
        return SynchronousOnlyOperation(
            f"{self!r}.{name}() runs a query, which Django refuses in async code: await {twin}"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError for a name that does not exist, with the one that does."""
            if name in METHODS:
                advice = f". Use {METHODS[name]}"
                raise AttributeError(f"a queue has no {name!r}{advice}", name=name, obj=self)
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
            )
