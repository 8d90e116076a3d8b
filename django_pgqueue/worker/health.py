"""A port that answers whether this process lives and is ready."""

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
from django_pgqueue.pages import pages

#: Seconds that a read from a client, or a write to it, may take.
_TIMEOUT = 5.0
#: Connections at a time, each with a thread.
_CONNECTIONS = 16


class _Server(ThreadingHTTPServer):
    """Serves a limited number of connections: one more closes the oldest, so that clients that
    send no whole request cannot keep a probe out."""

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
        """A client that is gone is no event; other errors are printed."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class HealthServer(threading.Thread):
    """``/healthz``: the loops live, or end on purpose. ``/readyz``: they also reach the database,
    and the process takes new messages. The answer is 200 or 503, with the findings as JSON.

    Raises InvalidArgument when the port cannot be opened.
    """

    def __init__(self, report: Callable[[], dict[str, Any]], host: str, port: int) -> None:
        super().__init__(name="pgqueue-health", daemon=True)

        class Handler(BaseHTTPRequestHandler):
            timeout = _TIMEOUT

            def do_GET(self) -> None:
                if self.path in pages:
                    self._answer(200, *pages[self.path]())
                    return
                found = report()
                if self.path == "/healthz":
                    good = found["loops"]
                elif self.path == "/readyz":
                    good = found["loops"] and found["database"] and not found["stopping"]
                else:
                    known = ", ".join(["/healthz", "/readyz", *pages])
                    self.send_error(404, f"there are {known}")
                    return
                body = json.dumps(found).encode()
                self._answer(200 if good else 503, "application/json", body)

            def _answer(self, status: int, content_type: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                """Log nothing: a probe is no event."""

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
