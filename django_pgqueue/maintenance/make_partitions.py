"""Makes the missing partitions of the current interval and the next ones."""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import Any

from django.db import DatabaseError

from django_pgqueue.engine.sqlstates import CHECK_VIOLATION, sqlstate
from django_pgqueue.errors import QueueBusy
from django_pgqueue.maintenance.partitions import (
    Partition,
    Range,
    create_partition,
    find_partitions,
    lock_for_change,
    missing_ranges,
)
from django_pgqueue.maintenance.work import Work

#: If the default partition has messages, the next partition begins this long after now.
MARGIN = dt.timedelta(seconds=2)

#: PostgreSQL reads a table at this rate or faster.
BYTES_A_SECOND = 500_000_000


def make_partitions(work: Work) -> None:
    """Make the missing partitions, each in a transaction of its own.

    Attaching a partition locks the default partition while PostgreSQL reads it. If that could take
    longer than ``stall``, no partition is made. Messages then go to the default partition, and are
    deleted one by one instead of with their partition.
    """
    queue, interval = work.queue, work.queue.partition_interval
    if interval is None:
        return
    found = work.partitions()
    defaults = [partition for partition in found if not partition.has_range]
    if defaults and defaults[0].message == queue.tables["message"]:
        return  # the tables have no partitions by time
    now = work.now()
    seconds = max((_seconds_to_read(work, default) for default in defaults), default=0)
    # If the default partition has messages, the current interval's partition begins after now:
    # PostgreSQL refuses a partition whose range contains those messages' times, and moving the
    # messages would write them again.
    not_before = now.replace(microsecond=0) + MARGIN if seconds > 0 else None
    still_missing = partial(missing_ranges, now=now, interval=interval, not_before=not_before)
    missing = still_missing(found)
    if seconds > work.stall:
        work.counts["stay_in_default"] += len(missing)
        return

    def make(cursor: Any, wanted: Range) -> int:
        """Make a partition, unless another process has made it. Returns the number made, 0 or 1."""
        lock_for_change(cursor, queue.pk)
        if wanted not in still_missing(find_partitions(cursor, queue.pk)):
            return 0
        create_partition(cursor, queue.pk, *wanted, unlogged=queue.unlogged)
        return 1

    for wanted in missing:
        try:
            work.counts["partitions_made"] += work.briefly(make, wanted)
        except QueueBusy:
            work.counts["busy"] += 1
            return
        except DatabaseError as error:
            if sqlstate(error) != CHECK_VIOLATION:
                raise
            work.counts["stay_in_default"] += 1
        work.tell()


def _seconds_to_read(work: Work, partition: Partition) -> float:
    size = work.value(
        "SELECT pg_relation_size(%s::regclass) + pg_relation_size(%s::regclass)",
        [partition.message, partition.archive],
    )
    return float(size or 0) / BYTES_A_SECOND
