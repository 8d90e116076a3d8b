"""Runs PGMQ's own tests against the schema ``pgmq`` of this package.

    python -m tests.pgmq.suite sql FOLDER       # FOLDER: a checkout of the extension
    python -m tests.pgmq.suite python FOLDER    # FOLDER: a checkout of pgmq-py

``sql`` runs the regression files of ``pgmq-extension/test/sql`` with psql, and compares the output
of each statement with ``expected/``. ``python`` runs pgmq-py's own tests, on a server that has an
empty extension ``pgmq``. Both print what differs, and end with 1 if fewer than LEAST pass.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: The least statements, and tests, that pass.
LEAST = {"sql": 690, "python": 250}

# The schema is installed already.
_EXTENSION = re.compile(r"^(CREATE|DROP) EXTENSION [^;]*;", re.M | re.I)

_IGNORED = re.compile(
    r"--( |\w|$)|(CREATE|DROP) EXTENSION|NOTICE:.*(skipping|truncated|no partitions yet)"
    r"|CONTEXT:|HINT:"
    r"|SQL (statement|function)|PL/pgSQL|LINE \d|\s+\^$"
)


@contextmanager
def database() -> Iterator[dict[str, str]]:
    """A database with the schema; yields libpq's environment variables for it."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connection

    before = connection.settings_dict["NAME"]
    connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    call_command("pgqueue_pgmq", "install", verbosity=0)
    params = connection.get_connection_params()
    try:
        names = {key: key.upper() for key in ("host", "port", "user", "password")}
        names["dbname"] = "DATABASE"
        yield {f"PG{name}": str(params[key]) for key, name in names.items() if params.get(key)}
    finally:
        connection.creation.destroy_test_db(before, verbosity=0)


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


def run_sql(folder: Path) -> tuple[int, int]:
    """Run the regression files. Returns how many statements passed, and of how many."""
    tests = folder / "pgmq-extension" / "test"
    passed = total = 0
    for file in sorted((tests / "sql").glob("*.sql")):
        with database() as where:
            sql = _EXTENSION.sub("", file.read_text())
            # pg_regress uses a time zone and a style of its own.
            options = {"PGTZ": "PST8PDT", "PGDATESTYLE": "Postgres, MDY"}
            made = subprocess.run(
                ["psql", "-X", "-a", "-q"],
                input=sql, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                env={**os.environ, **where, **options},
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


def run_python(folder: Path, python: str) -> tuple[int, int]:
    """Run pgmq-py's tests. Returns how many passed, and of how many."""
    with database() as where:
        variables = {f"PG_{name[2:]}": value for name, value in where.items()}
        variables |= {"PG_USERNAME": where["PGUSER"]}
        others = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "VIRTUAL_ENV")}
        result = subprocess.run(
            [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
            cwd=folder, text=True, capture_output=True, check=False,
            env={**others, **where, **variables, "PYTHONPATH": str(folder / "src")},
        )  # fmt: skip
    print(result.stdout[-20000:])
    last = result.stdout.splitlines()[-1]
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", last)}
    passed = counts.get("passed", 0)
    return passed, passed + sum(counts.get(word, 0) for word in ("failed", "error", "errors"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=LEAST)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--python", default=sys.executable, help="an interpreter that has what pgmq-py's tests need"
    )
    chosen = parser.parse_args()
    if chosen.kind == "sql":
        passed, total = run_sql(chosen.folder)
    else:
        passed, total = run_python(chosen.folder, chosen.python)
    print(f"{passed} of {total} passed")
    return 0 if passed >= LEAST[chosen.kind] else 1


if __name__ == "__main__":
    raise SystemExit(main())
