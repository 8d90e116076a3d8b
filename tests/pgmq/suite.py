"""Runs the tests of PGMQ, and of its clients, against the schema ``pgmq`` of this package.

    python -m tests.pgmq.suite sql FOLDER           # FOLDER: a checkout of the extension
    python -m tests.pgmq.suite python FOLDER        # of pgmq-py
    python -m tests.pgmq.suite sqlalchemy FOLDER    # of pgmq-sqlalchemy
    python -m tests.pgmq.suite js FOLDER            # of pgmq-js, after ``npm ci``

``sql`` runs the regression files of ``pgmq-extension/test/sql`` with psql, and compares the output
of each statement with ``expected/``. It ends with 1 if fewer than LEAST pass. A client's tests run
on PGMQ's own SQL too, which the package ``pgmq`` brings: the command ends with 1 if a test passes
there and fails here, but for EXPECTED. All print what fails. Further arguments are pytest's or
jest's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from xml.etree import ElementTree

import psycopg

from django_pgqueue.embedded.server import EmbeddedServer
from tests.ports import free_port

#: The least statements of PGMQ's regression files that pass.
LEAST = 690

#: Fails only here: total_messages is no count per queue.
EXPECTED = "test_metrics_all_queues"

HOST = "127.0.0.1"

# The schema is installed already.
_EXTENSION = re.compile(r"^(CREATE|DROP) EXTENSION [^;]*;", re.M | re.I)

_IGNORED = re.compile(
    r"--( |\w|$)|(CREATE|DROP) EXTENSION|NOTICE:.*(skipping|truncated|no partitions yet)"
    r"|CONTEXT:|HINT:"
    r"|SQL (statement|function)|PL/pgSQL|LINE \d|\s+\^$"
)


@contextmanager
def server() -> Iterator[int]:
    """A server on which CREATE EXTENSION pgmq makes nothing; yields its port."""
    folder = Path(tempfile.mkdtemp(prefix="pgqueue-suite-"))
    folder.chmod(0o755)
    (folder / "extension").mkdir()
    (folder / "extension" / "pgmq.control").write_text("default_version = '1'")
    (folder / "extension" / "pgmq--1.sql").touch()
    settings = {
        "extension_control_path": f"{folder}:$system",
        "fsync": "off",
        "listen_addresses": HOST,
    }
    server = EmbeddedServer(folder / "server", settings=settings)
    server.port = free_port()
    try:
        with server:
            yield server.port
    finally:
        shutil.rmtree(server.home, ignore_errors=True)
        shutil.rmtree(folder)


@contextmanager
def ours(port: int) -> Iterator[str]:
    """A database with our schema; yields its name."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    os.environ["DATABASE_URL"] = f"postgres://postgres@{HOST}:{port}/postgres"
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connection

    connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    call_command("pgqueue_pgmq", "install", verbosity=0)
    try:
        yield connection.settings_dict["NAME"]
    finally:
        connection.creation.destroy_test_db("postgres", verbosity=0)


@contextmanager
def theirs(port: int) -> Iterator[str]:
    """A database with PGMQ's own schema; yields its name."""
    address = f"postgresql://postgres@{HOST}:{port}"
    with psycopg.connect(f"{address}/postgres", autocommit=True) as connection:
        connection.execute("CREATE DATABASE theirs")
    with psycopg.connect(f"{address}/theirs") as connection:
        connection.execute((files("pgmq") / "sql" / "pgmq.sql").read_bytes())
    yield "theirs"


def statements(text: str) -> list[str]:
    """The statements of a file for psql, as pg_regress echoes them."""
    found, current = [], []
    quoted = False
    for line in text.splitlines():
        if not current and (not line.strip() or line.startswith("--")):
            continue
        current.append(line)
        quoted ^= line.count("$$") % 2 == 1
        if line.startswith("\\") or (not quoted and re.search(r";\s*(--.*)?$|\\gset", line)):
            found.append("\n".join(current))
            current = []
    return found


def outputs(statements: list[str], text: str) -> list[str | None]:
    """What was printed for each statement; None for one that was not reached."""
    starts, at = [], 0
    for statement in statements:
        found = text.find(statement + "\n", at)
        starts.append(found)
        if found >= 0:
            at = found + len(statement)
    results: list[str | None] = []
    for place, (statement, start) in enumerate(zip(statements, starts, strict=True)):
        end = next((after for after in starts[place + 1 :] if after >= 0), len(text))
        results.append(None if start < 0 else _plain(text[start + len(statement) : end]))
    return results


def _plain(text: str) -> str:
    """Without comments, the extension's statements, notices of objects, and an error's context."""
    lines = [line.strip() for line in text.splitlines() if not _IGNORED.match(line)]
    return "\n".join(line for line in lines if line)


def run_sql(folder: Path, port: int) -> tuple[int, int]:
    """Run the regression files. Returns how many statements passed, and of how many."""
    tests = folder / "pgmq-extension" / "test"
    passed = total = 0
    for file in sorted((tests / "sql").glob("*.sql")):
        sql = _EXTENSION.sub("", file.read_text())
        with ours(port) as name:
            made = subprocess.run(
                ["psql", "-X", "-a", "-q"],
                input=sql, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                # pg_regress uses a time zone and a style of its own.
                env=environment(port, name) | {"PGTZ": "PST8PDT", "PGDATESTYLE": "Postgres, MDY"},
            ).stdout  # fmt: skip
        expected = (tests / "expected" / f"{file.stem}.out").read_text()
        every = statements(sql)
        for statement, want, got in zip(
            every, outputs(every, expected), outputs(every, made), strict=True
        ):
            total += 1
            if want == got:
                passed += 1
            else:
                print(f"-- {file.name}\n{statement}\nexpected:\n{want}\ngot:\n{got}\n")
    return passed, total


def environment(port: int, name: str) -> dict[str, str]:
    """The variables by which psql and the clients' tests find a database."""
    where = {"HOST": HOST, "PORT": str(port), "DATABASE": name, "PASSWORD": "unused"}
    variables = {
        **{f"PG{key}": value for key, value in where.items()},
        **{f"PG_{key}": value for key, value in where.items()},
        **{f"SQLALCHEMY_{key}": value for key, value in where.items()},
        "PGUSER": "postgres",
        "PG_USERNAME": "postgres",
        "SQLALCHEMY_DB": name,
    }
    others = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "VIRTUAL_ENV")}
    return others | variables


def run_pytest(folder: Path, port: int, name: str, python: str, more: list[str]) -> dict[str, str]:
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        subprocess.run(
            [python, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report.name}", *more,
             "tests"],
            cwd=folder, stdout=subprocess.DEVNULL, check=False,
            env={**environment(port, name), "PYTHONPATH": str(folder / "src")},
        )  # fmt: skip
        cases = list(ElementTree.parse(report.name).iter("testcase"))
    problems = {}
    for case in cases:
        bad = [each.get("message", "") for each in case if each.tag in ("failure", "error")]
        if case.find("skipped") is None:
            problems[f"{case.get('classname')}.{case.get('name')}"] = "\n".join(bad)
    return problems


def run_jest(folder: Path, port: int, name: str, python: str, more: list[str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as directory:
        copy = shutil.copytree(
            folder, Path(directory) / "copy", ignore=shutil.ignore_patterns("node_modules", ".git")
        )
        (copy / "node_modules").symlink_to(folder / "node_modules")
        for spec in copy.glob("src/**/*.spec.ts"):
            text = spec.read_text().replace("'localhost'", f"'{HOST}'").replace("5432", str(port))
            spec.write_text(text.replace("database: 'postgres'", f"database: '{name}'"))
        result = subprocess.run(
            ["npx", "jest", "--runInBand", "--json", *more],
            cwd=copy, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    return {
        test["fullName"]: "\n".join(test["failureMessages"])
        for file in json.loads(result.stdout)["testResults"]
        for test in file["assertionResults"]
        if test["status"] != "pending"
    }


#: Each returns the problem of every test, "" if it passed.
CLIENTS: dict[str, Callable[[Path, int, str, str, list[str]], dict[str, str]]] = {
    "python": run_pytest,
    "sqlalchemy": run_pytest,
    "js": run_jest,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["sql", *CLIENTS])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--python", default=sys.executable, help="an interpreter that has what the tests need"
    )
    chosen, more = parser.parse_known_args()
    folder = chosen.folder.absolute()
    with server() as port:
        if chosen.kind == "sql":
            passed, total = run_sql(folder, port)
            print(f"{passed} of {total} passed")
            return 0 if passed >= LEAST else 1
        run = CLIENTS[chosen.kind]
        with ours(port) as name:
            here = run(folder, port, name, chosen.python, more)
        with theirs(port) as name:
            there = run(folder, port, name, chosen.python, more)
    failed = {test: problem for test, problem in here.items() if problem}
    only_here = [test for test in failed if there.get(test) == ""]
    for test, problem in failed.items():
        print(f"{test}{' (only here)' if test in only_here else ''}\n{problem}\n")
    print(
        f"{len(here) - len(failed)} of {len(here)} passed here, "
        f"{sum(not problem for problem in there.values())} on PGMQ's own SQL; "
        f"{len(only_here)} failed only here"
    )
    return 1 if any(EXPECTED not in test for test in only_here) else 0


if __name__ == "__main__":
    raise SystemExit(main())
