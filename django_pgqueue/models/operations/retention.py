"""Retention: old archived messages go, and time leaves come before they are needed."""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from django.db import DatabaseError, Error, connections, transaction
from django.utils.timezone import is_naive, make_aware

from django_pgqueue import ddl, queries, signals
from django_pgqueue.errors import InvalidArgument, QueueBusy, QueueNotFound
from django_pgqueue.models.export import Lake, PurgeMark
from django_pgqueue.models.locks import briefly, milliseconds, settings_for
from django_pgqueue.models.operations.base import MessageT, Operations, twin
from django_pgqueue.models.process import Process
from django_pgqueue.models.queue import Queue
from django_pgqueue.sqlstates import (
    CHECK_VIOLATION,
    LOCK_NOT_AVAILABLE,
    QUERY_CANCELED,
    sqlstate,
)
from django_pgqueue.types import Upkeep

__all__ = ["Retention", "is_lost"]

R = TypeVar("R")

#: So many outcomes go in one transaction, out of a stretch of so many pages of the table.
BATCH = 2000
PAGES = 1024
KEYS = 5000

#: A consumer without a heartbeat for so long is gone, wherever it ran and whatever it was told.
DEAD_AFTER = dt.timedelta(minutes=10)

#: How far in the future the rest of the present span begins, when its messages have begun to
#: fill the default leaf.
MARGIN = dt.timedelta(seconds=2)

#: What PostgreSQL looks through in a second, at the very least.
BYTES_A_SECOND = 500_000_000

#: Seconds; a timeout has to fit into an integer of milliseconds.
LONGEST = 100_000

REPAIR_WAKE = (
    "SELECT pgqueue_repair_wake(%s) "
    "WHERE has_function_privilege('pgqueue_repair_wake(integer)', 'EXECUTE')"
)

SUMMARIZE = """
    SELECT brin_summarize_new_values(i.indexrelid)
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
    WHERE i.indrelid = %s::regclass AND a.amname = 'brin'
"""


class Retention(Operations[MessageT]):
    """What has to be done to queues now and then. Consumers see to it by themselves."""

    def maintain(
        self,
        queue: str | Queue,
        *,
        patience: float = 1.0,
        stall: float = 0.1,
        progress: Callable[[int], None] | None = None,
        using: str | None = None,
    ) -> Upkeep:
        """Look after one queue: make leaves ahead, remove what its retention is over for.

        An archived message goes when it was archived longer ago than ``queue.retention``, with its
        body and outcome. Leaves of time are dropped as a whole once all in them may go; elsewhere,
        and where that cannot be, messages go in small batches. What lives is never touched, and
        what lakes wait for is kept. Each step is a transaction of its own, so whenever it is
        interrupted, all before stays done. Safe beside everything, itself included.

        It never stands in line for a lock so that others would wait behind it for longer than
        ``stall`` (seconds), and tries for ``patience`` (seconds) before it leaves a step to the
        next time. ``progress`` is called again and again, with the number of messages removed.

        >>> Message.objects.maintain("orders").dropped
        120000

        Raises QueueNotFound, InvalidArgument, and RuntimeError inside a transaction.
        """
        if not 0 <= patience < LONGEST:
            raise InvalidArgument(f"patience must be a number of seconds, not {patience!r}")
        if not 0.001 <= stall < LONGEST:
            raise InvalidArgument(f"stall must be seconds, at least 0.001, not {stall!r}")
        fresh = Queue.objects.reread(self.resolve(queue, using))
        work = _Work(fresh, patience, stall, progress or (lambda done: None))
        upkeep = work.do()
        signals.queue_maintained.send_robust(fresh.name, queue=fresh, upkeep=upkeep)
        return upkeep

    def maintain_all(
        self,
        queues: Iterable[str | Queue] | None = None,
        *,
        patience: float = 1.0,
        stall: float = 0.1,
        progress: Callable[[int], None] | None = None,
        using: str | None = None,
    ) -> list[Upkeep]:
        """:meth:`maintain` of every queue, by name, or of those named.

        Besides, what consumers held that are dead for ten minutes is given back. A queue that
        fails does not keep the others from their turn: its ``error`` tells why.

        >>> [upkeep.queue_name for upkeep in Message.objects.maintain_all()]
        ['mails', 'orders']

        Raises QueueNotFound, before anything is done, and InvalidArgument.
        """
        alias = Queue.objects.database(using or self._db)
        chosen = (
            list(Queue.objects.using(alias).order_by("name"))
            if queues is None
            else [self.resolve(queue, alias) for queue in queues]
        )
        for worker, count in Process.objects.bury_dead(DEAD_AFTER, using=alias).items():
            signals.leases_rescued.send_robust("maintain", count=count, worker=worker)
        done: list[Upkeep] = []
        removed = 0

        def show(so_far: int) -> None:
            if progress is not None:
                progress(removed + so_far)

        for queue in chosen:
            try:
                upkeep = self.maintain(queue, patience=patience, stall=stall, progress=show)
            except QueueNotFound:
                continue  # dropped meanwhile
            except Error as error:
                if is_lost(alias):
                    raise  # the next one would fare no better
                signals.maintenance_failed.send_robust(queue.name, queue=queue, error=error)
                upkeep = Upkeep(queue_name=queue.name, error=str(error).strip())
            removed += upkeep.removed
            done.append(upkeep)
        return done

    amaintain = twin(maintain)
    amaintain_all = twin(maintain_all)


def is_lost(alias: str) -> bool:
    """Whether this thread's connection is gone, rather than that a statement failed."""
    connection = connections[alias].connection
    return connection is None or bool(connection.closed)


class _Work:
    """One round of one queue."""

    def __init__(
        self, queue: Queue, patience: float, stall: float, progress: Callable[[int], None]
    ) -> None:
        self.queue = queue
        self.alias = queue.alias
        self.patience = patience
        self.stall = stall
        self.progress = progress
        self.counts: Counter[str] = Counter()

    def do(self) -> Upkeep:
        began = time.monotonic()
        before, refused = None, False
        # Wake-ups work without its sequence, but are not spaced.
        self._rows(REPAIR_WAKE, [self.queue.pk])
        if self.queue.partition_interval is not None:
            self._make_slices(self.queue.partition_interval)
        if self.queue.retention is not None:
            before, refused = self._expired_before(self.queue.retention)
            if before is not None:
                self._drop_slices(before)
                self._prune(before)
        self._sweep_keys()
        counts: dict[str, Any] = dict(self.counts)
        return Upkeep(
            queue_name=self.queue.name,
            before=before,
            refused=refused,
            seconds=time.monotonic() - began,
            **counts,
        )

    # Leaves ahead

    def _make_slices(self, interval: dt.timedelta) -> None:
        leaves = self._leaves()
        defaults = [leaf for leaf in leaves if not leaf.is_slice]
        if defaults and defaults[0].message == self.queue.tables["message"]:
            return  # the tables have no partitions
        now = self._now()
        # Messages that fell into the default leaf stay there: to move them would be to write them
        # again. So the present span gets a leaf for its rest only.
        used = any(self._seconds_to_read(leaf) > 0 for leaf in defaults)
        not_before = now.replace(microsecond=0) + MARGIN if used else None
        missing = ddl.missing_slices(leaves, now, interval, not_before)
        if any(self._seconds_to_read(leaf) > self.stall for leaf in defaults):
            # Attaching a leaf looks through the default one, and everybody would wait for that.
            self.counts["spans_in_default"] += len(missing)
            return
        for span in missing:

            def make(cursor: Any, span: tuple[dt.datetime, dt.datetime] = span) -> int:
                ddl.lock_slices(cursor, self.queue.pk)
                found = ddl.leaves(cursor, self.queue.pk)
                if span not in ddl.missing_slices(found, now, interval, not_before):
                    return 0  # somebody else was faster
                ddl.create_slice(cursor, self.queue.pk, *span, unlogged=self.queue.unlogged)
                return 1

            try:
                self.counts["leaves_made"] += self._briefly(make)
            except QueueBusy:
                self.counts["busy"] += 1
                return
            except DatabaseError as error:
                if sqlstate(error) != CHECK_VIOLATION:
                    raise
                self.counts["spans_in_default"] += 1
            self._tell()

    def _seconds_to_read(self, leaf: ddl.Leaf) -> float:
        sizes = "SELECT pg_relation_size(%s::regclass) + pg_relation_size(%s::regclass)"
        [(size,)] = self._rows(sizes, [leaf.message, leaf.archive])
        return float(size or 0) / BYTES_A_SECOND

    # Leaves whose time is over

    def _expired_before(self, retention: dt.timedelta) -> tuple[dt.datetime | None, bool]:
        """What was archived before that moment may go, and whether somebody refused altogether."""
        try:
            before = self._now() - retention
        except OverflowError:
            return None, False
        for _, answer in signals.retention_due.send_robust(
            self.queue.name, queue=self.queue, before=before
        ):
            # One that fails to answer might have refused.
            if answer is False or isinstance(answer, Exception):
                return None, True
            if isinstance(answer, dt.datetime):
                before = min(before, make_aware(answer) if is_naive(answer) else answer)
        return before, False

    def _drop_slices(self, before: dt.datetime) -> None:
        for leaf in self._leaves():
            if not leaf.is_slice or leaf.end is None or leaf.end > before:
                continue
            try:
                if not self._drop_slice(leaf, before):
                    continue
            except QueueBusy:
                self.counts["busy"] += 1
                return  # they would be in the way of the next one too
            except DatabaseError as error:
                if sqlstate(error) == LOCK_NOT_AVAILABLE:  # autovacuum is at it, perhaps
                    self.counts["busy"] += 1
                elif leaf in self._leaves():
                    raise  # otherwise somebody else was faster
            self._tell()

    def _drop_slice(self, leaf: ddl.Leaf, before: dt.datetime) -> bool:
        """Drop a leaf if all in it may go.

        Looks without a lock first, since that may take its time; under the lock only what can
        have changed since is looked at again.
        """
        newest = f"SELECT archived_at < %s FROM {leaf.archive} ORDER BY id DESC LIMIT 1"
        if self._rows(newest, [before]) == [(False,)]:
            return False
        if self._lives_in(leaf):
            self.counts["stragglers"] += 1
            return False
        exported_below = Lake.objects.exported_below(self.queue)
        params = {"before": before, "exported_below": exported_below}
        with (
            transaction.atomic(using=self.alias, durable=True),
            connections[self.alias].cursor() as cursor,
            settings_for(cursor, statement_timeout="0", lock_timeout=milliseconds(self.patience)),
        ):
            # All of a leaf is read, which is in nobody's way. So that it need not be under the
            # lock, its index is brought up to date first.
            cursor.execute(SUMMARIZE, [leaf.archive])
            [(count, all_old, last_xid, held, recent, xmin)] = self._query(
                "leaf_outcomes", leaf, params
            )
        if not all_old:
            return False
        if held:
            if not self._is_overdue(leaf, before):
                self.counts["held"] += held  # otherwise pruning counts them
            return False

        def drop(cursor: Any) -> bool:
            if not ddl.lock_slice_alone(cursor, self.queue.pk, leaf):
                return False
            # What is new is found by an index, whatever the planner thinks of a young table.
            with settings_for(cursor, enable_seqscan="off"):
                new = f"SELECT count(*) FROM {leaf.archive} WHERE archive_xid >= %s"
                if self._rows(new, [xmin]) != [(recent,)] or self._lives_in(leaf):
                    return False
            limit = Lake.objects.exported_below(self.queue)
            if limit is not None and last_xid is not None and last_xid >= limit:
                return False
            ddl.drop_slice(cursor, leaf)
            if last_xid is not None:
                PurgeMark.objects.raise_to(self.queue, last_xid + 1)
            return True

        dropped = self._briefly(drop)
        if dropped:
            self.counts["leaves_dropped"] += 1
            self.counts["dropped"] += count
        return dropped

    def _lives_in(self, leaf: ddl.Leaf) -> bool:
        params = {"start": leaf.start, "end": leaf.end}
        return bool(self._query("stragglers", leaf, params)[0][0])

    def _is_overdue(self, leaf: ddl.Leaf, before: dt.datetime) -> bool:
        """Whether old messages in a leaf do not wait for it to be dropped.

        They have waited for as long as its span is; or it is none that has both ends, and what is
        in it may be of very different age.
        """
        if leaf.start is None or leaf.end is None:
            return True
        return leaf.end + (leaf.end - leaf.start) <= before

    # Messages one by one

    def _prune(self, before: dt.datetime) -> None:
        for leaf in self._leaves():
            if not self._is_overdue(leaf, before):
                continue
            try:
                self._prune_leaf(leaf, before)
            except DatabaseError:
                if leaf in self._leaves():
                    raise

    def _prune_leaf(self, leaf: ddl.Leaf, before: dt.datetime) -> None:
        pages = "SELECT pg_relation_size(%s::regclass) / current_setting('block_size')::bigint"
        [(size,)] = self._rows(pages, [leaf.archive])
        page = 0
        first = "(0,0)"
        while page < (size or 0):
            params = {
                "first": first,
                "end": f"({page + PAGES},0)",
                "before": before,
                "batch": BATCH,
            }
            with transaction.atomic(using=self.alias, durable=True):
                params["exported_below"] = Lake.objects.exported_below(self.queue)
                [(gone, last_xid, held, found, last)] = self._query("expire", leaf, params)
                if gone:
                    PurgeMark.objects.raise_to(self.queue, last_xid + 1)
            self.counts["pruned"] += gone
            self.counts["held"] += held
            if found == BATCH:
                place, _, line = last.strip("()").partition(",")
                page, first = int(place), f"({place},{int(line) + 1})"
            else:
                page += PAGES
                first = f"({page},0)"
            self._tell()

    def _sweep_keys(self) -> None:
        while True:
            swept = len(self._query("sweep_keys", None, {"batch": KEYS}))
            self.counts["keys"] += swept
            if swept < KEYS:
                return
            self._tell()

    # How

    def _tell(self) -> None:
        self.progress(self.counts["dropped"] + self.counts["pruned"])

    def _leaves(self) -> list[ddl.Leaf]:
        with connections[self.alias].cursor() as cursor:
            return ddl.leaves(cursor, self.queue.pk)

    def _now(self) -> dt.datetime:
        with connections[self.alias].cursor() as cursor:
            return ddl.server_time(cursor)

    def _rows(self, sql: str, params: Any = None) -> list[tuple[Any, ...]]:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(sql, params)
            return cursor.fetchall()

    def _query(
        self, name: str, leaf: ddl.Leaf | None, params: dict[str, Any]
    ) -> list[tuple[Any, ...]]:
        tables = self.queue.tables
        if leaf is not None:
            tables = {**tables, "message": leaf.message, "archive": leaf.archive}
        return self._rows(queries.render(name, tables), params)

    def _briefly(self, act: Callable[[Any], R]) -> R:
        """Do something that needs locks, in a transaction of its own.

        It asks for a short moment and then, a pause later, for a longer one: whoever has to wait
        behind it waits for a tenth of the time at most.
        """

        def attempt(stall: float) -> R:
            with (
                transaction.atomic(using=self.alias, durable=True),
                connections[self.alias].cursor() as cursor,
                settings_for(
                    cursor,
                    lock_timeout=milliseconds(stall),
                    statement_timeout=milliseconds(self.stall * 5),
                ),
            ):
                return act(cursor)

        try:
            return briefly(attempt, self._tries(), self.queue.name, self.patience)
        except DatabaseError as error:
            if sqlstate(error) != QUERY_CANCELED:
                raise
            # It would take too long to work under the lock.
            raise QueueBusy(self.queue.name, self.patience) from error

    def _tries(self) -> Iterator[tuple[float, float]]:
        stall = min(0.005, self.stall)
        while True:
            yield stall, stall * 10
            stall = min(stall * 2, self.stall)
            self._tell()
