"""A lake as an Iceberg table: each published run registers its files in a catalog.

Nothing is copied: the table's data files are the lake's, and its metadata lies next to them. Each
call brings the table up to date with the lake in one commit, so the next call completes one that
died.

Catalogs are configured as for pyiceberg (``.pyiceberg.yaml``, or ``PYICEBERG_CATALOG__…`` in the
environment); ``shop.archive`` is in the catalog ``default``, ``prod.shop.archive`` in ``prod``.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa

from pyspark_pgqueue.columns import ARCHIVE
from pyspark_pgqueue.errors import InvalidOption
from pyspark_pgqueue.lake import files_in
from pyspark_pgqueue.stores import address

__all__ = ["check", "counts", "drop", "register"]

_TYPES = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def check(name: str) -> None:
    """Raise InvalidOption with advice if the catalog or pyiceberg is missing."""
    with _catalog(name):
        pass


def register(path: str, name: str, gone: Collection[str] = ()) -> None:
    """Register all files of a lake in a table, except the files in ``gone``.

    Creates the table if it does not exist, partitioned by queue and day, and adds new columns.
    Expires the snapshots from before a compaction, since their files are deleted.
    """
    from pyiceberg.io.pyarrow import parquet_files_to_data_files

    with _catalog(name) as (catalog, identifier):
        table = _table(catalog, identifier, path)
        wanted = _schema()
        if set(wanted.names) - {field.name for field in table.schema().fields}:
            with table.update_schema() as schema:
                schema.union_by_name(wanted)
        files = {
            f"{_location(path)}/{place}"
            for places in files_in(path).values()
            for place in places
            if place not in gone
        }
        there = {task.file.file_path: task.file for task in table.scan().plan_files()}
        new, over = sorted(files - set(there)), sorted(set(there) - files)
        if over:
            with table.transaction() as change, change.update_snapshot().overwrite() as snapshot:
                for place in over:
                    snapshot.delete_data_file(there[place])
                for file in parquet_files_to_data_files(table.io, change.table_metadata, iter(new)):
                    snapshot.append_data_file(file)
            now = dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=1)
            table.maintenance.expire_snapshots().older_than(now).commit()
        elif new:
            table.add_files(new)


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
    """Open a table's catalog for the block; yields it and the table's name in it."""
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        raise InvalidOption(
            'An Iceberg table needs pyiceberg: pip install "django-postgres-mq[spark,iceberg]"'
        ) from error
    parts = tuple(name.split("."))
    if len(parts) < 2 or not all(parts):
        raise InvalidOption(
            f"An Iceberg table is namespace.table, or catalog.namespace.table, not {name!r}."
        )
    source, identifier = ("default", parts) if len(parts) == 2 else (parts[0], parts[1:])
    try:
        catalog = load_catalog(source)
    except Exception as error:  # each kind of catalog has a library with errors of its own
        raise InvalidOption(
            f"The Iceberg catalog {source!r} cannot be reached: {error}. Configure it in "
            f".pyiceberg.yaml, or by PYICEBERG_CATALOG__{source.upper()}__URI and so on."
        ) from error
    with catalog:
        yield catalog, identifier


def _table(catalog: Any, identifier: tuple[str, ...], path: str) -> Any:
    from pyiceberg.transforms import DayTransform, IdentityTransform

    if catalog.table_exists(identifier):
        return catalog.load_table(identifier)
    catalog.create_namespace_if_not_exists(identifier[:-1])
    making = catalog.create_table_transaction(identifier, _schema(), location=_location(path))
    with making as change, change.update_spec() as spec:
        spec.add_field("queue", IdentityTransform(), "queue")
        spec.add_field("archived_at", DayTransform(), "date")
    return catalog.load_table(identifier)


def _schema() -> pa.Schema:
    return pa.schema({name: _TYPES[column.type] for name, column in ARCHIVE.items()})


def _location(path: str) -> str:
    path = address(path)
    return path if "://" in path else f"file://{path}"
