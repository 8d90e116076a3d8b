"""Django's PostgreSQL backend on a server that starts at the first connection.

EMBEDDED_DIRECTORY is the data directory, EMBEDDED_SETTINGS are PostgreSQL settings, and
EMBEDDED_BIN_DIR is the bin directory of another PostgreSQL. A database that does not exist is
created.
"""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg
from django.db.backends.postgresql import base
from psycopg import sql
from psycopg.errors import DuplicateDatabase, UniqueViolation

from .server import EmbeddedServer

_servers: dict[tuple[str, str], EmbeddedServer] = {}


class DatabaseWrapper(base.DatabaseWrapper):
    # Django calls this just before it opens a connection or a pool.
    def get_connection_params(self) -> dict[str, Any]:
        given = self.settings_dict
        directory, name = str(given["EMBEDDED_DIRECTORY"]), given["NAME"]
        if (server := _servers.get((directory, name))) is None:
            settings, bin_dir = given.get("EMBEDDED_SETTINGS"), given.get("EMBEDDED_BIN_DIR")
            server = EmbeddedServer(directory, settings=settings, bin_dir=bin_dir).start()
            exists = contextlib.suppress(DuplicateDatabase, UniqueViolation)
            with psycopg.connect(server.url(), autocommit=True) as connection, exists:
                if name:
                    create = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
                    connection.execute(create)
            server = _servers.setdefault((directory, name), server)
        server.start()
        given.update(HOST=server.host, PORT=str(server.port), USER="postgres")
        return super().get_connection_params()
