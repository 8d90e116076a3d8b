"""A cluster with automatic failover: Patroni with etcd, and three PostgreSQL 15 servers.

Needs Debian's packages patroni, etcd-server and postgresql-15. Everything runs on 127.0.0.1, in a
temporary directory.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg

from benchmarks.failover.servers import Servers, execute, kill, until
from django_pgqueue.embedded.server import server_user
from tests.ports import free_port

__all__ = ["Cluster", "cluster", "missing"]

BIN_DIR = Path("/usr/lib/postgresql/15/bin")
PROGRAMS = ("/usr/bin/etcd", "/usr/bin/patroni", f"{BIN_DIR}/postgres")
NODES = ("a", "b", "c")
CLUSTER = {
    # Patroni's minimum values: the leader key's time to live, the seconds between two checks, and
    # how long a node retries when etcd does not answer.
    "ttl": 20,
    "loop_wait": 1,
    "retry_timeout": 3,
    # A dead primary is not restarted while a standby can take over.
    "primary_start_timeout": 0,
    "postgresql": {
        "use_pg_rewind": True,
        "parameters": {"wal_log_hints": "on", "wal_retrieve_retry_interval": "200ms"},
    },
}


def missing() -> list[str]:
    """The required programs that are not installed."""
    return [program for program in PROGRAMS if not Path(program).exists()]


@dataclass
class Node:
    name: str
    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def takes_writes(self) -> bool:
        try:
            return execute(self.url, "SELECT pg_is_in_recovery()") == [(False,)]
        except psycopg.Error:
            return False


def configuration(
    name: str, folder: Path, port: int, etcd: int, *, synchronous: bool
) -> dict[str, Any]:
    server, api = (f"127.0.0.1:{each}" for each in (port, port + 1))
    initdb = [{"encoding": "UTF8"}, {"locale": "C.UTF-8"}, {"auth": "trust"}, "no-sync"]
    return {
        "scope": "pgqueue",
        "name": name,
        "restapi": {"listen": api, "connect_address": api},
        "etcd3": {"host": f"127.0.0.1:{etcd}"},
        "bootstrap": {"dcs": {**CLUSTER, "synchronous_mode": synchronous}, "initdb": initdb},
        "postgresql": {
            "listen": server,
            "connect_address": server,
            "data_dir": str(folder / "data"),
            "bin_dir": str(BIN_DIR),
            "authentication": {
                "superuser": {"username": "postgres"},
                "replication": {"username": "replicator"},
            },
            "pg_hba": [
                "local all all trust",
                "host all all 127.0.0.1/32 trust",
                "host replication replicator 127.0.0.1/32 trust",
            ],
            "parameters": {
                "unix_socket_directories": str(folder),
                "shared_buffers": "64MB",
                "max_connections": 50,
            },
        },
    }


class Cluster(Servers):
    """Three nodes. With ``whole`` a node is killed; otherwise only its server, which Patroni
    notices.
    """

    def __init__(self, folder: Path, nodes: list[Node], *, whole: bool) -> None:
        super().__init__(folder, [("127.0.0.1", node.port) for node in nodes])
        self.nodes = nodes
        self.whole = whole

    @property
    def url(self) -> str:
        return self.leader.url

    @property
    def leader(self) -> Node:
        found: Node = until(
            lambda: next((n for n in self.nodes if n.takes_writes), None), seconds=120
        )
        return found

    def fail(self) -> None:
        dying = self.leader
        if self.whole:
            dying.process.kill()
        kill(dying.data)
        self.killed = time.monotonic()
        until(
            lambda: any(node.takes_writes for node in self.nodes if node is not dying), seconds=120
        )

    def until_rejoined(self) -> None:
        """Wait until every node with a running Patroni replicates from the new primary."""
        living = sum(node.process.poll() is None for node in self.nodes)
        state = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
        until(lambda: execute(self.url, state) == [(living - 1,)], seconds=120)


@contextmanager
def cluster(*, synchronous: bool, whole: bool) -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="pgqueue-patroni-"))
    folder.chmod(0o777)
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, *command: str) -> subprocess.Popen[bytes]:
        with (folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Only system folders: Patroni uses Debian's own Python and packages.
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": str(folder)},
                **server_user(),
            )
        processes.append(process)
        return process

    def node(name: str, etcd: int) -> Node:
        own, port = folder / name, free_port()
        own.mkdir()
        own.chmod(0o777)
        file = own / "patroni.json"
        file.write_text(json.dumps(configuration(name, own, port, etcd, synchronous=synchronous)))
        return Node(name, own, port, start(name, "/usr/bin/patroni", str(file)))

    try:
        etcd = free_port()
        client, peer = (f"http://127.0.0.1:{port}" for port in (etcd, etcd + 1))
        start(
            "etcd",
            *("/usr/bin/etcd", "--name=one", f"--data-dir={folder / 'etcd'}"),
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
            f"--initial-cluster=one={peer}",
        )
        found = Cluster(folder, [node(name, etcd) for name in NODES], whole=whole)
        try:
            found.until_rejoined()
            if synchronous:
                state = "SELECT sync_state FROM pg_stat_replication WHERE sync_state = 'sync'"
                until(lambda: execute(found.url, state))
            yield found
        finally:
            found.close()
    except AssertionError as error:
        said = [f"{log.name}:\n{log.read_text()[-2000:]}" for log in folder.glob("*.log")]
        raise RuntimeError("\n".join([*said, str(error)])) from error
    finally:
        for process in reversed(processes):
            process.terminate()  # Patroni then stops its server
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
        # Kills what is left, such as the children of a killed server.
        for left in psutil.process_iter(["cmdline"]):
            if str(folder) in " ".join(left.info["cmdline"] or []):
                left.kill()
        shutil.rmtree(folder, ignore_errors=True)
