"""Django's PostgreSQL backend on a server that starts at the first connection.

In DATABASES, EMBEDDED_DIRECTORY is the directory of the data, EMBEDDED_SETTINGS are PostgreSQL's
settings, and EMBEDDED_BIN_DIR has the programs of another PostgreSQL. A database that does not
exist is created.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import psycopg
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.postgresql import base, client
from psycopg import sql
from psycopg.errors import DuplicateDatabase, UniqueViolation

from .server import EmbeddedServer

ENGINE = "django_pgqueue.embedded"
DIRECTORY = ".pgdata"  # in BASE_DIR
KEYS = ("EMBEDDED_DIRECTORY", "EMBEDDED_SETTINGS", "EMBEDDED_BIN_DIR")

_servers: dict[Path, EmbeddedServer] = {}
_created: set[tuple[str, str]] = set()


class DatabaseClient(client.DatabaseClient):
    def runshell(self, parameters: Any) -> None:
        """Run psql, the server's own if there is no other."""
        server = self.connection.start_server()  # type: ignore[attr-defined]
        os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{server.bin_dir}"
        super().runshell(parameters)


class DatabaseWrapper(base.DatabaseWrapper):
    client_class = DatabaseClient

    def __init__(self, settings_dict: dict[str, Any], alias: str = DEFAULT_DB_ALIAS) -> None:
        # Of all databases: pytest-xdist's names of test databases are made from the settings.
        for each, known in connections.settings.items():
            if known["ENGINE"] == ENGINE:
                known["NAME"] = known["NAME"] or each
        super().__init__(settings_dict, alias)

    # Django calls this just before it opens a connection or a pool.
    def get_connection_params(self) -> dict[str, Any]:
        self.start_server()
        return super().get_connection_params()

    def start_server(self) -> EmbeddedServer:
        """Start the server if it is down, and create the database if it is missing."""
        given = self.settings_dict
        server = self.server().start()
        given.update(HOST=server.host, PORT=str(server.port), USER="postgres", PASSWORD="")
        key = server.host, given["NAME"]
        if given["NAME"] and key not in _created:
            create_database(server, given["NAME"])
            _created.add(key)
        return server

    def server(self) -> EmbeddedServer:
        """The server that the settings describe, perhaps not started yet."""
        given, base_dir = self.settings_dict, getattr(settings, "BASE_DIR", None)
        for key in given:
            if key.startswith("EMBEDDED_") and key not in KEYS:
                raise ImproperlyConfigured(f"{key} is unknown. The keys are {', '.join(KEYS)}.")
        directory = given.get("EMBEDDED_DIRECTORY") or (base_dir and DIRECTORY)
        if not isinstance(directory, (str, os.PathLike)):
            raise ImproperlyConfigured(
                f"Set DATABASES[{self.alias!r}]['EMBEDDED_DIRECTORY'] to the directory for the "
                f"server's data: the settings have no BASE_DIR, and so no default."
                if directory is None
                else f"EMBEDDED_DIRECTORY must be a path, not {directory!r}."
            )
        path = Path(base_dir or "", directory).absolute()
        if path not in _servers:
            options = {"settings": given.get("EMBEDDED_SETTINGS")}
            options["bin_dir"] = given.get("EMBEDDED_BIN_DIR")
            _servers.setdefault(path, EmbeddedServer(path, **options))
        return _servers[path]


def create_database(server: EmbeddedServer, name: str) -> None:
    """Create a database, unless it exists."""
    create = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
    at_the_same_time = contextlib.suppress(DuplicateDatabase, UniqueViolation)
    with psycopg.connect(server.url(), autocommit=True) as connection, at_the_same_time:
        if not connection.execute("SELECT FROM pg_database WHERE datname = %s", [name]).rowcount:
            connection.execute(create)
