"""A cluster with automatic failover: Patroni with etcd, and three PostgreSQL 15 servers.

Needs Debian's packages patroni, etcd-server and postgresql-15. Everything runs on 127.0.0.1, in a
temporary directory.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.failover.servers import Servers, execute, kill, until
from example_project.embedded_postgres.server import server_user

__all__ = ["Cluster", "cluster", "missing"]

BIN_DIR = Path("/usr/lib/postgresql/15/bin")
PROGRAMS = ("/usr/bin/etcd", "/usr/bin/patroni", f"{BIN_DIR}/postgres")
NODES = ("a", "b", "c")
#: Patroni's minimum values: the leader key's time to live, the seconds between two checks, and how
#: long a node retries when etcd does not answer.
TIMES = {"ttl": 20, "loop_wait": 1, "retry_timeout": 3}


def missing() -> list[str]:
    """The required programs that are not installed."""
    return [program for program in PROGRAMS if not Path(program).exists()]


@dataclass
class Node:
    name: str
    folder: Path
    port: int
    api: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def configuration(self, etcd: int, *, synchronous: bool) -> dict[str, Any]:
        address = f"127.0.0.1:{self.port}"
        return {
            "scope": "pgqueue",
            "name": self.name,
            "restapi": {
                "listen": f"127.0.0.1:{self.api}",
                "connect_address": f"127.0.0.1:{self.api}",
            },
            "etcd3": {"host": f"127.0.0.1:{etcd}"},
            "bootstrap": {
                "dcs": {
                    **TIMES,
                    # A dead primary is not restarted while a standby can take over.
                    "primary_start_timeout": 0,
                    "synchronous_mode": synchronous,
                    "postgresql": {
                        "use_pg_rewind": True,
                        "parameters": {
                            "wal_log_hints": "on",
                            "wal_retrieve_retry_interval": "200ms",
                        },
                    },
                },
                "initdb": [
                    {"encoding": "UTF8"},
                    {"locale": "C.UTF-8"},
                    {"auth": "trust"},
                    "no-sync",
                ],
            },
            "postgresql": {
                "listen": address,
                "connect_address": address,
                "data_dir": str(self.data),
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
                    "unix_socket_directories": str(self.folder),
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
        found: Node = until(lambda: next(filter(takes_writes, self.nodes), None))
        return found

    def fail(self) -> None:
        dying = self.leader
        if self.whole and dying.process is not None:
            dying.process.kill()
        kill(dying.data)
        self.killed = time.monotonic()
        others = [node for node in self.nodes if node is not dying]
        until(lambda: any(map(takes_writes, others)), 120)

    def until_rejoined(self) -> None:
        """Wait until every node with a running Patroni replicates from the new primary."""
        living = sum(
            node.process is not None and node.process.poll() is None for node in self.nodes
        )
        state = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
        until(lambda: execute(self.url, state) == [(living - 1,)], 120)


def takes_writes(node: Node) -> bool:
    try:
        return execute(node.url, "SELECT pg_is_in_recovery()") == [(False,)]
    except psycopg.Error:
        return False


@contextmanager
def cluster(*, synchronous: bool, whole: bool) -> Iterator[Cluster]:
    user = server_user()
    folder = Path(tempfile.mkdtemp(prefix="pgqueue-patroni-"))
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
                **user,
            )
        processes.append(process)
        return process

    try:
        folder.chmod(0o777)
        etcd, peer = free_ports(2)
        client_url, peer_url = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peer}"
        start(
            "etcd",
            *("/usr/bin/etcd", "--name=one", f"--data-dir={folder / 'etcd'}"),
            *(f"--listen-client-urls={client_url}", f"--advertise-client-urls={client_url}"),
            *(f"--listen-peer-urls={peer_url}", f"--initial-advertise-peer-urls={peer_url}"),
            f"--initial-cluster=one={peer_url}",
        )
        nodes = []
        for name in NODES:
            node = Node(name, folder / name, *free_ports(2))
            node.folder.mkdir()
            node.folder.chmod(0o777)
            configuration = node.folder / "patroni.json"
            configuration.write_text(json.dumps(node.configuration(etcd, synchronous=synchronous)))
            node.process = start(name, "/usr/bin/patroni", str(configuration))
            nodes.append(node)
        found = Cluster(folder, nodes, whole=whole)
        try:
            until(lambda: any(map(takes_writes, nodes)), 90)
            found.until_rejoined()
            if synchronous:
                state = "SELECT sync_state FROM pg_stat_replication WHERE sync_state = 'sync'"
                until(lambda: execute(found.url, state))
            yield found
        finally:
            found.close()
    except TimeoutError:
        for log in folder.glob("*.log"):
            print(f"{log.name}:\n{log.read_text()[-2000:]}")
        raise
    finally:
        for process in reversed(processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)  # Patroni then stops its server
        for process in processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid_file in folder.glob("*/data/postmaster.pid"):
            # Left by a killed server, or by a server that Patroni did not stop.
            pid = int(pid_file.read_text().split()[0])
            command = Path(f"/proc/{pid}/cmdline")
            if command.exists() and str(folder) in command.read_text():
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Ports that are free at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
