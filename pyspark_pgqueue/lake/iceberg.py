"""A lake as an Iceberg table: each published run registers its files in a catalog.

Nothing is copied: the table's data files are the lake's, and its metadata lies next to them. Each
call brings the table up to date with the lake in one commit. If a call dies, the next one registers
its files, too.

A compaction must not delete files that earlier snapshots need. So it happens in two steps. The
first writes the merged file below ``compacted``, for the table alone: below ``archive``, readers of
the files would see its rows twice. Once the snapshots with the small files have expired, the second
step writes the rows to a file below ``archive``, and deletes the small files.

Catalogs are configured as for pyiceberg (``.pyiceberg.yaml``, or ``PYICEBERG_CATALOG__…`` in the
environment); ``shop.archive`` is in the catalog ``default``, ``prod.shop.archive`` in ``prod``.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import pyarrow as pa

from pyspark_pgqueue.errors import InvalidOption
from pyspark_pgqueue.lake.files import COMPACTED, DATA, Merge, archive_schema, files_in
from pyspark_pgqueue.lake.stores import address, open_at


def check(name: str) -> None:
    """Raise InvalidOption with advice if the catalog or pyiceberg is missing."""
    with _catalog(name):
        pass


def register(path: str, name: str, more: pa.Schema, replaced: Collection[str] = ()) -> None:
    """Register all files of a lake in a table, except the replaced ones.

    Creates the table if it does not exist, partitioned by queue and day. Adds columns that it
    lacks: those of ``more``, and those that a newer version of this package has.
    """
    from pyiceberg.io.pyarrow import parquet_files_to_data_files

    with _catalog(name) as (catalog, identifier):
        table = _table(catalog, identifier, path)
        wanted = pa.schema([*archive_schema(), *more])
        with table.update_schema() as schema:
            schema.union_by_name(wanted)
        files = {
            f"{_location(path)}/{place}"
            for directory in (DATA, COMPACTED)
            for places in files_in(path, directory).values()
            for place in places
            if place not in replaced
        }
        there = {task.file.file_path: task.file for task in table.scan().plan_files()}
        new, over = sorted(files - set(there)), sorted(set(there) - files)
        if over:
            with table.transaction() as change, change.update_snapshot().overwrite() as snapshot:
                for place in over:
                    snapshot.delete_data_file(there[place])
                for file in parquet_files_to_data_files(table.io, change.table_metadata, iter(new)):
                    snapshot.append_data_file(file)
        elif new:
            table.add_files(new)


def merges(path: str, name: str, max_files: int, expire: dt.timedelta | None) -> list[Merge]:
    """Return the merges to do.

    First expires snapshots older than ``expire``, and deletes the files below ``compacted`` that no
    snapshot needs.
    """
    with _catalog(name) as (catalog, identifier):
        if not catalog.table_exists(identifier):
            return []
        table = catalog.load_table(identifier)
        if expire is not None:
            now = dt.datetime.now(dt.timezone.utc)
            table.maintenance.expire_snapshots().older_than(now - expire).commit()
        start = len(_location(path)) + 1
        current = {task.file.file_path[start:] for task in table.scan().plan_files()}
        needed = {place[start:] for place in _in_any_snapshot(table)}
    visible = {place for places in files_in(path).values() for place in places}
    hidden = {place for places in files_in(path, COMPACTED).values() for place in places}
    open_at(path).remove(hidden - needed)
    found = []
    replaced = _by_directory(visible - current)
    for directory, places in _by_directory(current).items():
        merged = [place for place in places if place in hidden]
        old = replaced.get(directory, [])
        if merged and old and needed.isdisjoint(old):
            found.append(Merge(merged, DATA, delete=old))
        elif len(places) > max_files:
            found.append(Merge(places, COMPACTED))
    return found


def _in_any_snapshot(table: Any) -> set[str]:
    """Return the paths of the data files of all snapshots."""
    manifests = {
        manifest.manifest_path: manifest
        for snapshot in table.snapshots()
        for manifest in snapshot.manifests(table.io)
    }
    return {
        entry.data_file.file_path
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }


def _by_directory(places: Iterable[str]) -> dict[str, list[str]]:
    """Files by the queue and the day in their paths."""
    found: dict[str, list[str]] = defaultdict(list)
    for place in sorted(places):
        found[place.partition("/")[2].rpartition("/")[0]].append(place)
    return found


def counts(name: str) -> dict[str, int]:
    """Number of messages per queue, according to the table's metadata."""
    found: Counter[str] = Counter()
    with _catalog(name) as (catalog, identifier):
        if catalog.table_exists(identifier):
            for task in catalog.load_table(identifier).scan().plan_files():
                found[str(task.file.partition[0])] += task.file.record_count
    return dict(found)


def drop(name: str) -> None:
    """Drop the table from its catalog, and keep the lake's files."""
    with _catalog(name) as (catalog, identifier):
        if catalog.table_exists(identifier):
            catalog.drop_table(identifier)


@contextlib.contextmanager
def _catalog(name: str) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Open a table's catalog for the block. Yields the catalog, and the table's name in it."""
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        raise InvalidOption(
            'An Iceberg table needs pyiceberg: pip install "django-postgres-mq[spark,iceberg]"'
        ) from error
    parts = tuple(name.split("."))
    if len(parts) < 2 or not all(parts):
        raise InvalidOption(
            f"An Iceberg table's name must be namespace.table or catalog.namespace.table, not "
            f"{name!r}."
        )
    source, identifier = ("default", parts) if len(parts) == 2 else (parts[0], parts[1:])
    try:
        catalog = load_catalog(source)
    except Exception as error:  # each kind of catalog has a library with errors of its own
        raise InvalidOption(
            f"The Iceberg catalog {source!r} cannot be opened: {error}. Configure it in "
            f".pyiceberg.yaml, or in the environment: PYICEBERG_CATALOG__{source.upper()}__URI etc."
        ) from error
    with catalog:
        yield catalog, identifier


def _table(catalog: Any, identifier: tuple[str, ...], path: str) -> Any:
    from pyiceberg.transforms import DayTransform, IdentityTransform

    if catalog.table_exists(identifier):
        return catalog.load_table(identifier)
    catalog.create_namespace_if_not_exists(identifier[:-1])
    making = catalog.create_table_transaction(
        identifier, archive_schema(), location=_location(path)
    )
    with making as change, change.update_spec() as spec:
        spec.add_field("queue", IdentityTransform(), "queue")
        spec.add_field("archived_at", DayTransform(), "date")
    return catalog.load_table(identifier)


def _location(path: str) -> str:
    path = address(path)
    return path if "://" in path else f"file://{path}"
