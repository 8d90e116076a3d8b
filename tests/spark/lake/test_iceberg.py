"""A lake as an Iceberg table, with a catalog in SQLite."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_pgqueue.models import ExportRun, Lake
from pyspark_pgqueue.errors import InvalidOption
from pyspark_pgqueue.jobs.verify import verify
from pyspark_pgqueue.lake import files, iceberg
from pyspark_pgqueue.source.stream import ArchiveStream
from tests.spark.conftest import export, exported
from tests.spark.lake.test_stream import Reader

Finish = Callable[..., list[int]]
TABLE = "catalog.shop.archive"


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    catalogs = pytest.importorskip("pyiceberg.catalog")
    pytest.importorskip("sqlalchemy")
    from pyiceberg.utils.config import Config

    monkeypatch.setenv("PYICEBERG_CATALOG__CATALOG__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__CATALOG__WAREHOUSE", f"file://{tmp_path}")
    # pyiceberg reads the environment only when it is imported.
    monkeypatch.setattr(catalogs, "_ENV_CONFIG", Config())
    with catalogs.load_catalog("catalog") as found:
        yield found


def rows(catalog: Any, **scan: Any) -> list[int]:
    table = catalog.load_table(("shop", "archive"))
    return sorted(table.scan(**scan).to_arrow().column("id").to_pylist())


def test_each_run_is_a_snapshot_of_the_table(
    spark: Any, url: str, lake: str, catalog: Any, finish: Finish
) -> None:
    first = finish("orders", 20) + finish("007", 10)
    export(spark, url, lake, table=TABLE)
    then = catalog.load_table(("shop", "archive")).current_snapshot().snapshot_id
    second = finish("orders", 5)

    export(spark, url, lake)

    assert rows(catalog) == first + second
    assert rows(catalog, snapshot_id=then) == first
    assert rows(catalog, row_filter="queue = '007'") == first[20:]
    assert {finding.agrees for finding in verify(spark, url, lake)} == {True}
    assert iceberg.counts(TABLE) == {"orders": 25, "007": 10}


@pytest.fixture
def four_runs(
    spark: Any, url: str, lake: str, catalog: Any, finish: Finish
) -> list[tuple[int, list[int]]]:
    """A table of four runs: its snapshots, and the messages that each one has."""
    found, archived = [], []
    for _ in range(4):
        archived = [*archived, *finish("orders", 4)]
        export(spark, url, lake, table=TABLE)
        table = catalog.load_table(("shop", "archive"))
        found.append((table.current_snapshot().snapshot_id, archived))
    return found


def paths(lake: str, directory: str) -> list[Path]:
    return sorted((Path(lake) / directory).rglob("*.parquet"))


def test_snapshots_of_before_a_compaction_are_readable_after_it(
    spark: Any,
    url: str,
    lake: str,
    catalog: Any,
    four_runs: list[tuple[int, list[int]]],
    archive_stream: Callable[..., ArchiveStream],
) -> None:
    assert export(spark, url, lake, max_files=2).compacted == 1

    for snapshot, ids in four_runs:
        assert rows(catalog, snapshot_id=snapshot) == ids
    assert rows(catalog) == four_runs[-1][1]
    assert len(list(catalog.load_table(("shop", "archive")).scan().plan_files())) == 1
    # Other readers of the files see each message once, and so do streams.
    assert exported(spark, lake) == four_runs[-1][1]
    assert Reader(archive_stream(lake=lake)).deliver() == four_runs[-1][1]
    assert {finding.agrees for finding in verify(spark, url, lake)} == {True}


def test_files_that_only_expired_snapshots_have_are_deleted(
    spark: Any,
    url: str,
    lake: str,
    catalog: Any,
    finish: Finish,
    four_runs: list[tuple[int, list[int]]],
) -> None:
    export(spark, url, lake, max_files=2)
    more = finish("orders", 4)
    archived = four_runs[-1][1] + more
    export(spark, url, lake, expire_snapshots=dt.timedelta(days=7))
    assert len(paths(lake, "archive")) == 5

    for _ in range(2):  # files of the first call's snapshots go with the second
        export(spark, url, lake, expire_snapshots=dt.timedelta(0))

        assert rows(catalog) == exported(spark, lake) == archived
    assert (len(paths(lake, "archive")), len(paths(lake, "compacted"))) == (2, 0)
    assert len(catalog.load_table(("shop", "archive")).snapshots()) == 1
    assert {finding.agrees for finding in verify(spark, url, lake, every=True)} == {True}


def test_lake_becomes_a_table_later_and_gets_new_columns(
    spark: Any, url: str, lake: str, catalog: Any, finish: Finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    archived = finish("orders", 6)
    export(spark, url, lake)
    older = {name: files.ARCHIVE[name] for name in files.ARCHIVE if name != "result"}

    with monkeypatch.context() as patch:
        patch.setattr(files, "ARCHIVE", older)
        iceberg._table(catalog, ("shop", "archive"), lake)
    assert "result" not in catalog.load_table(("shop", "archive")).schema().column_names
    export(spark, url, lake, table=TABLE)

    assert rows(catalog) == archived
    assert "result" in catalog.load_table(("shop", "archive")).schema().column_names


def test_run_that_died_before_its_registration_is_registered_by_the_next_call(
    spark: Any, url: str, lake: str, catalog: Any, finish: Finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    archived = finish("orders", 6)

    def die(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(iceberg, "register", die)
        with pytest.raises(KeyboardInterrupt):
            export(spark, url, lake, table=TABLE)
    assert ExportRun.objects.get().state == "PUBLISHING"

    export(spark, url, lake)

    assert rows(catalog) == archived


def test_verification_finds_a_table_that_lacks_a_file(
    spark: Any, url: str, lake: str, catalog: Any, finish: Finish
) -> None:
    finish("orders", 6)
    export(spark, url, lake, table=TABLE)
    catalog.load_table(("shop", "archive")).delete("queue = 'orders'")

    found = [finding for finding in verify(spark, url, lake) if finding.run is None]

    assert [(finding.in_lake, finding.expected, finding.agrees) for finding in found] == [
        (6, 0, False)
    ]
    assert "DIFFERS from the table catalog.shop.archive" in str(found[0])


def test_lake_made_anew_is_a_table_anew(
    spark: Any, url: str, lake: str, catalog: Any, finish: Finish
) -> None:
    archived = finish("orders", 6)
    export(spark, url, lake, table=TABLE)

    with pytest.raises(InvalidOption, match="already"):
        export(spark, url, lake, table="catalog.shop.other")
    export(spark, url, lake, table=TABLE, anew=True)

    assert rows(catalog) == archived
    assert len(files.files_in(lake)) == 1


@pytest.mark.parametrize("name", ["archive", "nowhere.shop.archive", "shop..archive"])
def test_table_of_no_catalog_is_refused_and_nothing_noted(
    spark: Any, url: str, lake: str, catalog: Any, name: str
) -> None:
    with pytest.raises(InvalidOption):
        export(spark, url, lake, table=name)

    assert not Lake.objects.exists()
