"""PostgreSQL servers of a test's own: one, or a primary and its physical standby."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg

from django_pgqueue.embedded.server import EmbeddedServer

__all__ = ["copy", "new_database", "one_server", "two_servers"]


@contextmanager
def one_server(settings: Mapping[str, str], bin_dir: str = "") -> Iterator[EmbeddedServer]:
    """A running server."""
    with _made("a", settings, bin_dir) as [server], server:
        yield server


@contextmanager
def two_servers(
    settings: Mapping[str, str], bin_dir: str = ""
) -> Iterator[tuple[EmbeddedServer, EmbeddedServer]]:
    """Two servers that are not started yet."""
    with _made("ab", settings, bin_dir) as [primary, standby]:
        yield primary, standby


@contextmanager
def _made(names: str, settings: Mapping[str, str], bin_dir: str) -> Iterator[list[EmbeddedServer]]:
    """Servers whose files are removed afterwards."""
    # A short path, since the paths of sockets are limited.
    folder = Path(tempfile.mkdtemp(prefix="pgqueue-"))
    folder.chmod(0o755)
    made = [
        EmbeddedServer(folder / name, settings=settings, bin_dir=bin_dir or None) for name in names
    ]
    try:
        yield made
    finally:
        for server in made:
            shutil.rmtree(server.home, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def new_database(server: EmbeddedServer, name: str) -> str:
    """Create an empty database, in place of an old one with this name. Returns its URL."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {name}")
    return server.url(name)


def copy(primary: EmbeddedServer, standby: EmbeddedServer) -> None:
    """Make the other server a standby of a running one. Start it afterwards."""
    standby.home.mkdir()
    standby.home.chmod(0o777)  # for root, the server's user makes the copy
    program = primary.bin_dir / "pg_basebackup"
    options = ["-R", "-X", "stream", "-c", "fast", "-d", primary.url()]
    command = [program, *options, "-D", str(standby.data)]
    subprocess.run(command, check=True, capture_output=True, cwd="/", **standby.user)
