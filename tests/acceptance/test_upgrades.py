"""An upgrade without downtime: the last release's processes run while the next one migrates.

The last release is the newest tag, built here; without a tag it is the working tree. The next
release is simulated with the schema changes that the contract in docs/deployment.md allows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.acceptance.test_packages import ROOT, clean_environment, run
from tests.waiting import until

pytest.importorskip("hatchling", reason="builds the packages with hatchling")

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

NAME = "pgqueue_upgraded"

#: Changes that a release may make while the last one's processes use the schema.
NEXT_RELEASE = """
    ALTER TABLE pgqueue_message ADD COLUMN next_release text;
    ALTER TABLE pgqueue_archive ADD COLUMN next_release text;
    ALTER TABLE pgqueue_ready ADD COLUMN next_release text;
    ALTER TABLE pgqueue_deferred ADD COLUMN next_release integer DEFAULT 7;
    ALTER TABLE pgqueue_lease ADD COLUMN next_release text;
    ALTER TABLE pgqueue_process ADD COLUMN next_release text;
    ALTER TABLE pgqueue_queue ADD COLUMN next_release text;
    CREATE INDEX pgqueue_deferred_next_release ON pgqueue_deferred (next_release);
    CREATE TABLE pgqueue_next_release (id bigint PRIMARY KEY);
    INSERT INTO django_migrations (app, name, applied)
    VALUES ('django_pgqueue', '9999_next_release', now());
"""

#: A function is replaced by one with the same arguments.
NEXT_WAKE = """
    SELECT replace(pg_get_functiondef('pgqueue_wake'::regproc), 'DECLARE',
                   '-- of the next release' || chr(10) || 'DECLARE')
"""

SETTINGS = """
import json, os
SECRET_KEY = "only for tests"
USE_TZ = True
INSTALLED_APPS = ["django_pgqueue", "shop"]
DATABASES = {"default": json.loads(os.environ["UPGRADED"])}
PGQUEUE = {"CACHE_SECONDS": 1.0, "MAINTENANCE_SECONDS": 1.0}
"""

CONSUMERS = """
from django_pgqueue import consumer
from django_pgqueue.retries import Constant

@consumer("orders", retry=Constant(seconds=0, max_attempts=3), keep_result=True)
def charge(message):
    if message.body["number"] % 10 == 0 and message.attempts == 0:
        raise ValueError("once")
    return message.body["number"]
"""

SEND = """
import sys, django
django.setup()
from django_pgqueue import queue
from django_pgqueue.conf import settings
start = int(sys.argv[1])
orders = queue("orders")
bodies = [{"number": start + number} for number in range(50)]
for number, body in enumerate(bodies[:10]):
    orders.send(body, group="g" if number % 2 else None, unique=f"{start}-{number}")
orders.send_batch(bodies[10:30])
settings.__dict__["COPY_THRESHOLD"] = 1
orders.send_batch(bodies[30:])
print(django.get_version(), orders.metrics().length, sys.modules["django_pgqueue"].__file__)
"""


class Release:
    """One release's processes."""

    def __init__(self, package: Path, project: Path, database: dict[str, Any]) -> None:
        self.package = package
        self.project = project
        self.env = {
            **clean_environment(),
            "PYTHONPATH": f"{package}{os.pathsep}{project}",
            "DJANGO_SETTINGS_MODULE": "settings",
            "PYTHONUNBUFFERED": "1",
            "UPGRADED": json.dumps(database),
        }

    def manage(self, *arguments: str) -> str:
        command = [sys.executable, "-W", "ignore", "-m", "django", *arguments]
        return run(command, self.project, self.env)

    def send(self, start: int) -> None:
        said = run([sys.executable, "-W", "ignore", "-c", SEND, str(start)], self.project, self.env)
        assert said.split()[-1].startswith(str(self.package)), said

    def consume(self, log: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-W", "ignore", "-m", "django", "runconsumer", "orders"]
        return subprocess.Popen(
            command, cwd=self.project, env=self.env, stdout=log, stderr=subprocess.STDOUT
        )


@pytest.fixture
def database(reachable: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A database with nothing in it."""
    known = reachable["default"]
    with psycopg.connect(conninfo({**known, "NAME": "postgres"}), autocommit=True) as server:
        server.execute(f"DROP DATABASE IF EXISTS {NAME} WITH (FORCE)")
        server.execute(f"CREATE DATABASE {NAME}")
        yield {**known, "ENGINE": "django.db.backends.postgresql", "NAME": NAME}
        server.execute(f"DROP DATABASE IF EXISTS {NAME} WITH (FORCE)")


def conninfo(known: dict[str, Any]) -> str:
    words = {"host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD"}
    given = {word: known[key] for word, key in words.items() if known.get(key)}
    return make_conninfo(dbname=known["NAME"], **given)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    (directory / "shop").mkdir(parents=True)
    (directory / "settings.py").write_text(SETTINGS)
    (directory / "shop" / "__init__.py").touch()
    (directory / "shop" / "consumers.py").write_text(CONSUMERS)
    return directory


@pytest.fixture
def last_release(tmp_path: Path) -> Path:
    """A directory with the last release's package, from its wheel."""
    source = _source_of_newest_tag(tmp_path) or ROOT
    wheels, target = tmp_path / "wheels", tmp_path / "last"
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)], source)
    [wheel] = wheels.glob("*.whl")
    run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
         "--no-compile", "--target", str(target), str(wheel)],
        ROOT,
    )  # fmt: skip
    return target


def _source_of_newest_tag(directory: Path) -> Path | None:
    """The source tree of the newest earlier release; None without a repository or a tag."""
    git = ["git", "-C", str(ROOT)]
    asked = subprocess.run(
        [*git, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"],
        capture_output=True,
        text=True,
    )
    if asked.returncode != 0:
        return None
    archive, tree = directory / "last.tar", directory / "tree"
    run([*git, "archive", "--output", str(archive), asked.stdout.strip()], ROOT)
    with tarfile.open(archive) as packed:
        packed.extractall(tree, filter="data")
    return tree


def test_processes_of_the_last_release_work_on_the_schema_of_the_next(
    database, project, last_release
):
    last, this = (Release(each, project, database) for each in (last_release, ROOT))
    last.manage("migrate")
    last.manage("pgqueue_create", "orders")
    with (
        psycopg.connect(conninfo(database), autocommit=True) as server,
        tempfile.TemporaryFile() as log,
    ):

        def done() -> list[tuple[Any, ...]]:
            return server.execute(
                "SELECT state, result::int, attempts FROM pgqueue_archive ORDER BY result::int"
            ).fetchall()

        def output() -> str:
            log.seek(0)
            return log.read().decode()

        consumer = last.consume(log)
        try:
            last.send(0)
            until(lambda: len(done()) == 50, 60)

            this.manage("migrate")
            server.execute(NEXT_RELEASE)
            [(replaced,)] = server.execute(NEXT_WAKE).fetchall()
            server.execute(replaced)
            last.send(50)
            this.send(100)
            until(lambda: len(done()) == 150, 60)
            assert consumer.poll() is None, output()
        finally:
            consumer.terminate()
            code = consumer.wait(60)

        last.send(150)
        this.manage("runconsumer", "orders", "--drain", "--no-progress")
        # Downgrade: the last release runs on the next one's schema.
        this.send(200)
        last.manage("migrate")
        last.manage("runconsumer", "orders", "--drain", "--no-progress")

        assert code == 0, output()
        assert "of the next release" in replaced
        assert done() == [("COMPLETED", n, 2 if n % 10 == 0 else 1) for n in range(250)]
        assert "no issues" in last.manage("check", "--database", "default")
        assert "9999_next_release" not in this.manage("check", "--database", "default")
        # Only the planned errors of the 150 messages.
        assert output().count("Traceback") == 15
