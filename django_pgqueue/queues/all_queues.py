"""The operations on all queues of a database, and on topics."""

from __future__ import annotations

import datetime as dt
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, models

from django_pgqueue import maintenance, signals
from django_pgqueue.database.acting import operating
from django_pgqueue.database.runner import runner
from django_pgqueue.engine.habits import SEND, unexpected
from django_pgqueue.engine.metrics import measuring
from django_pgqueue.engine.topics import topic_pattern
from django_pgqueue.errors import QueueBusy, QueueInUse
from django_pgqueue.history.keep import keep_history
from django_pgqueue.queues import announcing
from django_pgqueue.queues.decorators import takes, twin_of
from django_pgqueue.tables.audit import AuditEntry
from django_pgqueue.tables.binding import Binding, route, send_to_each, with_key
from django_pgqueue.tables.process import Process
from django_pgqueue.tables.queue import Queue, QueueSettings, as_arguments, explained
from django_pgqueue.types import Delay, Maintained, Metrics, OnConflict, Sent, Until

if TYPE_CHECKING:
    from typing_extensions import Unpack

M = TypeVar("M", bound=models.Model)

#: ``maintain_all`` considers a consumer dead after this long without a heartbeat.
DEAD_AFTER = dt.timedelta(minutes=10)

_PACKAGE = str(Path(__file__).parents[1])


class QueuesManager(models.Manager[M]):
    """The operations of :class:`~django_pgqueue.queues.manager.MessageManager` on all queues."""

    @contextmanager
    def _on_database(self) -> Iterator[str]:
        """Yield the database alias. Inside the block, errors say what to do (:func:`explained`)."""
        alias = Queue.objects.database(self._db)
        try:
            yield alias
        except DatabaseError as error:
            raise explained(error, alias) from error.__cause__
        except SynchronousOnlyOperation as error:
            raise SynchronousOnlyOperation(
                "This operation runs queries, which Django refuses in async code: await the method "
                "whose name has an a in front, such as apublish(), or where there is none, await "
                "sync_to_async(method)(...)"
            ) from error

    @takes(QueueSettings)
    def create_queue(self, name: str, **settings: Unpack[QueueSettings]) -> Queue:
        """Make a queue. If it exists, return it unchanged.

        Concurrent calls are safe. The new queue is a part of the caller's transaction. A warning
        names the given settings that an existing queue has with other values: ``alter`` changes
        them.

        Arguments:
            name: 1 to 63 of the characters ``A-Z a-z 0-9 _ . -``, unique regardless of case.
            settings: the settings of the queue, each by its name.

        A length of time is a number of seconds or a timedelta.

        >>> Message.objects.create_queue("orders", visibility_timeout=60).name
        'orders'

        Raises InvalidQueueName, InvalidArgument, QueueNotFound for a missing dead-letter queue, and
        QueueMismatch if the queue exists with another ``unlogged`` or ``partition_interval``.
        """
        with self._on_database() as alias:
            queue, differs = Queue.create(name, alias, QueueSettings(**settings))
            warn_of(queue, differs, "create")
            return queue

    def list_queues(self) -> list[Queue]:
        """Return all queues, in the order of their names.

        >>> [queue.name for queue in Message.objects.list_queues()]
        ['mails', 'orders']
        """
        with self._on_database() as alias:
            return list(Queue.objects.using(alias).order_by("name"))

    def drop_queue(self, name: str | Queue) -> bool:
        """Drop a queue with its messages and its archive. Returns False if there is none.

        Waits up to ``LOCK_SECONDS`` for transactions that use its tables, and does not block other
        sessions while it waits.

        >>> Message.objects.drop_queue("orders")
        True

        Raises QueueBusy if those transactions take longer, and QueueInUse if the queue is the
        dead-letter queue of another one, or has subscriptions.
        """
        with self._on_database() as alias:
            if isinstance(name, Queue):
                alias, name = name.alias, name.name
            queue = Queue.objects.using(alias).named(name).first()
            if queue is None:
                return False
            sources, subscriptions = (
                ", ".join(others.order_by("name").values_list("name", flat=True))
                for others in (queue.sources, queue.subscriptions)
            )
            if sources or subscriptions:
                raise QueueInUse(queue.name, sources, subscriptions)
            queue.delete(using=alias)
            return True

    def metrics_all(self) -> list[Metrics]:
        """Return the metrics of all queues, in the order of their names.

        Runs one statement. Counts are exact up to a limit, which is lower with more queues. The
        number of archived messages comes from the server's statistics, which lag by seconds.

        >>> [each.queue_name for each in Message.objects.metrics_all()]
        ['mails', 'orders']
        """
        with self._on_database() as alias:
            return measuring.metrics_of_all(runner(alias))

    def maintain_all(
        self,
        queues: Iterable[str | Queue] | None = None,
        *,
        patience: float = 1.0,
        stall: float = 0.1,
        progress: Callable[[int], None] | None = None,
    ) -> list[Maintained]:
        """Run ``maintain`` for all queues, in the order of their names, or for the given queues.

        Also releases the messages of consumers without a heartbeat for ten minutes. Without
        ``queues`` it also maintains the history (``PGQUEUE["HISTORY_SECONDS"]``). If a queue fails,
        ``error`` of its result says why, and the other queues are still maintained.

        Arguments:
            queues: names or queues; None: all of the database.
            patience, stall: as for ``maintain``.
            progress: called with the number of messages removed so far.

        >>> [maintained.queue_name for maintained in Message.objects.maintain_all()]
        ['mails', 'orders']

        Raises QueueNotFound (before anything is done), InvalidArgument, and RuntimeError inside a
        transaction.
        """
        with self._on_database() as alias:
            if queues is None:
                with suppress(QueueBusy):
                    Queue.objects.finish_drops(alias, patience)
                chosen = self.list_queues()
            else:
                chosen = [Queue.objects.resolve(queue, alias) for queue in queues]
            for process, count in Process.objects.reap(DEAD_AFTER, using=alias).items():
                signals.leases_rescued.send_robust("maintain", count=count, worker=process)
            done: list[Maintained] = []

            def show(removed: int) -> None:
                if progress is not None:
                    progress(sum(each.removed for each in done) + removed)

            for queue in chosen:
                maintained = maintenance.maintain_or_tell(
                    queue, patience=patience, stall=stall, progress=show
                )
                if maintained is not None:
                    done.append(maintained)
            if queues is None:
                keep_history(alias)
                AuditEntry.objects.prune(alias)
            return done

    def bind(self, pattern: str, queue: str | Queue) -> bool:
        """Bind a pattern to a queue: the queue gets a copy of each message whose key matches.

        In a pattern ``*`` is one word of a key and ``#`` any number of words. Takes effect at the
        next publish, in every process. Returns False if the binding exists already.

        >>> Message.objects.bind("github.push.#", "builds")
        True

        Raises QueueNotFound, InvalidArgument.
        """
        with self._on_database() as alias:
            pattern = topic_pattern(pattern)
            found = Queue.objects.resolve(queue, alias)
            bindings = Binding.objects.using(found.alias)
            with operating(found.alias):
                _, created = bindings.get_or_create(pattern=pattern, queue_id=found.pk)
            return created

    def unbind(self, pattern: str, queue: str | Queue) -> bool:
        """Remove a binding. Returns False if there is none.

        >>> Message.objects.unbind("github.push.#", "builds")
        True

        Raises QueueNotFound, InvalidArgument.
        """
        with self._on_database() as alias:
            pattern = topic_pattern(pattern)
            found = Queue.objects.resolve(queue, alias)
            bindings = Binding.objects.using(found.alias)
            with operating(found.alias):
                deleted, _ = bindings.filter(pattern=pattern, queue_id=found.pk).delete()
            return deleted > 0

    def list_bindings(self, queue: str | Queue | None = None) -> list[Binding]:
        """Return all bindings, or those of one queue, ordered by pattern.

        >>> [(b.pattern, b.queue.name) for b in Message.objects.list_bindings()]
        [('github.push.#', 'builds')]

        Raises QueueNotFound.
        """
        with self._on_database() as alias:
            bindings = Binding.objects.using(alias).select_related("queue")
            if queue is not None:
                found = Queue.objects.resolve(queue, alias)
                bindings = bindings.using(found.alias).filter(queue_id=found.pk)
            return list(bindings.order_by("pattern", "queue__name"))

    def test_routing(self, key: str) -> dict[str, list[str]]:
        """Return the names of the queues that a key is routed to, with the matching patterns.

        >>> Message.objects.test_routing("github.push.main")
        {'builds': ['github.push.#']}

        Raises InvalidArgument.
        """
        with self._on_database() as alias:
            return {queue.name: sorted(patterns) for queue, patterns in route(alias, key)}

    def publish(
        self,
        /,
        key: str,
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
    ) -> dict[str, Sent]:
        """Send a copy of a message to each queue bound to the key. Returns the ids by queue name.

        Sends all copies or none, in the caller's transaction if there is one. A queue gets one copy
        even if several of its patterns match. If none match, nothing is sent. The header
        ``x-routing-key`` carries the key.

        Arguments:
            key: words of ``A-Z a-z 0-9 _ -`` joined by dots.
            body and the other arguments: as for ``send``, for each copy.

        >>> Message.objects.publish("github.push.main", {"commits": 3})
        {'builds': 7}

        Raises InvalidArgument, InvalidMessage.
        """
        if unknown:
            raise unexpected(self.publish, unknown, SEND)
        with self._on_database() as alias:
            return send_to_each(
                alias,
                key,
                announcing.send,
                body,
                headers=with_key(headers, key),
                delay=delay,
                expires=expires,
                priority=priority,
                group=group,
                unique=unique,
                until=until,
                on_conflict=on_conflict,
                max_wait=max_wait,
            )

    @twin_of(publish)
    def apublish(self, *args, **kwargs):
        return self.publish(*args, **kwargs)

    def publish_batch(
        self,
        /,
        key: str,
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
    ) -> dict[str, list[Sent]]:
        """Publish several messages with one key. Returns lists of ids by queue name.

        The arguments are those of ``send_batch``.

        >>> Message.objects.publish_batch("github.push.main", [{"commits": 3}, {"commits": 1}])
        {'builds': [8, 9]}

        Raises InvalidArgument, InvalidMessage.
        """
        if unknown:
            raise unexpected(self.publish_batch, unknown, SEND)
        with self._on_database() as alias:
            alike = headers is None or isinstance(headers, dict)
            keyed: Any = (
                with_key(headers, key) if alike else [with_key(each, key) for each in headers or ()]
            )
            return send_to_each(
                alias,
                key,
                announcing.send_batch,
                bodies,
                headers=keyed,
                delay=delay,
                expires=expires,
                priority=priority,
                group=group,
                unique=unique,
                until=until,
                on_conflict=on_conflict,
                max_wait=max_wait,
            )

    @twin_of(publish_batch)
    def apublish_batch(self, *args, **kwargs):
        return self.publish_batch(*args, **kwargs)


def warn_of(queue: Queue, differs: dict[str, Any] | None, operation: str) -> None:
    """Warn if an existing queue has other settings than were asked for: ``differs`` has these."""
    if differs:
        stored = {setting: getattr(queue, setting) for setting in differs}
        _warn(
            f"queue {queue.name!r} exists with {as_arguments(stored)}; {operation} does not "
            f"change it: queue({queue.name!r}).alter({as_arguments(differs)})"
        )


def _warn(text: str) -> None:
    """Warn at the line that called this package."""
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)
