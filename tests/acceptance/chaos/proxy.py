"""A proxy for PostgreSQL's socket that can go silent: connections stay open, and bytes are lost."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

__all__ = ["Proxy"]


class Proxy:
    """Listens in ``directory`` like a server. ``silence()`` drops all later traffic on the existing
    connections; new ones work.
    """

    def __init__(self, target: Path, directory: Path, port: int = 5432) -> None:
        self.directory = directory
        self._target = str(target / f".s.PGSQL.{port}")
        self._generation = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / f".s.PGSQL.{port}"))
        self._listener.listen(100)
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        self._generation += 1

    def close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                self._sockets += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(
                        target=self._pump, args=(*pair, self._generation), daemon=True
                    ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, generation: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if generation == self._generation:
                    sink.sendall(data)
            if generation == self._generation:
                sink.shutdown(socket.SHUT_WR)
