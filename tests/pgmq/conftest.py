"""The schema ``pgmq``, installed in the test's transaction or committed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from tests.conftest import run_sql

Call = Callable[..., list[tuple[Any, ...]]]


def call(text: str, *values: Any) -> list[tuple[Any, ...]]:
    """The rows of a call of a function, as ``call("send(%s, %s)", ...)``."""
    return run_sql(f"SELECT * FROM pgmq.{text}", list(values))


@pytest.fixture
def pgmq(db: None) -> Call:
    """Calls functions of the schema, which is rolled back with the test."""
    call_command("pgqueue_pgmq", "install", verbosity=0)
    return call


@pytest.fixture
def committed_pgmq(committed: None) -> Iterator[Call]:
    call_command("pgqueue_pgmq", "install", verbosity=0)
    yield call
    call_command("pgqueue_pgmq", "remove", verbosity=0)


@pytest.fixture(scope="session")
def pgmq_js(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which Node.js finds pgmq-js."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program} (Debian's nodejs and npm)")
    folder = tmp_path_factory.mktemp("pgmq_js")
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", folder, "pgmq-js@1.3.1"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"npm cannot install pgmq-js: {made.stderr[-300:]}")
    return folder


def environment() -> dict[str, str]:
    """The variables of a process, with those by which its driver finds the test's database."""
    connection.ensure_connection()
    info = connection.connection.info
    where = {"HOST": info.host, "PORT": str(info.port), "DATABASE": info.dbname, "USER": info.user}
    return {**os.environ, **{f"PG{name}": value for name, value in where.items()}}
