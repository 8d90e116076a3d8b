"""A server to measure on, and a database of our own on it."""

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

from example_project.embedded_postgres.server import EmbeddedServer

# A checkpoint writes whole pages into the log again, in the turn of one contestant by chance.
SETTINGS = {
    "shared_buffers": "1GB",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "max_connections": "200",
    # A partition each for 1,000 queues: dropping them in one transaction locks them all.
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


@contextmanager
def server() -> Iterator[dict[str, Any]]:
    """How to connect: to DATABASE_URL, or else to a server that is gone afterwards."""
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
    # Short, for the sake of the socket's path.
    directory = Path(tempfile.mkdtemp(prefix="pgqueue-benchmark-"))
    directory.chmod(0o755)
    try:
        with EmbeddedServer(directory, settings=SETTINGS) as embedded:
            yield {**conninfo_to_dict(embedded.url()), "password": ""}
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def database() -> Iterator[dict[str, Any]]:
    """A database of our own; every process of the benchmark finds it in its environment."""
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
                connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(identifier))


def parameters() -> dict[str, Any]:
    """Keyword arguments for ``psycopg.connect``, in any process of the benchmark."""
    return json.loads(os.environ["BENCHMARK_DATABASE"])


def connect(**options: Any) -> psycopg.Connection[Any]:
    """A bare connection: each statement commits."""
    return psycopg.connect(**parameters(), autocommit=True, **options)


def settings() -> dict[str, str]:
    """The server's settings that bear on what is measured."""
    with connect() as connection:
        return {name: connection.execute(f"SHOW {name}").fetchone()[0] for name in SHOWN}
