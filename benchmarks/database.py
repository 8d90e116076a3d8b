"""A server to measure on, and a temporary database on it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from django_pgqueue.embedded.server import EmbeddedServer
from tests.ports import free_port

# Few checkpoints: each makes the server log whole pages again, at the expense of one contestant.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "1GB",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "max_connections": "400",
    # Locks for the partitions of 1,000 queues, which are dropped in one transaction.
    "max_locks_per_transaction": "512",
}
SHOWN = [
    "server_version",
    "synchronous_commit",
    "fsync",
    "full_page_writes",
    "wal_level",
    "autovacuum",
    *SETTINGS,
]
NAME = "pgqueue_benchmark"
#: Ends the name of a second database (peers/pgmq_functions.py).
FUNCTIONS = "functions"


@contextmanager
def server() -> Iterator[dict[str, Any]]:
    """Connection parameters of DATABASE_URL, or of a temporary server."""
    if url := os.environ.get("DATABASE_URL"):
        given = conninfo_to_dict(url)
        yield {
            "host": given.get("host", "localhost"),
            "port": int(given.get("port", 5432)),
            "user": given.get("user", "postgres"),
            "password": given.get("password", ""),
            "dbname": given.get("dbname", "postgres"),
        }
        return
    # A short path, since the path of a socket is limited.
    directory = Path(tempfile.mkdtemp(prefix="pgqueue-benchmark-"))
    directory.chmod(0o755)
    embedded = EmbeddedServer(directory, settings=SETTINGS)
    embedded.port = free_port()  # Java's driver connects to no socket
    try:
        with embedded:
            yield {**conninfo_to_dict(embedded.url()), "password": ""}
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def database() -> Iterator[dict[str, Any]]:
    """Create a temporary database, and name it in the environment of all benchmark processes."""
    with server() as where:
        name = f"{NAME}_{os.getpid()}"
        identifier = sql.Identifier(name)
        with psycopg.connect(**where, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(identifier))
        parameters = {**where, "dbname": name}
        os.environ["BENCHMARK_DATABASE"] = json.dumps(parameters)
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
        try:
            yield parameters
        finally:
            with psycopg.connect(**where, autocommit=True) as connection:
                for made in (name, f"{name}_{FUNCTIONS}"):
                    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
                    connection.execute(drop.format(sql.Identifier(made)))


def parameters() -> dict[str, Any]:
    """The keyword arguments for ``psycopg.connect``, in every process of the benchmark."""
    return json.loads(os.environ["BENCHMARK_DATABASE"])


def connect(**options: Any) -> psycopg.Connection[Any]:
    """A plain connection in autocommit mode."""
    return psycopg.connect(**parameters(), autocommit=True, **options)


def settings() -> dict[str, str]:
    """The server settings that influence the measurements."""
    with connect() as connection:
        return {name: connection.execute(f"SHOW {name}").fetchone()[0] for name in SHOWN}
