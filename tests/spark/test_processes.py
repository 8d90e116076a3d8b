"""No process is indispensable: executors, drivers and the server are killed meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db.models import F
from environ import Env

from django_pgqueue import queue
from django_pgqueue.embedded.server import EmbeddedServer
from django_pgqueue.models import ArchivedMessage, Message
from tests.actors import Actor, call, commit, manage
from tests.servers import one_server
from tests.spark.clusters.machines import executors_under, stop
from tests.spark.conftest import DAY, archive_late, export
from tests.waiting import until

Finish = Callable[..., list[int]]
ROOT = Path(__file__).resolve().parents[2]

# Run in a process of its own, since only one session can exist in a process.
START = """
import sys, time
from pathlib import Path
from pyspark.sql import functions as f
from pyspark_pgqueue.session import local_session

url, folder = sys.argv[1], Path(sys.argv[2])
fast_start = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

def session(master, **conf):
    return local_session(
        master=master, cores=1, memory="512m", spark__driver__extraJavaOptions=fast_start,
        spark__sql__adaptive__enabled="false", **conf,
    )

def pause_until_killed(place=""):
    (folder / f"begun{place}").touch()
    while not (folder / f"killed{place}").exists():
        time.sleep(0.01)

def body_pausing_at(places):
    @f.udf("string", useArrow=False)
    def pausing(body):
        if body in places:
            pause_until_killed(places[body])
        return body

    return pausing("body").alias("body")
"""

WITH_EXECUTOR = """
spark = session(
    "local-cluster[1,1,512]", spark__executor__memory="512m",
    spark__executor__extraJavaOptions=fast_start,
)
"""
ALONE = """
spark = session("local[1]")
"""

# Tasks of 250 rows, one after another.
COPYING = """
rows = spark.read.format("pgqueue").options(
    url=url, columns="id,body", subscribe="orders", maxRecordsPerPartition="250").load()
rows.select(body_pausing_at({'{"n": 700}': "copying"})).write.format("pgqueue").mode(
    "append").options(url=url, queue="copies").save()
"""

# Every body once, out of the lake and the archive together.
DISTINCT = """
source = spark.readStream.format("pgqueue").options(
    url=url, lake=sys.argv[3], columns="body", subscribe="orders", maxOffsetsPerTrigger="400")
rows = source.load().select(body_pausing_at({'{"n": 700}': "lake", '{"n": 1100}': "archive"}))
query = rows.dropDuplicates(["body"]).writeStream.format("pgqueue").trigger(
    availableNow=True).options(
    url=url, queue="distinct", checkpointLocation=str(folder / "checkpoint")).start()
query.awaitTermination()
"""

# Batches of 20 into a sink that does not recognise batches; the driver is killed in the third.
CONSUMING = """
spark = session("local[1]")

def append(frame, number):
    rows = frame.selectExpr("get_json_object(body, '$.n') AS n").collect()
    with (folder / "arrived").open("a") as arrived:
        arrived.writelines(row.n + "\\n" for row in rows)
    if number == 2:
        pause_until_killed()

source = spark.readStream.format("pgqueue").options(
    url=url, subscribe="orders", mode="consume", visibilityTimeout=sys.argv[3],
    maxOffsetsPerTrigger="20")
query = source.load().writeStream.foreachBatch(append).trigger(availableNow=True).option(
    "checkpointLocation", str(folder / "checkpoint")).start()
query.awaitTermination()
"""


@contextmanager
def driver(url: str, folder: Path, script: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Start a driver in a process of its own."""
    program = folder / "driver.py"
    program.write_text(START + script)
    process = subprocess.Popen(
        [sys.executable, str(program), url, str(folder), *more],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        stop(process)


def wait_for_pause(process: subprocess.Popen[str], folder: Path, place: str = "") -> None:
    until(lambda: (folder / f"begun{place}").exists() or process.poll() is not None, 300)
    assert process.poll() is None, process.communicate()[0][-3000:]


def wait_for_end(process: subprocess.Popen[str]) -> None:
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 0, told[-3000:]


@pytest.mark.slow
@pytest.mark.spark
def test_killed_executors_and_a_killed_driver_change_nothing(
    spark: Any, url: str, finish: Finish, actor: Actor, lake: str, tmp_path: Path
) -> None:
    finish("orders", 1000, retention=DAY)
    for name in ("copies", "distinct"):
        Message.objects.create_queue(name)
    export(spark, url, lake, holds_retention=True)
    archive_late(actor)
    finish("orders", 1200)

    with driver(url, tmp_path, WITH_EXECUTOR + COPYING + DISTINCT, lake) as process:
        for place in ("copying", "lake"):
            wait_for_pause(process, tmp_path, place)
            [executor] = executors_under(process.pid, tmp_path)
            os.kill(executor, signal.SIGKILL)
            (tmp_path / f"killed{place}").touch()
        wait_for_pause(process, tmp_path, "archive")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    (tmp_path / "killedarchive").touch()
    assert sorted(numbers("copies")) == sorted([*range(1000), *range(1200)])

    # The batch that comes again was read from the archive. Now only the lake has its messages.
    actor.do(commit)
    assert export(spark, url, lake, max_files=1).compacted == 1
    ArchivedMessage.objects.update(archived_at=F("archived_at") - 2 * DAY)
    assert queue("orders").maintain().pruned == 2201
    finish("orders", 1300)
    with driver(url, tmp_path, ALONE + DISTINCT, lake) as process:
        wait_for_end(process)

    assert sorted(numbers("distinct")) == [-1, *range(1300)]


def numbers(name: str) -> list[int]:
    """The numbers in a queue's bodies; -1 for the message that was archived late."""
    bodies = Message.objects.filter(queue__name=name).values_list("body", flat=True)
    return [body["n"] if isinstance(body, dict) else -1 for body in bodies]


@pytest.fixture
def killed_driver(url: str, tmp_path: Path) -> Callable[[int], list[int]]:
    """Consume 100 messages, and kill the driver in its third batch; returns the first 60 numbers.

    The argument is the visibility timeout in seconds.
    """
    Message.objects.create_queue("orders")
    Message.objects.send_batch("orders", [{"n": n} for n in range(100)])

    def consume_until_killed(visibility_timeout: int) -> list[int]:
        with driver(url, tmp_path, CONSUMING, str(visibility_timeout)) as process:
            wait_for_pause(process, tmp_path)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        (tmp_path / "killed").touch()
        return arrived(tmp_path)

    return consume_until_killed


def arrived(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "arrived").read_text().split()]


@pytest.mark.slow
@pytest.mark.spark
def test_killed_driver_brings_its_batch_again_and_nothing_else_twice(
    url: str, killed_driver: Callable[[int], list[int]], tmp_path: Path
) -> None:
    before = killed_driver(300)

    with driver(url, tmp_path, CONSUMING, "300") as process:
        wait_for_end(process)

    times = Counter(arrived(tmp_path))
    assert sorted(times) == list(range(100))
    assert [n for n in sorted(times) if times[n] == 2] == sorted(before[40:])
    assert times.total() == 120
    assert ArchivedMessage.objects.filter(state="COMPLETED").count() == 100


@pytest.mark.slow
@pytest.mark.spark
def test_leases_of_a_killed_driver_come_back_to_other_consumers(
    killed_driver: Callable[[int], list[int]],
) -> None:
    before = killed_driver(3)
    taken: list[Any] = []

    def take() -> bool:
        taken.extend(Message.objects.read("orders", qty=100, vt=300))
        return len(taken) == 60

    until(take, 60)

    twice = {message.body["n"] for message in taken if message.read_ct == 2}
    assert twice == set(before[40:])
    assert {*before, *(message.body["n"] for message in taken)} == set(range(100))


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    """A PostgreSQL server that the test may kill."""
    with one_server({"shared_buffers": "32MB"}) as server:
        yield server


@pytest.mark.slow
def test_server_killed_in_between_loses_and_doubles_nothing(
    spark: Any, server: EmbeddedServer, tmp_path: Path
) -> None:
    url = server.url()
    databases = {"default": Env.db_url_config(url)}

    def archive(first: int, last: int) -> None:
        with Actor(databases) as other:
            other.do(call, "send_batch", "orders", [{"n": n} for n in range(first, last)])
            messages = other.do(call, "read", "orders", qty=last - first)
            other.do(call, "archive", "orders", [message.receipt for message in messages])

    def copy() -> Any:
        """A stream from the archive of orders to the queue copies, with its checkpoint."""
        source = spark.readStream.format("pgqueue").options(
            url=url, subscribe="orders", columns="body", maxOffsetsPerTrigger="40"
        )
        sink = source.load().writeStream.format("pgqueue").options(url=url, queue="copies")
        sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return sink.trigger(availableNow=True).start()

    def copied() -> list[int]:
        with psycopg.connect(url) as connection:
            rows = connection.execute(
                "SELECT (body ->> 'n')::int FROM pgqueue_message m "
                "JOIN pgqueue_queue q ON q.id = m.queue_id WHERE q.name = 'copies' ORDER BY 1"
            ).fetchall()
        return [row[0] for row in rows]

    with Actor(databases) as first:
        first.do(manage, "migrate", verbosity=0)
        first.do(call, "create_queue", "orders")
        first.do(call, "create_queue", "copies")
    archive(0, 400)

    query = copy()
    until(lambda: copied() or query.exception(), 120)
    server.kill("immediate")
    with pytest.raises(Exception, match=r"connect|terminat|closed|server"):
        query.awaitTermination(120)
    server.start()
    assert 0 < len(copied()) < 400
    archive(400, 500)
    assert copy().awaitTermination(120)

    assert copied() == list(range(500))
