"""Answers on a port whether this process lives and is ready."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_pgqueue.runtime.consumer import Consumer

__all__ = ["HealthServer"]


class HealthServer(threading.Thread):
    """``/healthz``: the loops live. ``/readyz``: they also reach the database, and the process
    takes new messages. 200 or 503, with the findings as JSON."""

    def __init__(self, consumer: Consumer, port: int) -> None:
        super().__init__(name="pgqueue-health", daemon=True)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                report = _report(consumer)
                if self.path == "/healthz":
                    good = report["loops"]
                elif self.path == "/readyz":
                    good = report["loops"] and report["database"] and not report["stopping"]
                else:
                    self.send_error(404, "there are /healthz and /readyz")
                    return
                body = json.dumps(report).encode()
                self.send_response(200 if good else 503)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                """Probes are no news."""

        self._server = ThreadingHTTPServer(("", port), Handler)
        self.port: int = self._server.server_address[1]

    def run(self) -> None:
        self._server.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _report(consumer: Consumer) -> dict[str, Any]:
    patience = max(consumer.options.heartbeat * 3, consumer.options.database_timeout)
    now = time.monotonic()
    return {
        "loops": all(loop.is_alive() for loop in consumer.loops),
        "database": now - consumer.presence.last_success < patience,
        "stopping": consumer.stopping,
        "uptime": round(consumer.uptime, 1),
        "queues": {
            s.name: {
                "buffered": len(s.buffer),
                "running": len(s.running),
                "completed": s.completed,
                "retried": s.retried,
                "failed": s.failed,
                "lost": s.lost,
            }
            for s in consumer.subscriptions
        },
    }
