"""The same test on every kind of cluster: read, write, stream, consume, export and replay,
while an executor and then the driver are killed. Counts what arrives.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
from pyarrow import dataset

from tests.ports import free_port
from tests.spark.clusters import machines
from tests.waiting import until

__all__ = ["KINDS", "Outcome", "missing", "play"]

KINDS = ("local-cluster", "standalone", "spark-submit", "connect")
ROWS = 2_000
#: Half of the rows that are consumed are in FIFO groups.
GROUPS = 40
QUEUES = ("history", "work", "streamed", "consumed", "written", "replayed")
#: Seconds for one step: mostly for starting a driver and its executors.
PATIENCE = 240
DRIVER = Path(__file__).parent / "driver.py"
FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CONF = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "768m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.extraJavaOptions": FAST_START,
    "spark.executor.extraJavaOptions": FAST_START,
}


@dataclass(frozen=True)
class Outcome:
    """A check's result: numbers of rows, by their bodies."""

    check: str
    sent: int
    arrived: int
    twice: int
    kills: int = 0

    @property
    def whole(self) -> bool:
        return self.sent == self.arrived and not self.twice


@dataclass(frozen=True)
class Cluster:
    """How a cluster's driver is started and killed."""

    kind: str
    folder: Path
    command: tuple[str, ...]
    environment: dict[str, str]
    #: Spark Connect only: the command that starts the driver, a server for clients.
    server: tuple[str, ...] = ()
    port: int = 0

    @contextmanager
    def driver(self, *arguments: str) -> Iterator[tuple[Any, Any]]:
        """Start the driver; yields the program and the process that is the driver."""
        with ExitStack() as ends:
            served = None
            if self.server:
                served = self._start(self.server, "server.log")
                ends.callback(machines.stop, served)
                until(lambda: _listens(self.port) or served.poll() is not None, PATIENCE)
            program = self._start((*self.command, *arguments), "driver.log")
            ends.callback(machines.stop, program)
            yield program, served or program

    def log(self) -> str:
        logs = [self.folder / name for name in ("driver.log", "server.log")]
        return "\n".join(log.read_text()[-3000:] for log in logs if log.exists())

    def _for_server(self) -> dict[str, str]:
        """A Spark Connect server's environment: without client settings, with a memory limit."""
        memory = {"SPARK_DAEMON_MEMORY": CONF["spark.driver.memory"]}
        client = {"SPARK_REMOTE"}
        return {k: v for k, v in self.environment.items() if k not in client} | memory

    def _start(self, command: tuple[str, ...], log: str) -> subprocess.Popen[str]:
        with (self.folder / log).open("a") as output:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._for_server() if command == self.server else self.environment,
                stdout=output if command == self.server else subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,
            )


@contextmanager
def cluster(kind: str, folder: Path) -> Iterator[Cluster]:
    """A cluster that gets our packages as users ship them, and nothing of Django."""
    with ExitStack() as ends:
        environment = machines.environment(folder)
        master = "local-cluster[2,1,1024]"
        if kind == "local-cluster":
            # The workers' folder is in Spark's home, whatever is configured.
            ends.callback(shutil.rmtree, machines.SPARK / "work", ignore_errors=True)
        else:
            master = ends.enter_context(machines.standalone(folder, environment))
        conf = {**CONF, "spark.master": master}
        server: tuple[str, ...] = ()
        port = 0
        if kind == "spark-submit":
            # The drivers are installed on each machine, and the packages are shipped.
            python = machines.python_with(folder / "drivers")
            shipped = machines.package_zip(folder / "pgqueue.zip")
            command = (*_submit(conf), "--py-files", str(shipped), str(DRIVER))
        elif kind == "standalone":
            # A packed environment, unpacked in the driver's folder.
            machines.python_with(folder / "environment", *machines.PACKAGES)
            with tarfile.open(folder / "environment.tar.gz", "w:gz", compresslevel=1) as packed:
                packed.add(folder / "environment", ".")
            conf["spark.archives"] = f"{folder}/environment.tar.gz#environment"
            python = Path("./environment/bin/python")
            command = (str(python), str(DRIVER))
        else:
            connects = kind == "connect"
            python = machines.python_with(
                folder / "installed", *machines.PACKAGES, connect=connects
            )
            command = (str(python), str(DRIVER))
        if kind == "connect":
            port = free_port()
            serving = "org.apache.spark.sql.connect.service.SparkConnectServer"
            conf["spark.connect.grpc.binding.port"] = str(port)
            server = (*_submit(conf), "--class", serving, "spark-internal")
            environment["SPARK_REMOTE"] = f"sc://127.0.0.1:{port}"
        environment["CLUSTER_CONF"] = json.dumps(conf)
        environment["PYSPARK_PYTHON"] = str(python)
        yield Cluster(kind, folder, command, environment, server, port)


def _submit(conf: dict[str, str]) -> tuple[str, ...]:
    given = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    return (machines.SUBMIT, *given)


def _listens(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


def missing(kind: str) -> list[str]:
    """Packages required for this kind that this Python lacks."""
    needed = ("grpc", "grpc_status", "pandas") if kind == "connect" else ()
    return [name for name in needed if find_spec(name) is None]


def play(kind: str, url: str, folder: Path) -> list[Outcome]:
    """Run the test on one kind of cluster; returns each check's outcome. Leaves no row behind."""
    # Imported late: drivers and the command set up Django themselves.
    from django_pgqueue.models import Lake, Message

    folder.mkdir()
    for name in QUEUES:
        Message.objects.create_queue(name)
    rows = [{"n": n} for n in range(ROWS)]
    Message.objects.send_batch("history", rows)
    groups = [f"g{n % GROUPS}" if n < ROWS // 2 else None for n in range(ROWS)]
    random.Random(1).shuffle(groups)
    Message.objects.send_batch("work", rows, group=groups)
    while messages := Message.objects.read("history", qty=1000):
        Message.objects.archive("history", messages)
    try:
        with cluster(kind, folder) as running:
            return _play_on(running, url)
    finally:
        for name in QUEUES:
            Message.objects.drop_queue(name)
        Lake.objects.all().delete()
        with psycopg.connect(url) as connection:
            # A killed task may leave staged rows, and a stream leaves its written batches.
            connection.execute("DELETE FROM pgqueue_staging")
            connection.execute("DELETE FROM pgqueue_spark_txn")


def _play_on(running: Cluster, url: str) -> list[Outcome]:
    kills = _streams_until_killed(running, url)
    taken = _others_read()
    with running.driver("jobs", url, str(running.folder)) as (program, _):
        told, _ = program.communicate(timeout=2 * PATIENCE)
    assert program.returncode == 0, running.log()
    found = json.loads(told.strip().splitlines()[-1])
    with psycopg.connect(url) as connection:
        return [
            Outcome("read", ROWS, found["distinct"], found["read"] - found["distinct"]),
            _in_queue(connection, "write", "written"),
            _in_queue(connection, "stream of the archive", "streamed", kills),
            _consumed(connection, taken, kills),
            _in_lake(running.folder / "lake"),
            _in_queue(connection, "replay", "replayed"),
        ]


def _streams_until_killed(running: Cluster, url: str) -> int:
    """Run both streams; kill an executor and then the driver. Returns how many were killed."""

    def arrived() -> list[int]:
        with psycopg.connect(url) as connection:
            return [_in_queue(connection, "", name).arrived for name in ("streamed", "consumed")]

    with running.driver("streams", url, str(running.folder)) as (program, driver):

        def further_than(before: list[int]) -> Any:
            assert (program.poll(), driver.poll()) == (None, None), "the driver ended"
            now = arrived()
            assert max(now) < ROWS, "a stream ended before the kill: take smaller batches"
            return now if all(new > old for new, old in zip(now, before, strict=True)) else None

        try:
            begun = until(lambda: further_than([0, 0]), PATIENCE)
            executor = machines.executors_under(driver.pid, running.folder)[0]
            os.kill(executor, signal.SIGKILL)
            until(lambda: further_than(begun), PATIENCE)
        except AssertionError as error:
            raise AssertionError(
                f"{error}, with {arrived()} of {ROWS} rows\n{running.log()}"
            ) from error
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert all(0 < count < ROWS for count in arrived()), "killed too late to be of interest"
    _end_leases()
    return 2


def _others_read() -> dict[int, set[int]]:
    """Another consumer handles messages, at least one with a group and one without. Returns their
    rows, each with those that the stream's batch loses with it: the rows of its group.
    """
    from django_pgqueue.models import Message

    lost: dict[int, set[int]] = {}
    groups: set[str | None] = set()
    while len(groups) < 2 or None not in groups:
        [message] = until(_read_one)
        of_group = Message.objects.filter(queue__name="work", group_key=message.group_key)
        rows = of_group.values_list("body__n", flat=True) if message.group_key else []
        lost[message.body["n"]] = {message.body["n"], *rows}
        groups.add(message.group_key)
        Message.objects.archive("work", message)
    return lost


def _read_one() -> Any:
    from django_pgqueue.models import Message

    messages = Message.objects.read("work")
    if not messages:
        _end_leases()  # a worker that outlived the killed driver for a moment extended them
    return messages


def _consumed(
    connection: psycopg.Connection[Any], taken: dict[int, set[int]], kills: int
) -> Outcome:
    """Rows that the stream or another consumer had. Lost rows may come twice."""
    found = connection.execute(
        "SELECT (body ->> 'n')::integer, count(*) FROM pgqueue_message m "
        "JOIN pgqueue_queue q ON q.id = m.queue_id WHERE q.name = 'consumed' GROUP BY 1"
    ).fetchall()
    lost = set().union(*taken.values())
    arrived = {n for n, _ in found} | set(taken)
    twice = sum(count - 1 for n, count in found if n not in lost)
    return Outcome("queue as a stream", ROWS, len(arrived), twice, kills)


def _end_leases() -> None:
    """End the leases of a batch that is not in the checkpoint yet, as time would."""
    from django_pgqueue.models import Message

    ids = Message.objects.filter(queue__name="work").values_list("id", flat=True)
    Message.objects.set_vt("work", list(ids), 0)


def _in_queue(
    connection: psycopg.Connection[Any], check: str, name: str, kills: int = 0
) -> Outcome:
    row = connection.execute(
        "SELECT count(*), count(DISTINCT body ->> 'n') FROM pgqueue_message m "
        "JOIN pgqueue_queue q ON q.id = m.queue_id WHERE q.name = %s",
        [name],
    ).fetchone()
    assert row is not None
    return Outcome(check, ROWS, row[1], row[0] - row[1], kills)


def _in_lake(lake: Path) -> Outcome:
    ids = dataset.dataset(lake / "archive" / "queue=history").to_table(["id"])["id"]
    distinct = len(ids.unique())
    return Outcome("export", ROWS, distinct, len(ids) - distinct)
