"""The engine ``django_pgqueue.embedded`` in a project, by processes as a user starts them."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connections

from django_pgqueue.embedded import base
from django_pgqueue.embedded.server import EmbeddedServer
from tests.embedded.test_server import ROOT, SETTINGS, directory, processes_of
from tests.waiting import until

__all__ = ["directory"]

PROJECT = {
    "manage.py": """
import os, sys
from django.core.management import execute_from_command_line
os.environ["DJANGO_SETTINGS_MODULE"] = "mysite"
execute_from_command_line(sys.argv)
""",
    "mysite.py": """
from pathlib import Path
BASE_DIR = Path(__file__).parent
SECRET_KEY = "only for tests"
DEBUG = True
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_pgqueue"]
DATABASES = {alias: {"ENGINE": "django_pgqueue.embedded"} for alias in ("default", "other")}
USE_TZ = True
""",
    "pytest.ini": "[pytest]\nDJANGO_SETTINGS_MODULE = mysite\npythonpath = .\n",
    "test_users.py": """
from django.contrib.auth.models import User
from django.db import connections
from django.test import TestCase

class Users(TestCase):
    databases = {"default", "other"}

    def test_default(self):
        User.objects.create(username="ann")
        assert connections["default"].settings_dict["NAME"].startswith("test_default")

    def test_other(self):
        User.objects.using("other").create(username="ann")
        assert connections["other"].settings_dict["NAME"].startswith("test_other")

class Others(Users): ...
""",
}
ASK = """
from django.db import connection
with connection.cursor() as cursor:
    cursor.execute("SELECT current_database(), pg_postmaster_start_time()")
    print(*cursor.fetchone())
"""
DATABASES = """
from django.db import connection
with connection.cursor() as cursor:
    cursor.execute("SELECT datname, oid FROM pg_database WHERE oid > 16383")
    for row in cursor: print(*row)
"""


@pytest.fixture
def project() -> Iterator[Path]:
    """A project that sets ENGINE alone; its server's data need not survive a power cut."""
    folder = Path(tempfile.mkdtemp(prefix="embedded-project-"))
    folder.chmod(0o755)
    for name, text in PROJECT.items():
        (folder / name).write_text(text)
    yield folder
    until(lambda: not processes_of(folder / ".pgdata"), 30)
    shutil.rmtree(folder)


def start(project: Path, *arguments: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    env.pop("DJANGO_SETTINGS_MODULE", None)
    pipe = subprocess.PIPE
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, cwd=project, env=env, stdout=pipe, stderr=pipe, text=True)


def run(project: Path, *arguments: str) -> str:
    process = start(project, *arguments)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, f"{stdout}\n{stderr}"
    return stdout


def test_engine_alone_keeps_its_data_in_the_project(project):
    run(project, "manage.py", "migrate", "-v0")
    run(project, "manage.py", "shell", "-v0", "-c", "from django.contrib.auth.models import User\n"
        "User.objects.create(username='ann')")  # fmt: skip

    told = run(project, "manage.py", "shell", "-v0", "-c", f"{ASK}\n"
        "from django.contrib.auth.models import User; print(User.objects.get())")  # fmt: skip

    assert told.split()[0] == "default"
    assert told.split()[-1] == "ann"
    assert (project / ".pgdata" / ".gitignore").read_text() == "*\n"


def test_eight_processes_that_start_at_once_share_one_server(project):
    wait = f"{ASK}\nimport sys; sys.stdout.flush(); sys.stdin.read()"
    users = [start(project, "manage.py", "shell", "-v0", "-c", wait) for _ in range(8)]

    answers = {user.stdout.readline() for user in users}

    assert len(answers) == 1
    assert answers.pop().startswith("default ")
    for user in users:
        user.kill()
        user.communicate()


def test_dbshell_starts_the_server_and_needs_no_psql_of_the_system(project, monkeypatch):
    programs = project / "programs"
    programs.mkdir()
    for program in ("sh", "test"):
        (programs / program).symlink_to(shutil.which(program))
    monkeypatch.setenv("PATH", str(programs))

    said = run(project, "manage.py", "dbshell", "--", "-Atc", "SELECT current_database()")

    assert said == "default\n"


RUNNERS = {
    "django": (["manage.py", "test", "--keepdb", "--parallel=2"], ["", "_1", "_2"]),
    "pytest": (["-m", "pytest", "-n2", "--reuse-db", "-p", "no:cacheprovider"], ["_gw0", "_gw1"]),
}


@pytest.mark.slow
@pytest.mark.parametrize(("command", "suffixes"), RUNNERS.values(), ids=RUNNERS)
def test_processes_of_a_test_runner_share_the_server_and_keep_databases(project, command, suffixes):
    run(project, *command)
    kept = run(project, "manage.py", "shell", "-v0", "-c", DATABASES)

    run(project, *command)

    assert kept == run(project, "manage.py", "shell", "-v0", "-c", DATABASES)
    names = [line.split()[0] for line in kept.splitlines()]
    tested = [f"test_{alias}{suffix}" for alias in ("default", "other") for suffix in suffixes]
    assert sorted(names) == ["default", *tested]


# One process


def wrapper(**changes: Any) -> base.DatabaseWrapper:
    known = {**connections.settings["default"], "NAME": "queue"}
    known = {key: value for key, value in known.items() if not key.startswith("EMBEDDED_")}
    return base.DatabaseWrapper({**known, **changes}, "default")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"EMBEDDED_DIR": "/data"}, "EMBEDDED_DIR is unknown. The keys are EMBEDDED_DIRECTORY, "),
        ({"EMBEDDED_DIRECTORY": 5}, "EMBEDDED_DIRECTORY must be a path, not 5"),
        ({"EMBEDDED_SETTINGS": ["fsync"]}, r"EMBEDDED_SETTINGS must be a dict, not \['fsync'\]"),
        ({"EMBEDDED_BIN_DIR": "/nowhere"}, "EMBEDDED_BIN_DIR is /nowhere, which has no pg_ctl"),
        ({}, r"Set DATABASES\['default'\]\['EMBEDDED_DIRECTORY'\]"),
    ],
)
def test_wrong_settings_are_refused_with_the_key_to_set(settings, changes, says):
    if not changes:
        del settings.BASE_DIR
    monkey = {"EMBEDDED_DIRECTORY": "/nowhere", **changes} if changes else {}

    with pytest.raises(ImproperlyConfigured, match=says):
        wrapper(**monkey).server()


def test_relative_directory_is_in_the_project(settings, tmp_path):
    settings.BASE_DIR = tmp_path

    for given, meant in (("data", "data"), (tmp_path / "data", "data"), (None, ".pgdata")):
        wrapper(EMBEDDED_DIRECTORY=given).server()
        assert list(base._servers)[-1] == tmp_path / meant


def test_directory_that_cannot_be_made_is_an_operational_error(directory):
    (directory / "file").touch()
    database = wrapper(EMBEDDED_DIRECTORY=directory / "file" / "postgres")

    with (
        pytest.raises(OperationalError, match="Set EMBEDDED_DIRECTORY to a directory that"),
        database.wrap_database_errors,
    ):
        database.connect()


# A process of its own

CURRENT_DATABASE = """
from django.db import connection
with connection.cursor() as cursor:
    cursor.execute("SELECT current_database()")
    print(cursor.fetchone()[0])
""".strip()


@pytest.fixture
def played(directory: Path) -> Callable[..., list[str]]:
    """``played(code, **options)`` runs code with Django set up; returns the words it printed."""

    def run(code: str, **options: Any) -> list[str]:
        database = {
            "ENGINE": "django_pgqueue.embedded",
            "NAME": "inbox",
            "EMBEDDED_DIRECTORY": str(directory),
            "EMBEDDED_SETTINGS": SETTINGS,
            **options,
        }
        setup = (
            "import django\nfrom django.conf import settings\n"
            f"settings.configure(DATABASES={{'default': {database!r}}})\ndjango.setup()\n"
        )
        command = [sys.executable, "-c", setup + code]
        return subprocess.check_output(command, cwd=ROOT, text=True).split()

    return run


def test_importing_settings_and_engine_starts_nothing(played, directory):
    played("from django.db import connection; connection.ops")

    assert list(directory.iterdir()) == []


def test_engine_works_with_djangos_pool(played):
    pytest.importorskip("psycopg_pool")
    code = f"{CURRENT_DATABASE}\nconnection.close_pool()"

    assert played(code, OPTIONS={"pool": {"min_size": 1}}) == ["inbox"]


@pytest.mark.parametrize(
    "options", [{}, {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}], ids=["0", "kept"]
)
def test_next_request_starts_a_server_that_was_killed(played, options):
    code = """
from django.db import close_old_connections
from django_pgqueue.embedded import base
[server] = base._servers.values()
server.kill()
close_old_connections()
"""

    assert played(CURRENT_DATABASE + code + CURRENT_DATABASE, **options) == ["inbox", "inbox"]


def test_root_without_a_user_for_the_server_is_told_to_make_one(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwall", list)

    with pytest.raises(ImproperlyConfigured, match="no user postgres or nobody"):
        EmbeddedServer(tmp_path)
