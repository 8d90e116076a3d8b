"""One Spark session for all tests, and queues with archived messages."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db.models import F

from django_pgqueue.management.jobs import url_of
from django_pgqueue.models import (
    ArchivedMessage,
    Lake,
    Message,
    PurgeMark,
    Queue,
    Rollup,
    RollupRun,
)
from tests.actors import Actor, begin, call
from tests.ports import free_port
from tests.waiting import until

HERE = Path(__file__).parent
PublishingDies = Callable[[], AbstractContextManager[None]]
FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SLOW_MACHINE = "Python worker failed to connect back"
DAY = dt.timedelta(days=1)
NEEDED = ("pyspark", "pyarrow", "adbc_driver_postgresql")

missing = [name for name in NEEDED if find_spec(name) is None]
if missing:
    # Without Spark, only test_missing.py can be imported.
    collect_ignore = [
        str(path.relative_to(HERE))
        for path in HERE.rglob("test_*.py")
        if path.name != "test_missing.py"
    ]


def pytest_report_header() -> str | None:
    if missing or shutil.which("java") is None:
        return (
            f"Spark's tests are skipped: {', '.join(missing) or 'a Java runtime'} is missing. "
            'They need pip install "django-postgres-mq[spark]" and Java 17.'
        )
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            # Spark's own Python leaves sockets to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            # Spark gives a Python process that it starts ten seconds, and has no setting for it.
            item.add_marker(pytest.mark.flaky(reruns=2, only_rerun=[SLOW_MACHINE]))


@pytest.fixture(scope="session")
def s3_environment() -> dict[str, str]:
    """The address and credentials of S3. A server that a test starts listens there."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "exporter",
        "AWS_SECRET_ACCESS_KEY": "secret/of+the+store",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@pytest.fixture
def publishing_dies(monkeypatch: pytest.MonkeyPatch) -> PublishingDies:
    """A block in which an export is interrupted after half of its files were published."""
    from pyspark_pgqueue.lake import files

    @contextmanager
    def dying() -> Iterator[None]:
        publish = files.publish

        def half(path: str, add: Any) -> None:
            publish(path, add[:1])
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(files, "publish", half)
            with pytest.raises(KeyboardInterrupt):
                yield

    return dying


@pytest.fixture(scope="session")
def spark(s3_environment: dict[str, str]) -> Iterator[Any]:
    from pyspark_pgqueue.session import local_session

    # Workers inherit the environment at the session's start.
    os.environ.update(s3_environment)
    session = local_session(
        # A failed task is retried, as on a cluster.
        master="local[2,3]",
        cores=1,
        spark__driver__extraJavaOptions=FAST_START,
        spark__default__parallelism="2",
        spark__sql__adaptive__enabled="false",
        spark__sql__streaming__minBatchesToRetain="2",
        spark__sql__streaming__pollingDelay="10ms",
    )
    yield session
    session.stop()


@pytest.fixture
def url(committed: None, spark: Any) -> Iterator[str]:
    """The tests' database for Spark. Queues and lakes created by a test are deleted after it."""
    yield url_of("default")
    for model in (Lake, Rollup, RollupRun):
        model.objects.all().delete()


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture
def archive_stream(url: str) -> Iterator[Callable[..., Any]]:
    """The reader of the archive, or of a lake, as a stream, as on the driver, without Spark."""
    from pyspark.sql.types import StructType

    from pyspark_pgqueue.lake.stream import LakeStream
    from pyspark_pgqueue.source.options import Options
    from pyspark_pgqueue.source.stream import ArchiveStream

    made: list[Any] = []

    def make(**options: str) -> ArchiveStream:
        given = Options.parse({"url": url, **options})
        kind = ArchiveStream if given.lake is None else LakeStream
        made.append(kind(given, StructType.fromDDL("id bigint, body string")))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def source(archive_stream: Callable[..., Any]) -> Any:
    return archive_stream()


@pytest.fixture
def read(spark: Any, url: str) -> Callable[..., Any]:
    """Load the data source with these options, as a DataFrame."""

    def load(**options: Any) -> Any:
        return spark.read.format("pgqueue").options(url=url, **options).load()

    return load


@pytest.fixture
def finish(url: str) -> Callable[..., list[int]]:
    """Send messages to a queue, creating it if needed, and archive them; returns their ids."""

    def send_and_archive(name: str, count: int, **options: Any) -> list[int]:
        Message.objects.create_queue(name, **options)
        Message.objects.send_batch(name, [{"n": n} for n in range(count)], headers={"h": 1})
        return archive_all(name)

    return send_and_archive


@pytest.fixture
def finish_long_ago(finish: Callable[..., list[int]]) -> Callable[[int], list[int]]:
    """Archive messages of a queue with a retention of one day, dated two days ago."""

    def send_archive_and_age(count: int) -> list[int]:
        ids = finish("orders", count, retention=DAY)
        old = ArchivedMessage.objects.filter(id__in=ids)
        old.update(archived_at=F("archived_at") - 2 * DAY)
        return ids

    return send_archive_and_age


def wait_for_commits(url: str) -> None:
    """Wait until no open transaction, such as autovacuum's, is older than the archived messages."""
    older = (
        "SELECT max(archive_xid) >= pg_snapshot_xmin(pg_current_snapshot())::text::bigint "
        "FROM pgqueue_archive"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        until(lambda: connection.execute(older).fetchone() != (True,), 60)


def export(spark: Any, url: str, lake: str, **options: Any) -> Any:
    """Export everything: waits first, since a run omits what is newer than the oldest open
    transaction.
    """
    from pyspark_pgqueue.jobs.export import export as export_at_once

    wait_for_commits(url)
    return export_at_once(spark, url, lake, **options)


def exported(spark: Any, lake: str) -> list[int]:
    """The ids in a lake."""
    from pyspark_pgqueue.lake.reading import read as read_lake

    return sorted(row.id for row in read_lake(spark, lake, ["id"]).collect())


def archive_late(actor: Actor) -> int:
    """Archive a message of orders in a transaction that stays open; returns its id."""
    pk = Message.objects.send("orders", 1)
    (held,) = Message.objects.read("orders")
    actor.do(begin)
    actor.do(call, "archive", "orders", held.receipt)
    return pk


def purge(name: str) -> None:
    """Note that everything archived in a queue so far may have been removed."""
    newest = ArchivedMessage.objects.latest("archive_xid").archive_xid
    PurgeMark.objects.update_or_create(
        queue=Queue.objects.resolve(name), defaults={"below_xid": newest + 1}
    )


def archive_all(name: str) -> list[int]:
    done: list[int] = []
    while messages := Message.objects.read(name, qty=500):
        done += Message.objects.archive(name, messages)
    return done
