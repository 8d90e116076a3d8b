"""A stream that begins in a lake: first the messages that the lake has, then the archive.

Both are one sequence. The lake has the messages of the transactions below its ``exported_below``,
the archive has the others, and an offset is the same in both: a snapshot. So compaction and further
exports change no offset, a repeated batch may find in the lake what it first read in the archive,
and a stream misses nothing that retention removed after it was exported.
"""

from __future__ import annotations

import datetime as dt
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs
from pyspark.sql.datasource import InputPartition

from pyspark_pgqueue.errors import DataLost, InvalidOption, LakeDiffers
from pyspark_pgqueue.lake import runs
from pyspark_pgqueue.lake.files import archive_schema, rows_of
from pyspark_pgqueue.lake.runs import Group, Lake
from pyspark_pgqueue.lake.stores import address, explained, key_of, open_at
from pyspark_pgqueue.source import arrow, columns, database, purges
from pyspark_pgqueue.source.offsets import Offset, Snapshot
from pyspark_pgqueue.source.options import FROM_THE_START, Options
from pyspark_pgqueue.source.stream import ArchiveStream


@dataclass(frozen=True)
class LakeTask:
    """A partition of a step: some directories' rows between two offsets."""

    lake: Lake
    start: Offset
    end: Offset
    places: tuple[str, ...]

    def batches(self, options: Options, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        store = open_at(self.lake.path)
        wanted = within(self.start, self.end, self.lake.exported_below) & _between_times(options)
        for place in self._present(options):
            with explained(self.lake.path):
                yield from rows_of(store, place, archive_schema(), list(names), wanted)

    def _present(self, options: Options) -> Iterable[str]:
        """Return the files that have the rows.

        A compaction deletes files shortly before the database has the names of the merged ones.
        """
        store, places = open_at(self.lake.path), list(self.places)
        until = time.monotonic() + options.replica_timeout
        while True:
            infos = store.filesystem.get_file_info([store.path(place) for place in places])
            missing = [info.path for info in infos if info.type == fs.FileType.NotFound]
            if places and not missing:
                return places
            if time.monotonic() > until:
                raise LakeDiffers(
                    f"The lake {self.lake.path} lacks the file {(missing or self.places)[0]}. If "
                    f"an export was interrupted, the next one repairs the lake. Otherwise restore "
                    f"the file. On a cluster, all machines must see the lake's path."
                )
            time.sleep(0.1)
            with database.connect(options.url) as connection:
                low, high = self.start.since.xmin, self.lake.exported_below
                found = runs.groups(connection, self.lake, options, low, high)
            directories = set(map(_directory, self.places))
            places = sorted({each.place for each in found if _directory(each.place) in directories})


class LakeStream(ArchiveStream):
    """The messages of a lake as a stream, and then the archive."""

    lake: Lake
    #: The purge marks from before the lake's state was read.
    marks: list[purges.Mark]

    def initialOffset(self) -> dict[str, Any]:
        self._queues()
        began = {"lake": self.lake.id} if self.options.start == FROM_THE_START else {}
        return {**super().initialOffset(), **began}

    def _queues(self) -> list[database.Queue]:
        """Return the selected queues of the archive, and read the lake's present state."""
        chosen = super()._queues()
        self.marks = purges.marks(self._connection, self.options, chosen)
        self.lake = lake = runs.known(self._connection, address(self.options.lake or ""))
        if self.options.fail_on_server_change:
            lake.check_server(database.server(self._connection))
        wanted = {*(name.lower() for _, name in chosen), *map(str.lower, self.options.subscribe)}
        if lacks := [name for name in sorted(wanted) if not lake.has(name)]:
            raise InvalidOption(
                f"The lake {lake.path} does not have the queue {', '.join(lacks)}, only "
                f"{', '.join(lake.queues)}. Select its queues with subscribe, or use a lake that "
                f"has all of them."
            )
        return chosen

    def _check_purged(self, at: Offset, chosen: list[database.Queue]) -> None:
        super()._check_purged(at, chosen)
        for queue in runs.lacking(self._connection, self.lake, self.options, at):
            self._lost(DataLost(queue, lake=self.lake.path))

    def _reached(self, at: Offset, queue: str) -> Offset:
        return at.past(self.lake.exported_below) if self.lake.has(queue) else at

    def _guard(self, at: Offset, queue_ids: tuple[int, ...]) -> purges.Guard | None:
        """Notices every purge since the plan: the lake may have by now what was removed."""
        return purges.Guard(queue_ids, at, tuple(self.marks))

    def _sooner(self, at: Offset, until: Snapshot, most: int | None) -> Snapshot | None:
        """A step in the lake ends between two transactions, by the row groups' statistics."""
        # An export since the snapshot may have exported what the snapshot does not show.
        below = min(self.lake.exported_below, until.xmin)
        if at.until is not None or at.since.xmin >= below:
            return None
        if most is not None and (groups := self._groups(at.since.xmin, below)):
            below = cut(groups, at.since.xmin, below, most)
        return at.since.past(below)

    def _tasks(self, at: Offset, end: Offset, chosen: list[database.Queue]) -> list[Any]:
        """Read the lake's transactions from its files, and the others from the archive."""
        below, reached = self.lake.exported_below, (end.until or end.since).xmax
        rest = at.past(below)
        tasks: list[Any] = [] if rest == at else self._in_lake(at, end)
        return tasks + (super()._tasks(rest, end, chosen) if reached > below else [])

    def _in_lake(self, at: Offset, end: Offset) -> list[LakeTask]:
        """Tasks of whole directories, so that a task finds its rows after a compaction too."""
        high = min(self.lake.exported_below, (end.until or end.since).xmax)
        shares: list[list[str]] = []
        left = 0
        for _, found in groupby(self._groups(at.since.xmin, high), lambda g: _directory(g.place)):
            there = list(found)
            rows = sum(each.rows for each in there)
            if rows > left:
                shares.append([])
                left = self.options.rows_per_partition
            shares[-1] += dict.fromkeys(each.place for each in there)
            left -= rows
        # The schemas may be large, and a task needs none.
        lake = replace(self.lake, body_schemas={})
        return [LakeTask(lake, at, end, tuple(places)) for places in shares]

    def _groups(self, low: int, high: int) -> list[Group]:
        day = self.options.archived_from and _moment(self.options.archived_from).date().isoformat()
        found = runs.groups(self._connection, self.lake, self.options, low, high)
        return [each for each in found if key_of(each.place, "date") >= (day or "")]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        task: Any = None if partition is None else partition.value
        if isinstance(task, LakeTask):
            names = columns.stored(self.schema.names)
            yield from arrow.fitted(task.batches(self.options, names), self.schema)
            return
        try:
            yield from super().read(partition)
        except DataLost:
            # Raised before the first row: since the plan, rows were purged. If they were not
            # exported before, the new plan raises DataLost, or with failOnDataLoss=false warns.
            for part in self.partitions(*(offset.as_dict() for offset in task.span)):
                yield from self.read(part)
            self.stop()


def cut(groups: Sequence[Group], low: int, high: int, most: int) -> int:
    """The transaction, after the first that has rows, below which about ``most`` rows are left.

    Assumes that a row group's rows are spread evenly over its transactions.

    >>> cut([Group("a", 1, 100, 50), Group("b", 51, 150, 100)], 1, 200, 75)
    84
    """

    def rows_below(xid: int) -> float:
        return sum(
            each.rows
            * (min(max(xid, each.low), each.high + 1) - each.low)
            / (each.high + 1 - each.low)
            for each in groups
        )

    first = max(low, min(each.low for each in groups)) + 1
    most_below = rows_below(low) + most
    return first + max(bisect_right(range(first, high + 1), most_below, key=rows_below) - 1, 0)


def within(start: Offset, end: Offset, below: int) -> pc.Expression:
    """The condition of ``offsets.window`` for Arrow, for transactions below a number."""
    old, new = start.since, end.until or end.since
    xid, pk = pc.field("archive_xid"), pc.field("id")
    found = (xid >= old.xmin) & (xid < min(new.xmax, below)) & ~xid.isin(_array(new.running))
    found &= (xid >= old.xmax) | xid.isin(_array(old.running))
    if start.after is not None:
        found &= (xid > start.after[0]) | ((xid == start.after[0]) & (pk > start.after[1]))
    if end.after is not None:
        found &= (xid < end.after[0]) | ((xid == end.after[0]) & (pk <= end.after[1]))
    return found


def _array(xids: Sequence[int]) -> pa.Array:
    return pa.array(xids, pa.int64())


def _between_times(options: Options) -> pc.Expression:
    found, at = pc.scalar(True), pc.field("archived_at")
    if options.archived_from:
        found &= at >= _moment(options.archived_from)
    if options.archived_until:
        found &= at < _moment(options.archived_until)
    return found


def _moment(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).astimezone(dt.timezone.utc)


def _directory(place: str) -> str:
    return place.rpartition("/")[0]
