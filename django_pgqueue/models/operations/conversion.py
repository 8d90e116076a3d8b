"""One leaf, slices of time, or slices of another length: changed while the queue is used."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, repeat
from typing import Any, Concatenate, ParamSpec, TypeVar

from django.db import DatabaseError, connections, transaction
from django_pgqueue.models.operations.base import MessageT, Operations, twin

from django_pgqueue import arguments, ddl
from django_pgqueue.conf import settings
from django_pgqueue.ddl import conversion
from django_pgqueue.errors import InvalidArgument, QueueConverting, QueueNotFound
from django_pgqueue.models.locks import KEPT, briefly, milliseconds, set_locally
from django_pgqueue.models.queue import Queue
from django_pgqueue.sqlstates import CHECK_VIOLATION, QUERY_CANCELED, UNDEFINED_TABLE, sqlstate

__all__ = ["Conversion", "Progress"]

P = ParamSpec("P")
R = TypeVar("R")
#: Called with what is being done ("check" or "copy"), how many of the rows are, and of how many.
Progress = Callable[[str, int, int], None]

BATCH = 10_000
LOWEST = -(2**63)

#: For how many seconds we stand in line at each try, with all others behind us, and how many they
#: have to themselves after it. The last is for all further tries.
TRIES = ((0.01, 0.05), (0.02, 0.1), (0.05, 0.2), (0.1, 0.5), (0.1, 1.0))

#: The old leaf goes on for so long as the first slice: time to look through its rows.
MARGIN = dt.timedelta(minutes=10)
#: It ends at the end of an hour, or of a slice if those are shorter.
LONGEST_STEP = dt.timedelta(hours=1)

# With a queue's id the key of an advisory lock: "pgqc".
_CONVERTING = 0x70677163


class Conversion(Operations[MessageT]):
    """Slices of time for a queue that has none, and back."""

    def repartition(
        self,
        queue: str | Queue,
        partition_interval: dt.timedelta | float | None,
        *,
        progress: Progress | None = None,
        using: str | None = None,
    ) -> bool:
        """Give a queue slices of that span of time, or with None one leaf; False if it has.

        Messages are sent, read and archived all the while; for the change itself everybody waits
        a moment (a try that waits for a tenth of a second is given up, and made again later).
        Into slices nothing is copied: what is there becomes the first slice, which ends after ten
        minutes or a little more. Back, all rows are copied in batches, and take the room twice
        until the end. Interrupted anywhere, the queue works on as it is, and the same call
        goes on; a call for what the queue is clears away what was begun.

        ``progress`` is called with ``"check"`` or ``"copy"``, the rows done, and their number as
        far as it is known.

        >>> Message.objects.repartition("orders", dt.timedelta(days=1))
        True

        Raises QueueNotFound, InvalidArgument, QueueBusy when others keep locks for
        ``LOCK_SECONDS``, QueueConverting, which is one, when they convert the queue too, and
        RuntimeError inside a transaction.
        """
        interval = arguments.span(partition_interval, "partition_interval")
        fresh = Queue.objects.reread(self.resolve(queue, using))
        with _alone(fresh):
            work = _Work(fresh, progress or (lambda step, done, total: None))
            try:
                changed = work.do(interval)
            except DatabaseError as error:
                if sqlstate(error) != UNDEFINED_TABLE or not work.is_dropped():
                    raise
                raise QueueNotFound(fresh.name, fresh.alias) from error
            finally:
                Queue.objects.forget(fresh)
        if isinstance(queue, Queue):
            queue.partition_interval = interval
        return changed

    arepartition = twin(repartition)


@contextmanager
def _alone(queue: Queue) -> Iterator[None]:
    """Let nobody else convert the queue, by a lock on a connection of its own.

    A session's lock would stay behind in a pooler; this one goes with its transaction, and that
    with the process.
    """
    connection = connections[queue.alias].copy()
    try:
        connection.set_autocommit(False)
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            cursor.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", [_CONVERTING, queue.pk])
            if cursor.fetchone() != (True,):
                raise QueueConverting(queue.name)
        yield
    finally:
        connection.close()


class _Work:
    """One conversion."""

    def __init__(self, queue: Queue, progress: Progress) -> None:
        self.queue = queue
        self.number = queue.pk
        self.connection = connections[queue.alias]
        self.progress = progress

    def do(self, interval: dt.timedelta | None) -> bool:
        sliced = self._do(conversion.is_sliced)
        if sliced and interval is None:
            self._into_one_leaf()
        elif not sliced and interval is not None:
            self._into_slices(interval)
        else:
            # Perhaps the other way was begun, and is not wanted any more.
            self._clear_away()
            if interval is None or interval == self.queue.partition_interval:
                return False
            self._into_other_slices(interval)
        return True

    def _into_other_slices(self, interval: dt.timedelta) -> None:
        self._briefly(
            self._lock_alone,
            lambda cursor: conversion.replace_slices(
                cursor, self.number, ddl.server_time(cursor), interval, unlogged=self.queue.unlogged
            ),
        )

    # Into slices

    def _into_slices(self, interval: dt.timedelta) -> None:
        switched = False
        while not switched:
            until = self._bound(interval)
            self._build(until, interval)
            switched = self._briefly(self._lock_alone, partial(self._switch, until, interval))

    def _bound(self, interval: dt.timedelta) -> dt.datetime:
        """See to it that all rows lie before a moment to come, and know it."""
        now = self._in_transaction(ddl.server_time)
        found = self._do(conversion.bounds)
        until = next((moment for moment, _ in found.values()), now)
        if until < now + MARGIN / 2:
            self._clear_away()
            found = {}
            until = _end_of_slice(now + MARGIN, min(interval, LONGEST_STEP))
        rows = self._estimate()
        done, total = 0, sum(rows.values())
        # First the messages: an outcome has the time of its message.
        for parent in conversion.PARENTS:
            self.progress("check", done, total)
            if parent not in found:
                self._briefly(
                    self._lock_own,
                    partial(conversion.add_bound, queue_id=self.number, parent=parent, until=until),
                )
            if not found.get(parent, (until, False))[1]:
                self._check(parent, until)
            done += rows[parent]
        self.progress("check", total, total)
        return until

    def _build(self, until: dt.datetime, interval: dt.timedelta) -> None:
        def build(cursor: Any) -> None:
            # Those of a run that was interrupted may have grown old.
            conversion.drop_conversion(cursor, self.number)
            now, unlogged = ddl.server_time(cursor), self.queue.unlogged
            conversion.build_slices(cursor, self.number, until, now, interval, unlogged=unlogged)

        self._in_transaction(build)

    def _check(self, parent: str, until: dt.datetime) -> None:
        try:
            self._do(conversion.check_bound, parent, until)
        except DatabaseError as error:
            if sqlstate(error) != CHECK_VIOLATION:
                raise
            self._clear_away()
            raise InvalidArgument(
                f"queue {self.queue.name!r} has messages dated {until} or later (enqueued_at), "
                f"which only somebody else can have written: slices begin there. Archive and "
                f"delete those first. Nothing was changed."
            ) from error

    def _switch(self, until: dt.datetime, interval: dt.timedelta, cursor: Any) -> bool:
        if ddl.server_time(cursor) >= until:
            return False  # it took too long to get here
        conversion.switch_to_slices(cursor, self.number, until, interval)
        return True

    # Back into one leaf

    def _into_one_leaf(self) -> None:
        begun = self._do(conversion.has_copy)
        # Nobody knows which slices were dropped since a copy was begun that we did not begin.
        known = set() if begun else self._in_transaction(self._leaves)
        if not begun:
            self._clear_away()
            unlogged = self.queue.unlogged
            self._briefly(
                lambda cursor: conversion.lock_tables(cursor, self.number, "SHARE ROW EXCLUSIVE"),
                lambda cursor: conversion.begin_copy(cursor, self.number, unlogged=unlogged),
            )
        self._copy()
        self._do(conversion.analyze_copy)
        switched = False
        while not switched:
            now = self._in_transaction(self._leaves)
            if not known or not known <= now:
                self._drop_strangers()
            known = now
            switched = self._briefly(
                self._lock_alone, partial(self._switch_back, known), before=self._forget_gone
            )
        self._clear_away()

    def _copy(self) -> None:
        done, total = 0, sum(self._estimate().values())
        self.progress("copy", 0, total)
        for parent in conversion.PARENTS:
            last = self._do(conversion.highest_id, parent)
            after: tuple[int, dt.datetime | None] = (LOWEST, None)
            copied = BATCH
            while copied == BATCH:
                copied, after = self._do(conversion.copy_rows, parent, after, last, BATCH)
                done += copied
                self.progress("copy", done, max(done, total))

    def _drop_strangers(self) -> None:
        for parent in conversion.PARENTS:
            after: int | None = LOWEST
            while after is not None:
                after = self._do(conversion.drop_strangers, parent, after, BATCH)

    def _forget_gone(self) -> None:
        for parent in conversion.PARENTS:
            known = BATCH
            while known == BATCH:  # what comes meanwhile is little, and left to the switch
                known = self._do(conversion.forget_gone, parent, BATCH)

    def _switch_back(self, known: set[ddl.Leaf], cursor: Any) -> bool:
        if not known <= self._leaves(cursor):
            return False  # a slice was dropped meanwhile, and fired no trigger
        for parent in conversion.PARENTS:
            conversion.forget_gone(cursor, self.number, parent)
        conversion.switch_to_copy(cursor, self.number, unlogged=self.queue.unlogged)
        return True

    # What both need

    def is_dropped(self) -> bool:
        """Whether the queue was dropped meanwhile; then nothing of ours stays either."""
        if Queue.objects.using(self.queue.alias).filter(pk=self.number).exists():
            return False
        self._do(conversion.drop_conversion)
        return True

    def _clear_away(self) -> None:
        if not self._do(conversion.is_begun):
            return
        self._briefly(
            self._lock_own, lambda cursor: conversion.stop_conversion(cursor, self.number)
        )
        self._do(conversion.drop_conversion)

    def _lock_own(self, cursor: Any) -> None:
        conversion.lock_tables(cursor, self.number, "ACCESS EXCLUSIVE")

    def _lock_alone(self, cursor: Any) -> None:
        conversion.lock_alone(cursor, self.number)

    def _leaves(self, cursor: Any) -> set[ddl.Leaf]:
        return set(ddl.leaves(cursor, self.number))

    def _estimate(self) -> dict[str, int]:
        return {parent: self._do(conversion.estimate, parent) for parent in conversion.PARENTS}

    def _do(
        self, step: Callable[Concatenate[Any, int, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """A step on the queue's tables, as a transaction of its own."""
        return self._in_transaction(lambda cursor: step(cursor, self.number, *args, **kwargs))

    def _in_transaction(self, act: Callable[[Any], R]) -> R:
        with transaction.atomic(using=self.queue.alias), self.connection.cursor() as cursor:
            set_locally(cursor, statement_timeout="0")
            return act(cursor)

    def _briefly(
        self,
        lock: Callable[[Any], None],
        act: Callable[[Any], R],
        before: Callable[[], None] = lambda: None,
    ) -> R:
        """Do what needs locks, without standing in line for them for long.

        ``before`` is what makes the time under the lock short; it is done before each try.
        """

        def attempt(stall: float) -> R:
            before()
            with transaction.atomic(using=self.queue.alias), self.connection.cursor() as cursor:
                # The one counts for each lock anew, the other for all of them.
                set_locally(
                    cursor, lock_timeout=milliseconds(stall), statement_timeout=milliseconds(stall)
                )
                lock(cursor)
                set_locally(cursor, statement_timeout="0")
                return act(cursor)

        tries = chain(TRIES, repeat(TRIES[-1]))
        kept = (*KEPT, QUERY_CANCELED)
        return briefly(attempt, tries, self.queue.name, settings.LOCK_SECONDS, kept)


def _end_of_slice(moment: dt.datetime, length: dt.timedelta) -> dt.datetime:
    """When the slice of that length ends that the moment is in, in whole seconds."""
    [(_, end)] = ddl.time_slices(moment, length, ahead=0)
    return end if end.microsecond == 0 else end.replace(microsecond=0) + dt.timedelta(seconds=1)
