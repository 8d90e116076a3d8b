"""Deletes expired outcomes and their messages row by row."""

from __future__ import annotations

import datetime as dt
from typing import NamedTuple

from django.db import DatabaseError, transaction

from django_pgqueue.maintenance import lakes
from django_pgqueue.maintenance.drop_partitions import is_overdue
from django_pgqueue.maintenance.partitions import Partition
from django_pgqueue.maintenance.work import Work

__all__ = ["prune_messages"]

#: One transaction deletes at most this many outcomes, from at most this many pages.
BATCH = 2000
PAGES = 1024


class Pruned(NamedTuple):
    """The one row of ``expire.sql``."""

    gone: int
    last_xid: int | None
    held: int
    old: int
    last_place: str | None


def prune_messages(work: Work) -> None:
    """Delete expired messages from the partitions that are not dropped as a whole."""
    before = work.expired_before
    if before is None:
        return
    for partition in work.partitions():
        if not is_overdue(partition, before):
            continue
        try:
            _prune_partition(work, partition, before)
        except DatabaseError:
            if partition in work.partitions():
                raise  # else another process has dropped the partition


def _prune_partition(work: Work, partition: Partition, before: dt.datetime) -> None:
    """Delete the expired outcomes of a partition, from the first page of its table to the last.

    Each batch is a transaction of its own. It locks only rows that no other statement changes.
    """
    size = work.value(
        "SELECT pg_relation_size(%s::regclass) / current_setting('block_size')::bigint",
        [partition.archive],
    )
    page, line = 0, 0
    while page < (size or 0):
        pruned = _prune_batch(work, partition, before, page, line)
        work.counts["pruned"] += pruned.gone
        work.counts["held"] += pruned.held
        if pruned.old == BATCH and pruned.last_place is not None:
            # The batch is full: continue behind its last row.
            page, line = map(int, pruned.last_place.strip("()").split(","))
            line += 1
        else:
            page, line = page + PAGES, 0
        work.tell()


def _prune_batch(
    work: Work, partition: Partition, before: dt.datetime, page: int, line: int
) -> Pruned:
    params = {
        "first": f"({page},{line})",
        "end": f"({page + PAGES},0)",
        "before": before,
        "batch": BATCH,
    }
    with transaction.atomic(using=work.queue.alias, durable=True):
        limit = lakes.exported_below(work)
        [row] = work.fetch("expire", {**params, "exported_below": limit}, partition)
        pruned = Pruned(*row)
        lakes.note_removal(work, pruned.last_xid)
    return pruned
