"""Lakes on S3, with a compatible server on this machine, and on a store of fsspec."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from django_pgqueue.models import ExportRun, Lake
from pyspark_pgqueue.errors import InvalidOption, LakeDiffers
from pyspark_pgqueue.jobs import executors
from pyspark_pgqueue.jobs.replay import replay
from pyspark_pgqueue.jobs.verify import verify
from pyspark_pgqueue.lake import files, stores
from pyspark_pgqueue.source.stream import ArchiveStream
from tests.spark.conftest import PublishingDies, export, exported
from tests.spark.lake.test_stream import Reader
from tests.spark.test_memory import MEGABYTE, batch

# boto3 keeps sockets open for the next request.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

Finish = Callable[..., list[int]]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def server(s3_environment: dict[str, str]) -> Iterator[Any]:
    """Start an S3-compatible server; yields a client."""
    boto3 = pytest.importorskip("boto3")
    moto = pytest.importorskip("moto.server", exc_type=ImportError)
    port = int(s3_environment["AWS_ENDPOINT_URL"].rpartition(":")[2])
    server = moto.ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    os.environ.update(s3_environment)
    yield boto3.client("s3")
    server.stop()


class Bucket:
    """A bucket's contents: objects and incomplete uploads."""

    def __init__(self, client: Any, name: str) -> None:
        self.client, self.name = client, name

    def objects(self) -> list[str]:
        told = self.client.list_objects_v2(Bucket=self.name).get("Contents", [])
        return [each["Key"] for each in told if not each["Key"].endswith("/")]

    def uploads(self) -> list[str]:
        told = self.client.list_multipart_uploads(Bucket=self.name).get("Uploads", [])
        return [each["Key"] for each in told]


@pytest.fixture
def bucket(server: Any, request: pytest.FixtureRequest) -> Iterator[Bucket]:
    bucket = Bucket(server, f"lake-{abs(hash(request.node.name))}")
    where = {"LocationConstraint": "eu-central-1"}
    server.create_bucket(Bucket=bucket.name, CreateBucketConfiguration=where)
    yield bucket
    for key in bucket.objects():
        server.delete_object(Bucket=bucket.name, Key=key)


@pytest.fixture
def lake(bucket: Bucket) -> str:
    return f"s3://{bucket.name}/shop/lake"


def test_lake_on_s3_does_what_a_directory_does(
    spark: Any,
    url: str,
    lake: str,
    bucket: Bucket,
    finish: Finish,
    archive_stream: Callable[..., ArchiveStream],
) -> None:
    first = finish("007", 20)
    assert export(spark, url, lake).rows == 20
    second = finish("007", 5)

    # An s3a:// address is the same lake.
    assert export(spark, url, lake.replace("s3://", "s3a://"), max_files=1).compacted == 1

    assert exported(spark, lake) == first + second
    assert Reader(archive_stream(lake=lake)).deliver() == first + second
    assert len(bucket.objects()) == 1
    assert Lake.objects.get().path == lake
    assert [finding.agrees for finding in verify(spark, url, lake)] == [True, True]
    assert replay(spark, url, lake, queue="007", dry_run=True).rows == 25


def test_run_on_s3_appears_as_it_is_published_and_not_before(
    spark: Any,
    url: str,
    lake: str,
    bucket: Bucket,
    finish: Finish,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archived = finish("orders", 20)
    on_executors = executors.on_executors

    def die_after(*arguments: Any) -> Any:
        on_executors(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(executors, "on_executors", die_after)
        with pytest.raises(KeyboardInterrupt):
            export(spark, url, lake)
    assert bucket.objects() == []
    assert len(bucket.uploads()) == 1

    assert export(spark, url, lake).resumed

    assert exported(spark, lake) == archived
    assert len(bucket.objects()) == 1
    assert bucket.uploads() == []


def test_run_that_died_while_publishing_on_s3_is_finished(
    spark: Any, url: str, lake: str, finish: Finish, publishing_dies: PublishingDies
) -> None:
    archived = finish("orders", 20) + finish("mails", 20)
    with publishing_dies():
        export(spark, url, lake)

    export(spark, url, lake)

    assert exported(spark, lake) == archived
    assert ExportRun.objects.get().state == "DONE"


def test_publishing_twice_on_s3_changes_nothing(lake: str, bucket: Bucket) -> None:
    (file,) = files.write(lake, 1, 0, [batch(0, MEGABYTE).slice(0, 1)])

    files.publish(lake, [file])
    files.publish(lake, [file])

    assert bucket.objects() == [f"shop/lake/{file['to']}"]


@pytest.mark.parametrize("published", [True, False])
def test_upload_that_is_gone_must_have_been_published(lake: str, published: bool) -> None:
    stub = pytest.importorskip("botocore.stub")
    (file,) = files.write(lake, 1, 1, [batch(0, MEGABYTE).slice(0, 1)])
    if published:
        files.publish(lake, [file])
    store = stores.open_at(lake)
    assert isinstance(store, stores.Uploads)
    # S3 would answer so after a while; this server raises another error instead.
    answers = stub.Stubber(store.client)
    answers.add_client_error("complete_multipart_upload", "NoSuchUpload")

    with answers, nullcontext() if published else pytest.raises(LakeDiffers, match="neither"):
        store.publish([file])


def test_task_that_fails_leaves_no_part_of_its_upload(lake: str, bucket: Bucket) -> None:
    def batches() -> Iterator[Any]:
        for number in range(40):
            yield batch(number, MEGABYTE)
        assert bucket.uploads()
        raise ConnectionError("the database is gone")

    with pytest.raises(ConnectionError):
        files.write(lake, 1, 0, batches())

    assert bucket.uploads() == bucket.objects() == []


def test_large_file_is_uploaded_in_parts(lake: str, bucket: Bucket) -> None:
    sink = stores.open_at(lake).create("archive/large.parquet")
    text = os.urandom(3 * MEGABYTE)
    for _ in range(6):
        sink.write(text)
    size = sink.tell()
    sink.close()

    store = stores.open_at(lake)
    told = store.written("archive/large.parquet", sink)
    store.publish([told])

    assert size == 18 * MEGABYTE
    assert len(told["parts"]) == 3
    with store.filesystem.open_input_stream(store.path("archive/large.parquet")) as stream:
        assert stream.read() == text * 6


@pytest.mark.parametrize(
    "address",
    [
        "s3://exporter:hidden@bucket/lake",
        "s3a://exporter:hidden@bucket/lake",
        "abfs://:hidden@account.dfs.core.windows.net/lake",
        "s3://bucket/lake?secret_key=hidden",
    ],
)
def test_address_with_credentials_is_refused_and_not_repeated(
    spark: Any, url: str, address: str
) -> None:
    with pytest.raises(InvalidOption, match="not contain credentials") as refused:
        export(spark, url, address)

    assert "hidden" not in str(refused.value)
    assert not Lake.objects.exists()


def test_lake_may_be_where_only_fsspec_knows(
    spark: Any,
    url: str,
    tmp_path: Path,
    finish: Finish,
    archive_stream: Callable[..., ArchiveStream],
) -> None:
    pytest.importorskip("fsspec")
    lake = f"local://{tmp_path}/lake"
    archived = finish("orders", 10)

    export(spark, url, lake)

    assert exported(spark, lake) == archived
    assert Reader(archive_stream(lake=lake)).deliver() == archived
    assert [finding.agrees for finding in verify(spark, url, lake)] == [True]
    assert not any((tmp_path / "lake" / "_staging").glob("*"))


SECRETIVE = """
import json, os, sys, urllib.request
from pathlib import Path
from pyspark_pgqueue.lake.reading import read as read_lake
from pyspark_pgqueue.jobs.export import export
from pyspark_pgqueue.session import local_session

url, lake = os.environ["PGQUEUE_URL"], sys.argv[1]
spark = local_session(cores=1, memory="512m", spark__ui__enabled="true", spark__log__level="INFO")
print(export(spark, url, lake))
print(spark.read.format("pgqueue").option("url", url).load().select("id").count())
print(read_lake(spark, lake).count())
context = spark.sparkContext
for page in ("environment", "sql?details=true", "jobs", "stages"):
    where = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/{page}"
    print(urllib.request.urlopen(where).read().decode())
for process in Path("/proc").glob("[0-9]*"):
    try:
        print((process / "cmdline").read_bytes().replace(b"\\0", b" ").decode())
    except OSError:
        pass
"""


@pytest.mark.slow
def test_secrets_are_in_no_log_no_page_of_spark_and_no_process_list(
    spark: Any, url: str, lake: str, finish: Finish, s3_environment: dict[str, str]
) -> None:
    finish("orders", 20)
    # The server accepts any password; the test looks where the password appears.
    environment = {"PGQUEUE_URL": f"{url} password=hidden-of-postgres", "PYTHONPATH": str(ROOT)}

    done = subprocess.run(
        [sys.executable, "-c", SECRETIVE, lake],
        env={**os.environ, **s3_environment, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert "Run " in done.stdout
    assert "pyspark" in done.stdout  # the process list and Spark's pages
    for told in (done.stdout, done.stderr):
        assert "hidden-of-postgres" not in told
        assert s3_environment["AWS_SECRET_ACCESS_KEY"] not in told
