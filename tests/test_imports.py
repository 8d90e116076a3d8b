"""Imports follow the layers, without cycles and without imports inside functions. Functions are
short.

The layers and contracts are in pyproject.toml and checked by import-linter. It cannot recognise
imports inside functions, so this module finds them.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "django_pgqueue"
SPARK = "pyspark_pgqueue"
# Modules that must exist because the contracts name them, or packages that they name.
ALWAYS = dict.fromkeys(
    [
        "__init__.py",
        "bare.py",
        "flows/__init__.py",
        "handlers/__init__.py",
        "models.py",
        "queues/__init__.py",
        "tables/__init__.py",
        "prometheus/counters.py",
        "tracing/spans.py",
        "worker/__init__.py",
        "engine/__init__.py",
        f"{SPARK}/__init__.py",
    ],
    "",
)
#: The most lines of a function.
MOST_LINES = 60
# The two functions in which Django and Python require late imports.
MAY_IMPORT_LATE = {"__getattr__": "__init__.py", "ready": "apps.py"}


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            f"--config={ROOT / 'pyproject.toml'}",
            "--no-cache",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
    )


def hidden_imports(package: Path) -> Iterator[str]:
    """Imports of our own modules inside functions, as `file:line function`."""
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function in ast.walk(tree):
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if MAY_IMPORT_LATE.get(function.name) == path.name:
                continue
            for node in ast.walk(function):
                if is_import_of_ours(node):
                    yield f"{path.relative_to(package)}:{node.lineno} {function.name}"


def is_import_of_ours(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.level > 0 or (node.module or "").split(".")[0] in {PACKAGE, SPARK}
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] in {PACKAGE, SPARK} for alias in node.names)
    return False


def long_functions(package: Path) -> Iterator[str]:
    """Functions that are longer than MOST_LINES without their docstring, as `file name: lines`."""
    for path in sorted(package.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = length(function)
                if ast.get_docstring(function) is not None:
                    lines -= length(function.body[0])
                if lines > MOST_LINES:
                    yield f"{path.relative_to(package)} {function.name}: {lines}"


def length(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def made_up_package(folder: Path, modules: dict[str, str]) -> Path:
    """Create both packages, with empty modules unless ``modules`` gives their code."""
    package = folder / PACKAGE
    for name, code in {**ALWAYS, **modules}.items():
        path = folder / name if name.startswith(f"{SPARK}/") else package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for parent in path.relative_to(folder).parents[:-1]:
            (folder / parent / "__init__.py").touch()
        path.write_text(code)
    return package


def test_imports_point_inward_and_without_cycles():
    result = lint_imports(ROOT)

    assert result.returncode == 0, result.stdout


def test_no_import_hides_in_a_function():
    assert list(hidden_imports(ROOT / PACKAGE)) == []
    assert list(hidden_imports(ROOT / SPARK)) == []


def test_no_function_is_longer_than_a_screen():
    """Docstrings do not count: a public function's explains each of its arguments."""
    assert list(long_functions(ROOT / PACKAGE)) == []
    assert list(long_functions(ROOT / SPARK)) == []


def test_a_long_function_is_found_and_one_with_a_long_docstring_is_not(tmp_path):
    lines = "    pass\n" * MOST_LINES
    package = made_up_package(
        tmp_path,
        {
            "errors.py": f"def long():\n{lines}",
            "types.py": f'def explained():\n    """\n{lines}    """\n',
        },
    )

    assert list(long_functions(package)) == [f"errors.py long: {MOST_LINES + 1}"]


def test_linter_accepts_a_made_up_package_that_keeps_the_order(tmp_path):
    made_up_package(
        tmp_path,
        {
            "errors.py": "",
            "tables/queue.py": "from django_pgqueue import errors",
            "queues/bound.py": "from django_pgqueue.tables import queue",
            "models.py": "from django_pgqueue.queues import bound",
            "admin/pages.py": "from django_pgqueue.models import bound",
            "pyspark_pgqueue/cli.py": "",
            "management/jobs.py": "from pyspark_pgqueue import cli",
        },
    )

    result = lint_imports(tmp_path)

    assert result.returncode == 0, result.stdout


REFUSED = {
    "outward": {"tables/queue.py": "", "errors.py": "from django_pgqueue.tables import queue"},
    "outward-for-types-only": {
        "admin/pages.py": "",
        "tables/queue.py": (
            "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n"
            "    from django_pgqueue.admin import pages"
        ),
    },
    "cycle": {
        "queues/bound.py": "from django_pgqueue.queues import message",
        "queues/message.py": "from django_pgqueue.queues import bound",
    },
    "embedded-server-in-a-test-helper": {
        "embedded/base.py": "",
        "testing/databases.py": "from django_pgqueue.embedded import base",
    },
    "operations-in-a-table": {
        "tables/queue.py": "from django_pgqueue.queues import bound",
        "queues/bound.py": "",
    },
    "module-without-a-layer": {"surprise.py": ""},
    "model-in-the-engine": {
        "tables/queue.py": "",
        "engine/open_queue.py": "from django_pgqueue.tables import queue",
    },
    "django-behind-the-engine": {
        "engine/wake.py": "import django",
        "engine/open_queue.py": "from django_pgqueue.engine import wake",
    },
    "cycle-in-the-engine": {
        "engine/send/sending.py": "from django_pgqueue.engine.read import reading",
        "engine/read/reading.py": "from django_pgqueue.engine.send import sending",
    },
    "django-in-spark": {"pyspark_pgqueue/data_source.py": "from django.db import models"},
    "models-in-spark": {
        "tables/queue.py": "import django",
        "pyspark_pgqueue/data_source.py": "from django_pgqueue.tables import queue",
    },
    "outward-in-spark": {
        "pyspark_pgqueue/jobs/export.py": "",
        "pyspark_pgqueue/source/options.py": "from pyspark_pgqueue.jobs import export",
    },
    "spark-in-the-admin": {
        "pyspark_pgqueue/cli.py": "",
        "admin/pages.py": "from pyspark_pgqueue import cli",
    },
    "migration-on-models": {
        "tables/queue.py": "",
        "migrations/one.py": "from django_pgqueue.tables import queue",
    },
    "handlers-in-metrics": {"prometheus/counters.py": "from django_pgqueue import handlers"},
}


@pytest.mark.parametrize("modules", REFUSED.values(), ids=REFUSED)
def test_linter_refuses_a_made_up_package(tmp_path, modules):
    made_up_package(tmp_path, modules)

    result = lint_imports(tmp_path)

    assert result.returncode == 1, result.stdout + result.stderr
    assert "BROKEN" in result.stdout or "not listed as layers" in result.stdout


def test_hidden_import_is_found_and_allowed_ones_are_not(tmp_path):
    package = made_up_package(
        tmp_path,
        {
            "__init__.py": "def __getattr__(name):\n    from . import models",
            "apps.py": "class App:\n    def ready(self):\n        from . import checks",
            "tables/queue.py": "def send():\n    from django_pgqueue import consumer",
        },
    )

    assert list(hidden_imports(package)) == ["tables/queue.py:2 send"]
