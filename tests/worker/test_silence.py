"""A network that drops packets without an error: TCP keepalives notice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.conftest import run_sql
from tests.waiting import until
from tests.working.running import ROOT

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.acceptance]

# Relays TCP connections to the server's socket, since a Unix socket has no keepalives.
RELAY = """
import socket, sys, threading

def pump(source, sink):
    while data := source.recv(65536):
        sink.sendall(data)

with socket.create_server(("127.0.0.1", 5432)) as listener:
    print("listens", flush=True)
    while True:
        client, _ = listener.accept()
        server = socket.socket(socket.AF_UNIX)
        server.connect(sys.argv[1])
        for pair in ((client, server), (server, client)):
            threading.Thread(target=pump, args=pair, daemon=True).start()
"""

# A query without an answer, on a connection opened like a consumer's.
QUERY = """
import django
django.setup()
from django.db import OperationalError, connection
from django_pgqueue.worker.connections import configure

configure(2, "silent")
with connection.cursor() as cursor:
    # So that the server notices the end of the relay.
    cursor.execute("SET client_connection_check_interval = '100ms'")
    print("waits", flush=True)
    try:
        cursor.execute("SELECT pg_sleep(600)")
    except OperationalError as error:
        print("lost:", error, flush=True)
"""


class Network:
    """A network namespace whose packets can be dropped."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        self._holder = self._start(["unshare", "--net", "sh", "-c", "echo in; exec sleep 1000"])
        self.expect(self._holder, "in")
        self._inside = ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net"]
        self.loopback("up")

    def run(self, code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        command = [*self._inside, sys.executable, "-W", "ignore", "-c", code, *arguments]
        return self._start(command, **environment)

    def loopback(self, state: str) -> None:
        subprocess.run([*self._inside, "ip", "link", "set", "lo", state], check=True)

    def close(self) -> None:
        while self._processes:
            process = self._processes.pop()
            process.kill()
            process.communicate()

    @staticmethod
    def expect(process: subprocess.Popen[str], word: str) -> None:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(word)

    def _start(self, command: list[str], **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        return process


@pytest.fixture
def network() -> Iterator[Network]:
    probe = ["unshare", "--net", "ip", "link", "set", "lo", "up"]
    try:
        subprocess.run(probe, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to make network namespaces, and iproute2")
    network = Network()
    yield network
    network.close()


def test_a_query_whose_packets_are_dropped_is_given_up(network, reachable):
    default = reachable["default"]
    host = default["HOST"] or default["OPTIONS"].get("host")
    port = default["PORT"] or default["OPTIONS"].get("port", "5432")
    if not str(host).startswith("/"):
        pytest.skip("needs a server on a local socket, which network namespaces share")
    relay = network.run(RELAY, f"{host}/.s.PGSQL.{port}")
    network.expect(relay, "listens")
    url = f"postgresql://{default['USER']}@127.0.0.1:5432/{default['NAME']}"
    query = network.run(QUERY, DJANGO_SETTINGS_MODULE="tests.settings", DATABASE_URL=url)
    network.expect(query, "waits")

    network.loopback("down")

    until(lambda: query.poll() is not None, 30)
    network.expect(query, "lost:")
    network.close()
    until(lambda: not run_sql("SELECT 1 FROM pg_stat_activity WHERE application_name = 'silent'"))
