"""Partitions a queue by time, or changes the interval of its partitions, while it is used.

No row is copied. The table of a queue without partitions becomes the first partition of a new
partitioned table, in three steps:

1. *bound*: add and validate a CHECK constraint that all rows are older than some time, at least ten
   minutes ahead;
2. *build*: make the new table beside the old one, with partitions from that time on;
3. *switch*: give the new table the old one's name, and attach the old one as first partition.

Build and switch are one transaction. Only the switch holds locks that other sessions wait for. An
interruption leaves only the bound.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, repeat
from typing import Any, TypeVar

from django.db import DatabaseError, connections, transaction

from django_pgqueue.conf import settings
from django_pgqueue.database.acting import tell_actor
from django_pgqueue.database.locks import KEPT, briefly, keep_vacuum_off, milliseconds, set_locally
from django_pgqueue.ddl import grants
from django_pgqueue.engine import arguments
from django_pgqueue.engine.names import PARENTS, own_table, own_tables
from django_pgqueue.engine.sqlstates import (
    CHECK_VIOLATION,
    QUERY_CANCELED,
    UNDEFINED_TABLE,
    sqlstate,
)
from django_pgqueue.engine.times import server_time
from django_pgqueue.errors import InvalidArgument, QueueConverting
from django_pgqueue.maintenance import bounds, sources
from django_pgqueue.maintenance.partitions import (
    Partition,
    create_partition,
    drop_partition,
    fetch_value,
    find_partitions,
    is_partitioned,
    make_partitioned,
    missing_ranges,
    time_ranges,
)
from django_pgqueue.maintenance.stored_queue import StoredQueue

R = TypeVar("R")
#: Takes the number of rows checked, and an estimate of all rows.
Progress = Callable[[int, int], None]

#: For each try, the seconds to wait for the locks, and the seconds to pause after it. Other
#: sessions wait while a try waits, and proceed in its pause. The last pair is repeated.
TRIES = ((0.01, 0.05), (0.02, 0.1), (0.05, 0.2), (0.1, 0.5), (0.1, 1.0))

#: A new bound lies at least this far ahead, so that there is time to validate it.
MARGIN = dt.timedelta(minutes=10)
#: A bound is rounded up to a full hour, or to a full interval if that is shorter; in any case to a
#: full second.
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

    Returns False if the queue has this interval already. The queue can be used meanwhile: its
    tables are locked for some milliseconds. Each try waits for the locks for at most a tenth of a
    second; tries are repeated for ``LOCK_SECONDS``. After an interruption the queue works as
    before, and the same call continues. Partitions that hold messages keep their interval.

    Arguments:
        partition_interval: a timedelta or seconds, at least one second. None removes the remains
            of an interrupted call from a queue that has no partitions yet.
        progress: called with the number of rows checked, and an estimate of all rows.

    >>> queue("orders").repartition(dt.timedelta(days=1))
    True

    Raises QueueNotFound; InvalidArgument for an invalid interval, for None if the queue has
    partitions, and for messages dated in the future; QueueBusy if other sessions keep the tables
    locked; QueueConverting (a QueueBusy) if another process converts the queue; RuntimeError inside
    a transaction.
    """
    interval = arguments.span(partition_interval, "partition_interval")
    with _only_converter(queue):
        fresh = queue.reread()
        if fresh.source_id is not None:
            raise InvalidArgument(
                f"queue {queue.name!r} is a subscription, which has no partitions by time: its "
                f"messages are in its source. Partition that one"
            )
        try:
            changed = _change(fresh, interval, progress or (lambda done, total: None))
        except DatabaseError as error:
            if sqlstate(error) == UNDEFINED_TABLE:
                fresh.reread()  # raises QueueNotFound if the queue was dropped
            raise
    queue.partition_interval = interval
    return changed


@contextmanager
def _only_converter(queue: StoredQueue) -> Iterator[None]:
    """Prevent other conversions of the queue by an advisory lock on a separate connection.

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
        with suppress(DatabaseError):  # a lost connection holds no lock
            connection.rollback()  # releases the lock at once; closing may release it later
        connection.close()


def _change(queue: StoredQueue, interval: dt.timedelta | None, progress: Progress) -> bool:
    partitioned = _do(queue, is_partitioned)
    if interval is None:
        if partitioned:
            raise InvalidArgument(
                f"queue {queue.name!r} is partitioned and cannot be unpartitioned. Make a new "
                f"queue without partitions, send new messages to it, and move the old ones with "
                f"queue({queue.name!r}).redrive(to=...). Drop {queue.name!r} when its archive is "
                f"not needed any more"
            )
        _clear_away(queue)
        return False
    if not partitioned:
        _into_partitions(queue, interval, progress)
        return True
    if interval == queue.partition_interval:
        return False
    _briefly(queue, lock_own, replace_partitions, interval, queue.unlogged)
    return True


def _into_partitions(queue: StoredQueue, interval: dt.timedelta, progress: Progress) -> None:
    """Bound, build and switch. Start over if the bound's time passes before the switch."""
    while True:
        until = _bound(queue, interval, progress)
        new = partial(build, until=until, interval=interval, unlogged=queue.unlogged)
        with suppress(_TooLate):  # the build was rolled back: start over
            return _briefly(queue, lock_alone, switch_tables, until, interval, first=new)


class _TooLate(Exception):
    """The bound's time has passed before the switch."""


# Step 1: the bound


def _bound(queue: StoredQueue, interval: dt.timedelta, progress: Progress) -> dt.datetime:
    """Add a validated bound to each table, and return its time."""
    until = _moment(queue, interval)
    found = _do(queue, bounds.find_bounds)
    rows = {parent: _do(queue, estimate_rows, parent) for parent in PARENTS}
    done, total = 0, sum(rows.values())
    # Messages get their bound before outcomes do: an outcome has its message's enqueued_at, and
    # the archive's bound must not refuse the outcome.
    for parent in PARENTS:
        progress(done, total)
        if parent not in found:
            _briefly(queue, lock_own, bounds.add_bound, parent, until)
        _validate(queue, parent, until)
        done += rows[parent]
    progress(total, total)
    return until


def _moment(queue: StoredQueue, interval: dt.timedelta) -> dt.datetime:
    """Return the time for the bounds. Reuses an interrupted call's if MARGIN / 2 or more ahead."""
    now = _do(queue, lambda cursor, _: server_time(cursor))
    for until in _do(queue, bounds.find_bounds).values():
        if until >= now + MARGIN / 2:
            return until
    _clear_away(queue)
    [(_, end)] = time_ranges(now + MARGIN, min(interval, LONGEST_STEP), ahead=0)
    if end.microsecond:
        end = end.replace(microsecond=0) + dt.timedelta(seconds=1)
    return end


def _validate(queue: StoredQueue, parent: str, until: dt.datetime) -> None:
    try:
        _do(queue, bounds.validate_bound, parent, until)
    except DatabaseError as error:
        if sqlstate(error) != CHECK_VIOLATION:
            raise
        _clear_away(queue)
        raise InvalidArgument(
            f"queue {queue.name!r} has messages whose enqueued_at is {until} or later. Only an "
            f"INSERT that sets enqueued_at writes such times. Archive and delete these messages "
            f"first: partitions begin at that time. Nothing was changed."
        ) from error


def _clear_away(queue: StoredQueue) -> None:
    """Remove the bounds that an interrupted call left."""
    if _do(queue, bounds.find_bounds):
        _briefly(queue, lock_own, bounds.drop_bounds)


def estimate_rows(cursor: Any, queue_id: int, parent: str) -> int:
    """Return the number of rows of a queue's table, from its statistics."""
    rows = "SELECT coalesce(pg_stat_get_live_tuples(to_regclass(%s)), 0)"
    return int(fetch_value(cursor, rows, [own_table(parent, queue_id)]))


# Steps 2 and 3: build and switch


def build(
    cursor: Any, queue_id: int, until: dt.datetime, interval: dt.timedelta, unlogged: bool
) -> None:
    """Make partitioned tables beside the queue's tables, with partitions from the bound on."""
    message, archive = own_tables(queue_id)
    parents = f"{message}_new", f"{archive}_new"
    for parent, table in zip(PARENTS, parents, strict=True):
        make_partitioned(cursor, table, parent, queue_id, unlogged=unlogged)
    old = Partition(message, archive, True, None, until)
    now = max(server_time(cursor), until)
    for start, end in missing_ranges([old], now, interval):
        create_partition(cursor, queue_id, start, end, unlogged=unlogged, parents=parents)


def switch_tables(cursor: Any, queue_id: int, until: dt.datetime, interval: dt.timedelta) -> None:
    """Give the new tables the queue's table names, and attach the old tables as first partitions.

    The caller holds ACCESS EXCLUSIVE on all of them. No rows are read, since the bound is
    validated. Raises _TooLate after ``until``.
    """
    if server_time(cursor) >= until:
        raise _TooLate
    number = int(queue_id)
    for parent in PARENTS:
        table = own_table(parent, number)
        first = f"{table}_until_{until.astimezone(dt.timezone.utc):{bounds.SECONDS}}"
        _copy_owner(cursor, table, f"{table}_new")
        grants.copy(cursor, table, f"{table}_new")
        triggers = _take_triggers(cursor, table)
        cursor.execute(f"ALTER TABLE {parent} DETACH PARTITION {table}")
        cursor.execute(f"ALTER TABLE {table} RENAME TO {first}")
        cursor.execute(f"ALTER TABLE {table}_new RENAME TO {table}")
        cursor.execute(
            f"ALTER TABLE {table} ATTACH PARTITION {first} "
            f"FOR VALUES FROM (MINVALUE) TO ('{until.isoformat()}')"
        )
        cursor.execute(f"ALTER TABLE {parent} ATTACH PARTITION {table} FOR VALUES IN ({number})")
        cursor.execute(f"ALTER TABLE {first} DROP CONSTRAINT {bounds.constraint_name(until)}")
        for trigger in triggers:
            cursor.execute(trigger)
    bounds.drop_function(cursor, number)
    if sources.has_readers(cursor, number):
        sources.prepare(cursor, number)
    _set_interval(cursor, number, interval)


def _copy_owner(cursor: Any, source: str, target: str) -> None:
    cursor.execute(
        "SELECT format('ALTER TABLE %%s OWNER TO %%I', %s::text, pg_get_userbyid(s.relowner)) "
        "FROM pg_class s JOIN pg_class t ON t.relowner <> s.relowner "
        "WHERE s.oid = %s::regclass AND t.oid = %s::regclass",
        [target, source, target],
    )
    for (statement,) in cursor.fetchall():
        cursor.execute(statement)


def _take_triggers(cursor: Any, table: str) -> list[str]:
    """Drop row-level triggers without transition tables. Returns statements that create them again.

    Created on the partitioned table, the triggers apply to all of its partitions.
    """
    cursor.execute(
        "SELECT quote_ident(tgname), pg_get_triggerdef(oid) FROM pg_trigger "
        "WHERE tgrelid = %s::regclass AND NOT tgisinternal AND tgtype & 1 = 1 "
        "AND coalesce(tgnewtable, tgoldtable) IS NULL",
        [table],
    )
    found = cursor.fetchall()
    for name, _ in found:
        cursor.execute(f"DROP TRIGGER {name} ON {table}")
    return [statement for _, statement in found]


# Another interval


def replace_partitions(cursor: Any, queue_id: int, interval: dt.timedelta, unlogged: bool) -> None:
    """Replace empty future partitions with ones of the new interval. Rows stay.

    The caller holds ACCESS EXCLUSIVE on all of the queue's tables.
    """
    now = server_time(cursor)
    kept = []
    for partition in find_partitions(cursor, queue_id):
        first = partition.start
        if first is not None and first > now and not _has_rows_from(cursor, partition, first):
            drop_partition(cursor, partition)
        else:
            kept.append(partition)
    defaults = [partition for partition in kept if not partition.has_range]
    for start, end in missing_ranges(kept, now, interval):
        # Skip a range if a default partition has rows from its start on: maintenance makes the
        # partition later.
        if not any(_has_rows_from(cursor, default, start) for default in defaults):
            create_partition(cursor, queue_id, start, end, unlogged=unlogged)
    _set_interval(cursor, queue_id, interval)


def _has_rows_from(cursor: Any, partition: Partition, start: dt.datetime) -> bool:
    found = (
        f"SELECT EXISTS (SELECT FROM {partition.message} WHERE enqueued_at >= %(start)s) "
        f"OR EXISTS (SELECT FROM {partition.archive} WHERE enqueued_at >= %(start)s)"
    )
    return bool(fetch_value(cursor, found, {"start": start}))


def _set_interval(cursor: Any, queue_id: int, interval: dt.timedelta) -> None:
    tell_actor(cursor)
    cursor.execute(
        "UPDATE pgqueue_queue SET partition_interval = %s WHERE id = %s", [interval, queue_id]
    )


# Running the steps


def _do(queue: StoredQueue, step: Callable[..., R], *args: Any) -> R:
    """Run a step in a transaction of its own, without a statement timeout."""
    with transaction.atomic(using=queue.alias), connections[queue.alias].cursor() as cursor:
        set_locally(cursor, statement_timeout="0")
        return step(cursor, queue.pk, *args)


def _briefly(
    queue: StoredQueue,
    lock: Callable[[Any, int], None],
    step: Callable[..., R],
    *args: Any,
    first: Callable[[Any, int], None] = lambda cursor, queue_id: None,
) -> R:
    """Run a step that locks the queue's tables, with short waits for the locks.

    ``first`` runs in the same transaction, before the locks are taken.
    """

    def act(cursor: Any, queue_id: int, stall: str) -> R:
        keep_vacuum_off(cursor, own_tables(queue_id))
        first(cursor, queue_id)
        # lock_timeout applies to each lock, statement_timeout to all of them.
        set_locally(cursor, lock_timeout=stall, statement_timeout=stall)
        lock(cursor, queue_id)
        set_locally(cursor, statement_timeout="0")
        return step(cursor, queue_id, *args)

    def attempt(stall: float) -> R:
        return _do(queue, act, milliseconds(stall))

    tries = chain(TRIES, repeat(TRIES[-1]))
    return briefly(attempt, tries, queue.name, settings.LOCK_SECONDS, (*KEPT, QUERY_CANCELED))


def lock_own(cursor: Any, queue_id: int) -> None:
    """Lock the queue's tables and their partitions. Other queues are not affected."""
    cursor.execute(f"LOCK TABLE {', '.join(own_tables(queue_id))} IN ACCESS EXCLUSIVE MODE")


def lock_alone(cursor: Any, queue_id: int) -> None:
    """Lock the queue's tables and their parents. All other queues wait meanwhile.

    Takes all locks in one statement, so that ``statement_timeout`` limits the total wait.
    """
    tables = [f"ONLY {parent}, {own_table(parent, queue_id)}" for parent in PARENTS]
    cursor.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")
