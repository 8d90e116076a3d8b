"""Gives a queue that is in use partitions by time, or partitions of another interval.

Nothing is copied. The table of a queue without partitions becomes the first partition of a new
partitioned table, in three steps:

1. *bound*: a CHECK constraint says that all its rows lie before a moment ten minutes ahead or a
   little more, and PostgreSQL validates it while the queue is used;
2. *build*: the new table and its partitions from that moment on are made beside the old one;
3. *switch*: the new table takes the old one's name and place, and the old one becomes its first
   partition.

Build and switch are one transaction, of which only the switch holds locks that others wait for. An
interruption therefore leaves a bound and nothing else.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, repeat
from typing import Any, TypeVar

from django.db import DatabaseError, connections, transaction

from django_pgqueue import arguments
from django_pgqueue.conf import settings
from django_pgqueue.ddl.locks import KEPT, briefly, keep_vacuum_off, milliseconds, set_locally
from django_pgqueue.ddl.names import PARENTS, own_table, own_tables
from django_pgqueue.ddl.times import server_time
from django_pgqueue.errors import InvalidArgument, QueueConverting
from django_pgqueue.maintenance import bounds, rights
from django_pgqueue.maintenance.partitions import (
    Partition,
    create_partition,
    drop_partition,
    find_partitions,
    is_partitioned,
    make_partitioned,
    missing_ranges,
    time_ranges,
)
from django_pgqueue.maintenance.queues import StoredQueue
from django_pgqueue.sqlstates import CHECK_VIOLATION, QUERY_CANCELED, UNDEFINED_TABLE, sqlstate

__all__ = ["Progress", "repartition"]

R = TypeVar("R")
#: Called with the step ("check"), the rows that it has done, and of how many.
Progress = Callable[[str, int, int], None]

#: Per try: seconds to wait for the locks, while other sessions queue behind it, and seconds to
#: pause after it, so that they can go on. All further tries use the last pair.
TRIES = ((0.01, 0.05), (0.02, 0.1), (0.05, 0.2), (0.1, 0.5), (0.1, 1.0))

#: A new bound of the old table lies at least this far ahead, so that it can be validated in time.
MARGIN = dt.timedelta(minutes=10)
#: The bound is rounded up to a full hour, or to a full interval if intervals are shorter.
LONGEST_STEP = dt.timedelta(hours=1)

# The first key of the advisory lock ("pgqc"); the second is the queue's id.
_CONVERTING = 0x70677163


def repartition(
    queue: StoredQueue,
    partition_interval: dt.timedelta | float | None,
    *,
    progress: Progress | None = None,
) -> bool:
    """Partition a queue by time, or change the interval of its partitions.

    Returns False if the queue has this interval already. ``partition_interval`` is a timedelta or
    seconds, at least one second. None removes the remains of an interrupted call from a queue that
    has no partitions yet. ``progress`` is called with ``"check"``, the number of rows checked, and
    an estimate of all rows.

    The queue can be used meanwhile. The switch itself locks its tables for some milliseconds. A try
    waits at most a tenth of a second for the locks and is then repeated, for ``LOCK_SECONDS`` in
    all. After an interruption the queue works as before, and the same call continues. When the
    interval changes, partitions that hold messages stay.

    >>> queue("orders").repartition(dt.timedelta(days=1))
    True

    Raises QueueNotFound; InvalidArgument, also for None when the queue has partitions, and for
    messages dated in the future; QueueBusy when others keep their locks for ``LOCK_SECONDS``;
    QueueConverting, which is one, when another process converts the queue; RuntimeError inside a
    transaction.
    """
    interval = arguments.span(partition_interval, "partition_interval")
    with _only_converter(queue):
        fresh = queue.reread()
        try:
            changed = _change(fresh, interval, progress or (lambda step, done, total: None))
        except DatabaseError as error:
            if sqlstate(error) == UNDEFINED_TABLE:
                fresh.reread()  # says so when the queue was dropped meanwhile
            raise
    queue.partition_interval = interval
    return changed


@contextmanager
def _only_converter(queue: StoredQueue) -> Iterator[None]:
    """Keep other conversions of the queue out, by an advisory lock on a separate connection.

    The lock belongs to a transaction, which ends with the process. A session-level lock could
    outlive the process in a pooler.
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
        with suppress(DatabaseError):  # cut off, it holds no lock
            connection.rollback()  # now: the server may notice later that the connection is closed
        connection.close()


def _change(queue: StoredQueue, interval: dt.timedelta | None, progress: Progress) -> bool:
    partitioned = _do(queue, is_partitioned)
    if interval is None:
        if partitioned:
            raise InvalidArgument(
                f"queue {queue.name!r} has partitions and keeps them. For a queue without, make a "
                f"new one, let messages be sent there, and move what waits with "
                f"redrive({queue.name!r}, to=...); drop {queue.name!r} when its archive is not "
                f"needed any more"
            )
        _clear_away(queue)
        return False
    if not partitioned:
        _into_partitions(queue, interval, progress)
        return True
    if interval == queue.partition_interval:
        return False
    _briefly(queue, lock_own, partial(replace_partitions, queue=queue, interval=interval))
    return True


def _into_partitions(queue: StoredQueue, interval: dt.timedelta, progress: Progress) -> None:
    """Bound, build and switch. Starts over if the bound has passed before the switch."""
    while True:
        until = _bound(queue, interval, progress)
        own = {"queue_id": queue.pk, "until": until, "interval": interval}
        prepare = partial(build, unlogged=queue.unlogged, **own)
        try:
            return _briefly(queue, lock_alone, partial(_switch_in_time, **own), prepare)
        except _TooLate:
            pass  # the transaction of the build is rolled back


class _TooLate(Exception):
    """The bound has passed, so new rows would lie beyond it."""


def _switch_in_time(cursor: Any, queue_id: int, until: dt.datetime, interval: dt.timedelta) -> None:
    if server_time(cursor) >= until:
        raise _TooLate
    switch_tables(cursor, queue_id, until, interval)


# Step 1: the bound


def _bound(queue: StoredQueue, interval: dt.timedelta, progress: Progress) -> dt.datetime:
    """Make sure that all rows lie before a moment ahead, and return it.

    Adding a bound locks the queue's tables for the moment of a catalog change. Validating it reads
    all rows and blocks neither senders nor readers. A validated bound stays so after an
    interruption.
    """
    until, found = _moment(queue, interval)
    rows = {parent: _do(queue, estimate_rows, parent) for parent in PARENTS}
    done, total = 0, sum(rows.values())
    # Messages first: an outcome has its message's time, so its table must not refuse that time.
    for parent in PARENTS:
        progress("check", done, total)
        if parent not in found:
            add = partial(bounds.add_bound, queue_id=queue.pk, parent=parent, until=until)
            _briefly(queue, lock_own, add)
        if parent not in found or not found[parent].validated:
            _validate(queue, parent, until)
        done += rows[parent]
    progress("check", total, total)
    return until


def _moment(
    queue: StoredQueue, interval: dt.timedelta
) -> tuple[dt.datetime, dict[str, bounds.Bound]]:
    """The bound of an interrupted call with its existing constraints, or a new bound."""
    now = _do(queue, lambda cursor, _: server_time(cursor))
    found = _do(queue, bounds.find_bounds)
    for bound in found.values():
        if bound.until >= now + MARGIN / 2:
            return bound.until, found
    _clear_away(queue)
    return _end_of_range(now + MARGIN, min(interval, LONGEST_STEP)), {}


def _validate(queue: StoredQueue, parent: str, until: dt.datetime) -> None:
    try:
        _do(queue, bounds.validate_bound, parent, until)
    except DatabaseError as error:
        if sqlstate(error) != CHECK_VIOLATION:
            raise
        _clear_away(queue)
        raise InvalidArgument(
            f"queue {queue.name!r} has messages whose enqueued_at is {until} or later, which only "
            f"an INSERT with a time of its own writes: partitions begin there. Archive and delete "
            f"those first. Nothing was changed."
        ) from error


def _clear_away(queue: StoredQueue) -> None:
    """Remove the bounds that an interrupted call left, if there are any."""
    if _do(queue, bounds.find_bounds):
        _briefly(queue, lock_own, partial(bounds.drop_bounds, queue_id=queue.pk))


def _end_of_range(moment: dt.datetime, length: dt.timedelta) -> dt.datetime:
    """The end of the range of this length around the moment, in whole seconds."""
    [(_, end)] = time_ranges(moment, length, ahead=0)
    return end if end.microsecond == 0 else end.replace(microsecond=0) + dt.timedelta(seconds=1)


def estimate_rows(cursor: Any, queue_id: int, parent: str) -> int:
    """The number of rows of a queue's table, by its statistics."""
    cursor.execute(
        "SELECT coalesce(pg_stat_get_live_tuples(to_regclass(%s)), 0)",
        [own_table(parent, queue_id)],
    )
    (rows,) = cursor.fetchone()
    return int(rows)


# Steps 2 and 3: build and switch


def build(
    cursor: Any, queue_id: int, until: dt.datetime, interval: dt.timedelta, *, unlogged: bool
) -> None:
    """Make the partitioned tables beside those of the queue, with partitions from the bound on.

    Locks nothing that senders or readers wait for.
    """
    message, archive = own_tables(queue_id)
    parents = f"{message}_new", f"{archive}_new"
    for parent, table in zip(PARENTS, parents, strict=True):
        make_partitioned(cursor, table, parent, queue_id, unlogged=unlogged)
    old = Partition(message, archive, True, None, until)
    now = max(server_time(cursor), until)
    for start, end in missing_ranges([old], now, interval):
        create_partition(cursor, queue_id, start, end, unlogged=unlogged, parents=parents)


def switch_tables(cursor: Any, queue_id: int, until: dt.datetime, interval: dt.timedelta) -> None:
    """Rename the new tables to the queue's, and attach the old ones as their first partitions.

    Needs ACCESS EXCLUSIVE on all of them. Thanks to the validated bound no rows are read.
    """
    number = int(queue_id)
    for parent in PARENTS:
        table = own_table(parent, number)
        first = f"{table}_until_{until.astimezone(dt.timezone.utc):{bounds.SECONDS}}"
        rights.copy(cursor, table, f"{table}_new")
        cursor.execute(f"ALTER TABLE {parent} DETACH PARTITION {table}")
        cursor.execute(f"ALTER TABLE {table} RENAME TO {first}")
        cursor.execute(f"ALTER TABLE {table}_new RENAME TO {table}")
        cursor.execute(
            f"ALTER TABLE {table} ATTACH PARTITION {first} "
            f"FOR VALUES FROM (MINVALUE) TO ('{until.isoformat()}')"
        )
        cursor.execute(f"ALTER TABLE {parent} ATTACH PARTITION {table} FOR VALUES IN ({number})")
        cursor.execute(f"ALTER TABLE {first} DROP CONSTRAINT {bounds.constraint_name(until)}")
    bounds.drop_function(cursor, number)
    _set_interval(cursor, number, interval)


# Another interval


def replace_partitions(cursor: Any, queue: StoredQueue, interval: dt.timedelta) -> None:
    """Replace empty future partitions with ones of the new interval. Rows stay.

    One transaction, under ACCESS EXCLUSIVE on all of the queue's tables.
    """
    now = server_time(cursor)
    kept = []
    for partition in find_partitions(cursor, queue.pk):
        if partition.start is not None and partition.start > now and _is_empty(cursor, partition):
            drop_partition(cursor, partition)
        else:
            kept.append(partition)
    defaults = [partition for partition in kept if not partition.has_range]
    for start, end in missing_ranges(kept, now, interval):
        # A range with rows in the default partition is left to a later round of maintenance.
        if not any(_has_rows_from(cursor, default, start) for default in defaults):
            create_partition(cursor, queue.pk, start, end, unlogged=queue.unlogged)
    _set_interval(cursor, queue.pk, interval)


def _is_empty(cursor: Any, partition: Partition) -> bool:
    cursor.execute(
        f"SELECT NOT EXISTS (SELECT FROM {partition.message}) "
        f"AND NOT EXISTS (SELECT FROM {partition.archive})"
    )
    (empty,) = cursor.fetchone()
    return bool(empty)


def _has_rows_from(cursor: Any, partition: Partition, start: dt.datetime) -> bool:
    cursor.execute(
        f"SELECT EXISTS (SELECT FROM {partition.message} WHERE enqueued_at >= %(start)s) "
        f"OR EXISTS (SELECT FROM {partition.archive} WHERE enqueued_at >= %(start)s)",
        {"start": start},
    )
    (found,) = cursor.fetchone()
    return bool(found)


def _set_interval(cursor: Any, queue_id: int, interval: dt.timedelta) -> None:
    cursor.execute(
        "UPDATE pgqueue_queue SET partition_interval = %s WHERE id = %s", [interval, queue_id]
    )


# How a step is run


def _do(queue: StoredQueue, step: Callable[..., R], *args: Any) -> R:
    """Run a step that blocks no other sessions, in its own transaction."""
    with (
        transaction.atomic(using=queue.alias),
        connections[queue.alias].cursor() as cursor,
    ):
        set_locally(cursor, statement_timeout="0")
        return step(cursor, queue.pk, *args)


def _briefly(
    queue: StoredQueue,
    lock: Callable[[Any, int], None],
    act: Callable[[Any], R],
    prepare: Callable[[Any], None] = lambda cursor: None,
) -> R:
    """Run a step that locks the queue's tables, waiting for the lock in short tries.

    ``prepare`` runs before the lock is requested, in the same transaction.
    """

    def attempt(stall: float) -> R:
        with (
            transaction.atomic(using=queue.alias),
            connections[queue.alias].cursor() as cursor,
        ):
            set_locally(cursor, statement_timeout="0")
            keep_vacuum_off(cursor, own_tables(queue.pk))
            prepare(cursor)
            # lock_timeout applies to each lock, statement_timeout to all of them.
            set_locally(
                cursor, lock_timeout=milliseconds(stall), statement_timeout=milliseconds(stall)
            )
            lock(cursor, queue.pk)
            set_locally(cursor, statement_timeout="0")
            return act(cursor)

    tries = chain(TRIES, repeat(TRIES[-1]))
    kept = (*KEPT, QUERY_CANCELED)
    return briefly(attempt, tries, queue.name, settings.LOCK_SECONDS, kept)


def lock_own(cursor: Any, queue_id: int) -> None:
    """Lock the queue's tables and their partitions; other queues go on."""
    cursor.execute(f"LOCK TABLE {', '.join(own_tables(queue_id))} IN ACCESS EXCLUSIVE MODE")


def lock_alone(cursor: Any, queue_id: int) -> None:
    """Lock the queue's tables and the parents they are attached to; other queues wait too.

    In one statement, so that its ``statement_timeout`` is for all of them.
    """
    tables = [f"ONLY {parent}, {own_table(parent, queue_id)}" for parent in PARENTS]
    cursor.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")
