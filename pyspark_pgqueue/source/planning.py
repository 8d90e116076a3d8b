"""Cuts a read into tasks.

A batch read is cut by positions in the tables (ctid ranges), which needs no index and gives tasks
of equal size. A stream's step is cut by transaction ids, through the archive's small index on them.
All tasks of a read see the same rows: those that the planner's snapshot shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import psycopg

from django_pgqueue.engine.names import ARCHIVE, MESSAGE, own_table
from pyspark_pgqueue.source import columns
from pyspark_pgqueue.source.columns import literal
from pyspark_pgqueue.source.database import Queue, sql
from pyspark_pgqueue.source.offsets import Offset, window
from pyspark_pgqueue.source.options import Options
from pyspark_pgqueue.source.purges import Guard, Mark

BLOCK = 8192
# Number of tasks of a read without minPartitions. A large read has a multiple of it: on four cores,
# a fifth task would run alone. The planner does not know the number of cores.
USUAL_TASKS = 4
# Minimum that a task reads, in blocks of the archive or in bytes of messages. Smaller tasks take
# longer to start than to run.
LEAST_BLOCKS = 1024
LEAST_BYTES = 16 * 1024 * 1024
# Estimated rows per block of a table without statistics.
ROWS_PER_BLOCK = 70
# Maximum bytes on disk of the messages whose bodies a task reads: enough for a million small ones.
BYTES_OF_BODIES = 256 * 1024 * 1024

# A read that needs the message tables is cut by id if the rows' order correlates with their ids by
# more than this. Merging both tables then takes a third less time than looking up each message.
IN_ORDER = 0.9
MERGING = "SET enable_mergejoin = on"


@dataclass(frozen=True)
class Task:
    """A partition of the result: statements, and the conditions under which they may run."""

    statements: tuple[str, ...]
    #: Tables and their filenodes at planning time. A rewrite gives a table another filenode.
    files: tuple[tuple[str, int], ...] = ()
    #: A replica must have replayed all transactions below this one.
    reach: int = 0
    #: Checks that no row was removed since planning. None: removed rows are ignored.
    guard: Guard | None = None
    #: SQL to run before the statements, in its own transaction.
    first: str = ""
    #: Of a stream: the offsets between which the rows are.
    span: tuple[Offset, Offset] | None = None


class _Leaf(NamedTuple):
    """A leaf of an archive's partitions."""

    queue_id: int
    table: str
    filenode: int
    blocks: int
    rows: float
    #: The histogram of its ids, if the order of its rows correlates with them.
    bounds: list[int] | None


def cut_by_position(
    connection: psycopg.Connection[Any],
    options: Options,
    names: Sequence[str],
    chosen: Sequence[Queue],
    *,
    start: Offset,
    end: Offset,
    planned: Sequence[Mark] = (),
    conditions: Sequence[str] = (),
) -> list[Task]:
    """Cut a batch read of the chosen queues by table positions, or by id.

    Read the purge marks ``planned`` first, take the end offset next, and then call this function:
    the table files then have all rows up to the end offset.
    """
    leaves = _leaves(connection, chosen)
    size = _blocks_per_task(connection, options, names, chosen, leaves)
    by_id = columns.needs_message(options.columns, names) and all(leaf.bounds for leaf in leaves)
    terms = [window(start, end), *conditions, *_between_times(options)]
    queue_names = dict(chosen)
    shares: list[list[tuple[_Leaf, str]]] = [[]]
    filled = 0
    for leaf in leaves:
        queue, low = (leaf.queue_id, queue_names[leaf.queue_id]), 0
        while low < leaf.blocks:
            high = min(leaf.blocks, low + size - filled)
            part = _by_id(leaf, low, high) if by_id else _by_block(low, high)
            statement = _statement(options, names, leaf.table, queue, [*part, *terms])
            shares[-1].append((leaf, statement))
            filled += high - low
            low = high
            if filled >= size:
                shares.append([])
                filled = 0
    tasks = []
    for pieces in filter(None, shares):
        ids = tuple(dict.fromkeys(leaf.queue_id for leaf, _ in pieces))
        guard = Guard(ids, start, tuple(mark for mark in planned if mark.queue_id in ids))
        tasks.append(
            Task(
                tuple(statement for _, statement in pieces),
                tuple(dict.fromkeys((leaf.table, leaf.filenode) for leaf, _ in pieces)),
                (end.until or end.since).xmax,
                guard if options.fail_on_data_loss else None,
                MERGING if by_id else "",
            )
        )
    return tasks


def _leaves(connection: psycopg.Connection[Any], chosen: Sequence[Queue]) -> list[_Leaf]:
    """The archives' leaves that are not empty."""
    given = [BLOCK, [pk for pk, _ in chosen], IN_ORDER]
    rows = connection.execute(sql("source/planning/leaves"), given)
    return [_Leaf._make(row) for row in rows]


def _blocks_per_task(
    connection: psycopg.Connection[Any],
    options: Options,
    names: Sequence[str],
    chosen: Sequence[Queue],
    leaves: Sequence[_Leaf],
) -> int:
    total = sum(leaf.blocks for leaf in leaves)
    density = sum(leaf.rows for leaf in leaves) / total if total else 0
    density = density or ROWS_PER_BLOCK
    rows_per_task: float = options.rows_per_partition
    least: float = LEAST_BLOCKS
    if not {"body", "headers"}.isdisjoint(names):
        each = _bytes_of_a_message(connection, [pk for pk, _ in chosen])
        if each:
            rows_per_task = min(rows_per_task, BYTES_OF_BODIES / each)
            least = min(least, LEAST_BYTES / each / density)
    tasks_wanted = min(options.min_partitions or USUAL_TASKS, total / least)
    tasks_wanted = max(tasks_wanted, total * density / rows_per_task)
    if tasks_wanted > USUAL_TASKS:
        tasks_wanted = math.ceil(tasks_wanted / USUAL_TASKS) * USUAL_TASKS
    return max(math.ceil(total / max(math.ceil(tasks_wanted), 1)), 1)


def _by_block(low: int, high: int) -> list[str]:
    return [f"a.ctid >= '({low},0)'::tid", f"a.ctid < '({high},0)'::tid"]


def _by_id(leaf: _Leaf, low: int, high: int) -> list[str]:
    """Return conditions for the rows between two blocks, by the histogram of the ids."""
    assert leaf.bounds is not None
    most = len(leaf.bounds) - 1
    first, last = (leaf.bounds[round(block / leaf.blocks * most)] for block in (low, high))
    return [
        *(f"{table}.id >= {first}" for table in "am" if low > 0),
        *(f"{table}.id < {last}" for table in "am" if high < leaf.blocks),
    ]


def _bytes_of_a_message(
    connection: psycopg.Connection[Any], queue_ids: Sequence[int]
) -> float | None:
    """A message's average size on disk; None without statistics."""
    text = sql("source/planning/bytes_of_a_message")
    [(size,)] = connection.execute(text, [list(queue_ids)])
    return None if size is None else float(size)


def _statement(
    options: Options,
    names: Sequence[str],
    table: str,
    queue: Queue,
    terms: Sequence[str],
) -> str:
    queue_id, name = queue[0], literal(queue[1])
    assert name is not None  # the characters of a queue's name are harmless
    conditions = " AND ".join(terms).replace("{queue}", name)
    selected = columns.select(options.columns, names, f"{name}::text")
    join = ""
    if columns.needs_message(options.columns, names) or "m." in conditions:
        messages = own_table(MESSAGE, queue_id)
        join = f" JOIN {messages} m ON m.id = a.id AND m.enqueued_at = a.enqueued_at"
    return f"SELECT {selected} FROM {table} a{join} WHERE {conditions}"


def _between_times(options: Options) -> list[str]:
    found = []
    if options.archived_from:
        found.append(f"a.archived_at >= {literal(options.archived_from)}::timestamptz")
    if options.archived_until:
        found.append(f"a.archived_at < {literal(options.archived_until)}::timestamptz")
    return found


# Streams


def in_window(options: Options, chosen: Sequence[Queue], start: Offset, end: Offset) -> str:
    """A condition for the archived rows of some queues between two offsets."""
    ids = ",".join(str(pk) for pk, _ in chosen)
    terms = [window(start, end), f"a.queue_id = ANY ('{{{ids}}}'::integer[])"]
    return " AND ".join([*terms, *_between_times(options)])


def cut_by_transaction(
    connection: psycopg.Connection[Any],
    options: Options,
    names: Sequence[str],
    chosen: Sequence[Queue],
    start: Offset,
    end: Offset,
) -> list[Task]:
    """Cut a stream's step into slices with equal numbers of rows."""
    if not chosen:
        return []
    every = options.rows_per_partition
    condition = in_window(options, chosen, start, end)
    cuts = connection.execute(sql("source/planning/cuts", condition=condition, every=every))
    upper = end.until or end.since
    places = [
        start.after,
        *((int(xid), int(pk)) for xid, pk in cuts),
        end.after if end.until is not None else None,
    ]
    join = ""
    if columns.needs_message(options.columns, names):
        join = (
            "JOIN pgqueue_message m ON m.id = a.id AND m.queue_id = a.queue_id "
            "AND m.enqueued_at = a.enqueued_at "
        )
    tasks = []
    for low, high in pairwise(places):
        first = Offset(start.since, upper, low)
        last = Offset(start.since, upper, high) if high else Offset(upper)
        statement = (
            f"SELECT {columns.select(options.columns, names, 'q.name::text')} "
            f"FROM pgqueue_archive a JOIN pgqueue_queue q ON q.id = a.queue_id {join}"
            f"WHERE {in_window(options, chosen, first, last)}"
        )
        tasks.append(Task((statement,), (), upper.xmax, span=(first, last)))
    return tasks


def live_tasks(
    options: Options, names: Sequence[str], chosen: Sequence[Queue], conditions: Sequence[str]
) -> list[Task]:
    """Tasks that peek at live messages.

    Each queue is read in one statement, so that a message whose state changes meanwhile is seen
    exactly once.
    """
    tasks = []
    for queue in chosen:
        terms = [f"a.queue_id = {queue[0]}", *conditions]
        tasks.append(Task((_statement(options, names, "pgqueue_live", queue, terms),)))
    return tasks


def count_tasks(options: Options, names: Sequence[str], chosen: Sequence[Queue]) -> list[Task]:
    """Tasks that count messages, one statement per queue."""
    return [
        Task(
            (
                f"SELECT {columns.select(options.columns, names, f'{literal(name)}::text')} FROM ("
                f"SELECT state, enqueued_at FROM pgqueue_live WHERE queue_id = {pk} UNION ALL "
                f"SELECT state, enqueued_at FROM {own_table(ARCHIVE, pk)}) a GROUP BY a.state",
            )
        )
        for pk, name in chosen
    ]
