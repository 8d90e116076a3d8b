"""Django's PostgreSQL backend on a server of our own, started at the first connection.

    DATABASES = {
        "default": {
            "ENGINE": "example_project.embedded_postgres",
            "NAME": "inbox",
            "EMBEDDED_DIRECTORY": BASE_DIR / ".postgres",       # the default
            "EMBEDDED_SETTINGS": {"log_statement": "ddl"},      # optional: PostgreSQL's settings
            "EMBEDDED_BIN_DIR": "/usr/lib/postgresql/17/bin",   # optional: other binaries
        },
    }

Several aliases may share a directory, that is one server, each with a NAME of its own. A database
that does not exist is created. OPTIONS stay psycopg's, `pool` among them.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import psycopg
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.postgresql import base
from psycopg import sql

from .server import SUPERUSER, EmbeddedServer

ANOTHER_PROCESS_WAS_FASTER = (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation)

_servers: dict[Path, EmbeddedServer] = {}
_created: set[tuple[str, str]] = set()


class DatabaseWrapper(base.DatabaseWrapper):
    def get_connection_params(self) -> dict[str, Any]:
        # Django asks for these only when it is about to connect (or to open its pool).
        server = self.start_server()
        self.settings_dict.update(HOST=server.host, PORT=str(server.port), USER=SUPERUSER)
        if name := self.settings_dict["NAME"]:
            create_database_if_missing(server, name)
        return super().get_connection_params()

    def start_server(self) -> EmbeddedServer:
        directory = self.embedded_directory()
        server = _servers.get(directory)
        if server is None:
            server = EmbeddedServer(
                directory,
                settings=self.settings_dict.get("EMBEDDED_SETTINGS"),
                bin_dir=self.settings_dict.get("EMBEDDED_BIN_DIR"),
            )
            server = _servers.setdefault(directory, server)
        server.start()
        return server

    def embedded_directory(self) -> Path:
        if directory := self.settings_dict.get("EMBEDDED_DIRECTORY"):
            return Path(directory).absolute()
        if base_dir := getattr(settings, "BASE_DIR", None):
            return Path(base_dir).absolute() / ".postgres"
        raise ImproperlyConfigured(
            f"Say where the embedded PostgreSQL keeps its data: set DATABASES[{self.alias!r}]"
            "['EMBEDDED_DIRECTORY'], or BASE_DIR."
        )


def create_database_if_missing(server: EmbeddedServer, name: str) -> None:
    if (server.host, name) in _created:
        return
    with psycopg.connect(**server.connection_parameters(), autocommit=True) as connection:
        known = connection.execute("SELECT FROM pg_database WHERE datname = %s", [name])
        if known.fetchone() is None:
            with contextlib.suppress(*ANOTHER_PROCESS_WAS_FASTER):
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    _created.add((server.host, name))
