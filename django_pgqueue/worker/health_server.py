"""An HTTP port for health checks: is this process alive, and is it ready? Also serves metrics."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from django_pgqueue.errors import InvalidArgument
from django_pgqueue.observability.pages import pages

#: Seconds that a read from a client, or a write to it, may take.
_TIMEOUT = 5.0
#: The most connections at a time. Each has a thread.
_CONNECTIONS = 16


class _Server(ThreadingHTTPServer):
    """Serves a limited number of connections. A new one beyond the limit closes the oldest.

    Therefore clients that never finish their requests cannot keep a probe out.
    """

    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._slots = threading.Semaphore(_CONNECTIONS)
        self._served: dict[Any, None] = {}  # connections, the oldest first

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            for oldest in list(self._served)[:1]:
                with suppress(OSError):  # its thread has just closed it
                    oldest.shutdown(socket.SHUT_RDWR)
            self._slots.acquire()
        self._served[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        del self._served[request]
        self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the error, unless the client has disconnected."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class HealthServer(threading.Thread):
    """Serves ``/healthz`` and ``/readyz``. Answers 200 or 503, with the report as JSON.

    ``/healthz``: the loops are running, or the process is stopping. ``/readyz``: the loops are
    running, they reach the database, receivers of signals return, and the process takes new
    messages. Other paths:
    :mod:`django_pgqueue.observability.pages`.

    Raises InvalidArgument when the port cannot be opened.
    """

    def __init__(self, report: Callable[[], dict[str, Any]], host: str, port: int) -> None:
        super().__init__(name="pgqueue-health", daemon=True)

        class Handler(BaseHTTPRequestHandler):
            timeout = _TIMEOUT

            def do_GET(self) -> None:
                if self.path in pages:
                    return self._answer(200, *pages[self.path]())
                found = report()
                good = {
                    "/healthz": found["loops"],
                    "/readyz": not found["stopping"]
                    and all(found[name] for name in ("loops", "database", "receivers")),
                }
                if self.path not in good:
                    return self.send_error(
                        404, f"unknown path: use one of {', '.join([*good, *pages])}"
                    )
                body = json.dumps(found).encode()
                return self._answer(200 if good[self.path] else 503, "application/json", body)

            def _answer(self, status: int, content_type: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                """Do not log probes."""

        try:
            self._server = _Server((host, port), Handler)
        except OSError as error:
            raise InvalidArgument(
                f"the health port {host}:{port} cannot be opened: {error.strerror or error}; "
                f"choose another --health-port or --health-host"
            ) from error
        self.port: int = self._server.server_address[1]

    def run(self) -> None:
        self._server.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        if self.is_alive():
            self._server.shutdown()
        self._server.server_close()
