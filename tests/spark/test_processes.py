"""Nothing depends on one process: executors and the server are killed in the middle."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from environ import Env

from django_pgqueue.models import Message
from example_project.embedded_postgres.server import EmbeddedServer
from tests.actors import Actor, call, manage
from tests.waiting import until

Finish = Callable[..., list[int]]
ROOT = Path(__file__).resolve().parents[2]

# Run in a process of its own: a session of another kind cannot live beside the shared one.
CLUSTER = """
import json, os, sys, time
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import functions as f
from pyspark_pgqueue.session import local_session

url, notes = sys.argv[1], Path(sys.argv[2])
spark = local_session(
    "cluster", master="local-cluster[2,1,512]", cores=2, memory="512m",
    spark__executor__memory="512m", spark__task__maxFailures="4",
    spark__sql__adaptive__enabled="false",
)

@f.udf("string", useArrow=False)
def slowly(body):
    # The worker's parent's parent is the executor; one of them will be killed while it works.
    if not getattr(slowly_told, "done", False):
        slowly_told.done = True
        (notes / f"{os.getpid()}").touch()
        time.sleep(2)
    return body

class slowly_told: pass

rows = spark.read.format("pgqueue").options(
    url=url, columns="id,body", subscribe="orders", maxRecordsPerPartition="500").load()
rows.select(slowly("body").alias("body")).write.format("pgqueue").mode("append").options(
    url=url, queue="copies").save()
print(json.dumps({"done": True}), flush=True)
spark.stop()
"""


def executors_under(pid: int) -> list[int]:
    """The JVMs that run tasks, among all descendants of a process."""
    table = subprocess.run(
        ["ps", "-eww", "-o", "pid,ppid,args"], capture_output=True, text=True
    ).stdout
    lines = [line.split(None, 2) for line in table.splitlines()[1:]]
    family = {pid}
    while grown := {int(p) for p, parent, _ in lines if int(parent) in family} - family:
        family |= grown
    return [
        int(p)
        for p, _, command in lines
        if int(p) in family and "CoarseGrainedExecutorBackend" in command and "java" in command
    ]


@pytest.mark.slow
@pytest.mark.spark
def test_executor_killed_in_the_middle_changes_nothing(
    url: str, finish: Finish, tmp_path: Path
) -> None:
    finish("orders", 4000)
    Message.objects.create_queue("copies")
    script, notes, log = tmp_path / "cluster.py", tmp_path / "notes", tmp_path / "log"
    script.write_text(CLUSTER)
    notes.mkdir()
    with log.open("w") as output:
        driver = subprocess.Popen(
            [sys.executable, str(script), url, str(notes)],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "SPARK_WORKER_DIR": str(tmp_path / "work"),
            },
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            start_new_session=True,
        )
        try:
            until(lambda: any(notes.iterdir()) or driver.poll() is not None, 300)
            assert driver.poll() is None, log.read_text()[-3000:]
            os.kill(executors_under(driver.pid)[0], signal.SIGKILL)
            told, _ = driver.communicate(timeout=300)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()

    assert json.loads(told.strip().splitlines()[-1]) == {"done": True}
    copies = Message.objects.filter(queue__name="copies").values_list("body", flat=True)
    assert sorted(body["n"] for body in copies) == list(range(4000))


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    """A PostgreSQL of our own that may be killed."""
    # Short, for the sake of the socket's path.
    directory = Path(tempfile.mkdtemp(prefix="pgqueue-spark-"))
    server = EmbeddedServer(directory, settings={"shared_buffers": "32MB"})
    server.start()
    yield server
    server.stop()
    shutil.rmtree(directory, ignore_errors=True)
    shutil.rmtree(server.home, ignore_errors=True)


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
        """Archive of orders → queue of copies, to be restarted from its checkpoint."""
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
