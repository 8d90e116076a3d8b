"""Servers with one primary and a standby that takes over, and the processes that use them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import psycopg

from benchmarks import notes
from django_pgqueue.embedded.server import EmbeddedServer
from tests import waiting
from tests.servers import copy, two_servers

__all__ = ["Pair", "Servers", "execute", "kill", "pair", "until"]

until = partial(waiting.until, seconds=60)
ROOT = Path(__file__).resolve().parents[2]


class Servers(ABC):
    """The hosts and ports in ``addresses``; nothing tells the processes which server is the
    primary.
    """

    def __init__(self, folder: Path, addresses: list[tuple[str, int]]) -> None:
        self.folder = folder
        self.addresses = addresses
        self.notes = folder / "notes"
        self.stop = folder / "stop"
        self.processes: list[subprocess.Popen[bytes]] = []
        #: The time at which the primary was dead.
        self.killed = float("inf")

    @abstractmethod
    def fail(self) -> None:
        """Kill the primary, and record when. Returns when another server is the primary."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The primary's URL; after :meth:`fail`, the new primary's."""

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "output").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.processes.append(process)
        return process

    def script(self, text: str) -> None:
        """Run Python code with Django set up, on the primary."""
        code = (
            "import django; django.setup()\n"
            "from django.core.management import call_command\n"
            "from django.db import connection\n"
            "from django_pgqueue import queue\n" + text
        )
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=self._environment, check=True)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    @property
    def _environment(self) -> dict[str, str]:
        hosts, ports = zip(*self.addresses, strict=True)
        parameters = {"dbname": "postgres", "user": "postgres", "host": ",".join(hosts)}
        options = {"target_session_attrs": "read-write", "connect_timeout": 2}
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
            "BENCHMARK_DATABASE": json.dumps(
                {**parameters, "port": ",".join(map(str, ports)), "options": options}
            ),
            notes.VARIABLE: str(self.notes),
        }


class Pair(Servers):
    """A primary and a standby, which is promoted at once, as by an operator."""

    url = ""

    def __init__(self, folder: Path, primary: EmbeddedServer, standby: EmbeddedServer) -> None:
        super().__init__(folder, [(server.host, server.port) for server in (primary, standby)])
        self.primary = primary
        self.standby = standby
        self.url = primary.url()

    def hold_back(self, seconds: float) -> None:
        """Stop sending to the standby, and return after ``seconds``."""
        [(walsender,)] = execute(self.url, "SELECT pid FROM pg_stat_replication")
        psutil.Process(walsender).suspend()
        time.sleep(seconds)

    def fail(self) -> None:
        kill(self.primary.data)
        self.killed = time.monotonic()
        promote = [self.standby.bin_dir / "pg_ctl", "promote", "--wait", f"-D{self.standby.data}"]
        subprocess.run(promote, check=True, capture_output=True, cwd="/", **self.standby.user)
        self.url = self.standby.url()


@contextmanager
def pair(*, synchronous: bool) -> Iterator[Pair]:
    settings = {"max_connections": "50", "wal_retrieve_retry_interval": "200ms"}
    with (
        two_servers(settings) as (primary, standby),
        tempfile.TemporaryDirectory(prefix="pgqueue-over-") as folder,
        primary,
    ):
        copy(primary, standby)
        with standby:
            if synchronous:
                # Set after the copy: the promoted server must not wait for a standby.
                execute(primary.url(), "ALTER SYSTEM SET synchronous_standby_names = '*'")
                execute(primary.url(), "SELECT pg_reload_conf()")
            state = "SELECT sync_state FROM pg_stat_replication"
            wanted = [("sync" if synchronous else "async",)]
            until(lambda: execute(primary.url(), state) == wanted)
            found = Pair(Path(folder), primary, standby)
            try:
                yield found
            finally:
                found.close()


def execute(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def kill(data: Path) -> None:
    """Kill all processes of a directory's server at once, like a power cut."""
    postmaster = psutil.Process(int((data / "postmaster.pid").read_text().split()[0]))
    # Suspended, so that it does not notice a dead child and restart.
    postmaster.suspend()
    for process in (*postmaster.children(), postmaster):
        process.kill()
