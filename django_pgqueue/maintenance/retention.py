"""Finds the time before which archived messages may be removed, and removes them.

Partitions by time are dropped as a whole. Other messages are deleted row by row.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any, NamedTuple

from django.db import DatabaseError, connections, transaction
from django.utils.timezone import is_naive, make_aware

from django_pgqueue import signals
from django_pgqueue.database.locks import milliseconds, settings_for
from django_pgqueue.engine.sqlstates import LOCK_NOT_AVAILABLE, sqlstate
from django_pgqueue.engine.subscriptions import positions
from django_pgqueue.engine.times import EPOCH
from django_pgqueue.errors import QueueBusy
from django_pgqueue.maintenance import lakes, partitions
from django_pgqueue.maintenance.partitions import Partition
from django_pgqueue.maintenance.work import Work

#: One transaction deletes at most this many outcomes, from at most this many pages.
BATCH = 2000
PAGES = 1024

SUMMARIZE = """
    SELECT brin_summarize_new_values(i.indexrelid)
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
    WHERE i.indrelid = %s::regclass AND a.amname = 'brin'
"""


class Outcomes(NamedTuple):
    """The one row of ``outcomes.sql``."""

    total: int
    all_old: bool
    last_xid: int | None
    not_exported: int
    unsettled: int
    xmin: int


def remove_expired(work: Work) -> None:
    """Remove the messages whose retention is over: whole partitions, then the rest row by row."""
    _find_expired(work)
    if work.before is not None and not work.foreign_lakes:
        _drop_partitions(work, work.before)
        _prune_messages(work, work.before)


def _find_expired(work: Work) -> None:
    """Set ``before``, ``refused`` and ``foreign_lakes`` by the retention and the lakes.

    A receiver of ``retention_due`` may return an earlier time. If one returns False or raises an
    exception, nothing is removed. Messages that a subscription has not read are kept, for its
    ``keep_for`` at most.
    """
    queue = work.queue
    if queue.retention is None:
        return
    work.foreign_lakes = tuple(lakes.foreign_lakes(work))
    before = work.now() - queue.retention
    for _, answer in signals.retention_due.send_robust(queue.name, queue=queue, before=before):
        if answer is False or isinstance(answer, Exception):
            work.refused = True
            return
        if isinstance(answer, dt.datetime):
            before = min(before, make_aware(answer) if is_naive(answer) else answer)
    work.before = min([before, *_unread_from(work), *_uncounted_from(work)])


def _unread_from(work: Work) -> Iterator[dt.datetime]:
    """Yield for each subscription when the first message was sent that is kept for it.

    No unread message was archived before it was sent. One that committed late may have been sent
    before the first in order: if it is removed, a trigger copies it (ddl/subscriptions.sql).
    """
    for subscription in work.queue.subscriptions.all():
        opened = subscription.opened
        behind = positions.behind(opened.runner, opened.id, opened.source_id, 1)
        kept_for = subscription.keep_for
        kept_from = EPOCH if kept_for is None else work.now() - kept_for
        if behind is None:
            yield kept_from
        elif behind.unread_since is not None:
            yield max(kept_from, behind.unread_since)


def _uncounted_from(work: Work) -> Iterator[dt.datetime]:
    """Yield when the oldest batch began that has members to count: they were sent after that."""
    began = work.value(
        "SELECT min(created_at) FROM pgqueue_batch b WHERE queue_id = %s AND done_at IS NULL "
        "AND EXISTS (SELECT FROM pgqueue_batch_part p WHERE p.batch_id = b.id)",
        [work.queue.pk],
    )
    if began is not None:
        yield began


def tell_losses(work: Work) -> None:
    """Send ``messages_lost`` if a subscription has lost messages since the last round."""
    queue = work.queue
    if queue.source_id is None:
        return
    [(count,)] = work.fetch("tell_losses", {})
    if count:
        signals.messages_lost.send_robust(queue.name, queue=queue, count=count)


def _drop_partitions(work: Work, before: dt.datetime) -> None:
    """Drop partitions past the retention. Each transaction locks the queue for milliseconds."""
    for partition in work.partitions():
        if not partition.has_range or partition.end is None or partition.end > before:
            continue
        try:
            if not _drop_if_expired(work, partition, before):
                continue
        except QueueBusy:
            work.counts["busy"] += 1
            return  # the same sessions would block the next drop
        except DatabaseError as error:
            if sqlstate(error) == LOCK_NOT_AVAILABLE:  # autovacuum may hold the lock
                work.counts["busy"] += 1
            elif partition in work.partitions():
                raise  # else another process has dropped the partition
        work.tell()


def _is_overdue(partition: Partition, before: dt.datetime) -> bool:
    """Whether to delete a partition's old messages row by row, without waiting for its drop.

    True if the partition ended before ``before`` by at least the length of its range. Always true
    if the range is unbounded.
    """
    if partition.start is None or partition.end is None:
        return True
    return partition.end + (partition.end - partition.start) <= before


def lives_in(work: Work, partition: Partition) -> bool:
    """Whether a partition has a message that is not archived, or that a subscription needs."""
    params = {"start": partition.start, "end": partition.end}
    [(found,)] = work.fetch("stragglers", params, partition)
    if not found:
        [(found,)] = work.fetch("needed", {}, partition)
    return bool(found)


def _drop_if_expired(work: Work, partition: Partition, before: dt.datetime) -> bool:
    """Drop a partition if all its messages may be removed. Returns whether it was dropped.

    Most checks run before the lock, since they take time; only new rows are checked under it.
    """
    newest_is_old = f"SELECT archived_at < %s FROM {partition.archive} ORDER BY id DESC LIMIT 1"
    if work.value(newest_is_old, [before]) is False:
        return False
    if lives_in(work, partition):
        work.counts["stragglers"] += 1
        return False
    outcomes = _outcomes(work, partition, before)
    if not outcomes.all_old:
        return False
    if outcomes.not_exported:
        # _prune_messages counts the outcomes of an overdue partition.
        if not _is_overdue(partition, before):
            work.counts["held"] += outcomes.not_exported
        return False
    dropped = work.briefly(_drop, work, partition, outcomes)
    if dropped:
        work.counts["partitions_dropped"] += 1
        work.counts["dropped"] += outcomes.total
    return dropped


def _outcomes(work: Work, partition: Partition, before: dt.datetime) -> Outcomes:
    """Count all outcomes of a partition. Blocks no other session."""
    params = {"before": before, "exported_below": lakes.exported_below(work)}
    alias = work.queue.alias
    with (
        transaction.atomic(using=alias, durable=True),
        connections[alias].cursor() as cursor,
        settings_for(cursor, statement_timeout="0", lock_timeout=milliseconds(work.patience)),
    ):
        # Bring the BRIN index up to date, so that the check under the lock is short.
        cursor.execute(SUMMARIZE, [partition.archive])
        [row] = work.fetch("outcomes", params, partition)
    return Outcomes(*row)


def _drop(cursor: Any, work: Work, partition: Partition, outcomes: Outcomes) -> bool:
    """Drop a partition, unless it has changed since the check. Returns whether it was dropped."""
    if not partitions.lock_for_drop(cursor, work.queue.pk, partition):
        return False
    # Count by the index of archive_xid, even if the planner prefers to read the whole table.
    with settings_for(cursor, enable_seqscan="off"):
        new = f"SELECT count(*) FROM {partition.archive} WHERE archive_xid >= %s"
        if work.value(new, [outcomes.xmin]) != outcomes.unsettled or lives_in(work, partition):
            return False
    limit = lakes.exported_below(work)
    if limit is not None and outcomes.last_xid is not None and outcomes.last_xid >= limit:
        return False
    partitions.drop_partition(cursor, partition)
    lakes.note_removal(work, outcomes.last_xid)
    return True


def _prune_messages(work: Work, before: dt.datetime) -> None:
    """Delete messages past the retention, row by row, from overdue and unbounded partitions."""
    for partition in work.partitions():
        if not _is_overdue(partition, before):
            continue
        try:
            _prune_partition(work, partition, before)
        except DatabaseError:
            if partition in work.partitions():
                raise  # else another process has dropped the partition


def _prune_partition(work: Work, partition: Partition, before: dt.datetime) -> None:
    """Delete a partition's old outcomes with their messages, from the first page to the last.

    Each batch is a transaction of its own. It locks only rows that no other statement changes.
    """
    size = work.value(
        "SELECT pg_relation_size(%s::regclass) / current_setting('block_size')::bigint",
        [partition.archive],
    )
    page, line = 0, 0
    params: dict[str, Any] = {"before": before, "batch": BATCH}
    while page < (size or 0):
        params |= {"first": f"({page},{line})", "end": f"({page + PAGES},0)"}
        with transaction.atomic(using=work.queue.alias, durable=True):
            params["exported_below"] = lakes.exported_below(work)
            [(gone, last_xid, held, old, last_place)] = work.fetch("expire", params, partition)
            lakes.note_removal(work, last_xid)
        work.counts["pruned"] += gone
        work.counts["held"] += held
        if old == BATCH:
            # The batch is full: continue behind its last row.
            page, line = map(int, last_place.strip("()").split(","))
            line += 1
        else:
            page, line = page + PAGES, 0
        work.tell()
