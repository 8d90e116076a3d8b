"""A primary and its physical standby, as two servers for one test."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from example_project.embedded_postgres.server import EmbeddedServer

__all__ = ["copy", "two_servers"]


@contextmanager
def two_servers(
    settings: Mapping[str, str], bin_dir: str | None = None
) -> Iterator[tuple[EmbeddedServer, EmbeddedServer]]:
    """Two servers that are not started yet; their files are removed afterwards."""
    # A short path, since the paths of sockets are limited.
    folder = Path(tempfile.mkdtemp(prefix="pgqueue-pair-"))
    folder.chmod(0o755)
    pair = tuple(EmbeddedServer(folder / name, settings=settings, bin_dir=bin_dir) for name in "ab")
    try:
        primary, standby = pair
        yield primary, standby
    finally:
        for server in pair:
            shutil.rmtree(server.home, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def copy(primary: EmbeddedServer, standby: EmbeddedServer) -> None:
    """Make the other server a standby of a running one. Start it afterwards."""
    standby.home.mkdir()
    standby.home.chmod(0o777)  # for root, the server's user makes the copy
    program = primary.bin_dir / "pg_basebackup"
    options = ["-R", "-X", "stream", "-c", "fast", "-d", primary.url()]
    command = [program, *options, "-D", str(standby.data)]
    subprocess.run(command, check=True, capture_output=True, cwd="/", **standby.user)
