"""The health port and misbehaving clients."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

from django_pgqueue.worker import health_server
from tests.waiting import until


def report() -> dict[str, Any]:
    return {"loops": True, "database": True, "receivers": True, "stopping": False}


@pytest.fixture
def server() -> Iterator[health_server.HealthServer]:
    server = health_server.HealthServer(report, "127.0.0.1", 0)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def half_requests(server: health_server.HealthServer) -> Iterator[list[socket.socket]]:
    """A hundred clients that have sent half a request and wait."""
    clients = []
    for _ in range(100):
        client = socket.create_connection(("127.0.0.1", server.port))
        client.sendall(b"GET /healthz HT")
        clients.append(client)
    yield clients
    for client in clients:
        client.close()


def status(server: health_server.HealthServer) -> int:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/healthz")
    try:
        return connection.getresponse().status
    finally:
        connection.close()


def serving() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if "process_request" in each.name]


def is_closed(client: socket.socket) -> bool:
    client.settimeout(60)
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def test_half_requests_hold_a_limited_number_of_threads_and_keep_no_probe_out(
    server, half_requests
):
    assert status(server) == 200

    until(lambda: len(serving()) <= health_server._CONNECTIONS)
    assert all(map(is_closed, half_requests[: -health_server._CONNECTIONS]))


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\n"])
def test_a_client_that_sends_no_whole_request_is_disconnected(monkeypatch, sent):
    monkeypatch.setattr(health_server, "_TIMEOUT", 0.05)
    server = health_server.HealthServer(report, "127.0.0.1", 0)
    server.start()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(sent)

        assert is_closed(client)
    server.stop()


def test_a_client_that_resets_its_connection_prints_nothing(server, capfd):
    client = socket.create_connection(("127.0.0.1", server.port))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.sendall(b"GET /healthz HT")
    until(lambda: server._server._served)

    client.close()

    until(lambda: not server._server._served)
    assert capfd.readouterr().err == ""
