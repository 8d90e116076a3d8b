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
from environ import Env

from django_pgqueue.embedded.server import EmbeddedServer
from django_pgqueue.models import ArchivedMessage, Message
from tests.actors import Actor, call, manage
from tests.servers import one_server
from tests.spark.clusters.machines import executors_under, stop
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

def pause_until_killed():
    (folder / "begun").touch()
    while not (folder / "killed").exists():
        time.sleep(0.01)
"""

# Tasks of 250 rows, one after another.
COPYING = """
spark = session(
    "local-cluster[1,1,512]", spark__executor__memory="512m",
    spark__executor__extraJavaOptions=fast_start,
)

@f.udf("string", useArrow=False)
def pausing(body):
    if body == '{"n": 700}':
        pause_until_killed()
    return body

rows = spark.read.format("pgqueue").options(
    url=url, columns="id,body", subscribe="orders", maxRecordsPerPartition="250").load()
rows.select(pausing("body").alias("body")).write.format("pgqueue").mode("append").options(
    url=url, queue="copies").save()
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


def wait_for_pause(process: subprocess.Popen[str], folder: Path) -> None:
    until(lambda: (folder / "begun").exists() or process.poll() is not None, 300)
    assert process.poll() is None, process.communicate()[0][-3000:]


def wait_for_end(process: subprocess.Popen[str]) -> None:
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 0, told[-3000:]


@pytest.mark.slow
@pytest.mark.spark
def test_executor_killed_in_the_middle_changes_nothing(
    url: str, finish: Finish, tmp_path: Path
) -> None:
    finish("orders", 1000)
    Message.objects.create_queue("copies")

    with driver(url, tmp_path, COPYING) as process:
        wait_for_pause(process, tmp_path)
        [executor] = executors_under(process.pid, tmp_path)
        os.kill(executor, signal.SIGKILL)
        (tmp_path / "killed").touch()
        wait_for_end(process)

    copies = Message.objects.filter(queue__name="copies").values_list("body", flat=True)
    assert sorted(body["n"] for body in copies) == list(range(1000))


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
