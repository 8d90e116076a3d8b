"""Decorators, sends, settings and test helpers as mypy and pyright see them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = [Path("tests", name, "typed.py") for name in ("", "handlers", "queues", "tasks")]
CHECKERS = {
    "mypy": ["mypy", "--config-file=", "--strict", "--cache-dir={cache}"],
    "pyright": ["pyright", "--pythonpath={python}"],
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not find_spec("django-stubs"), reason="needs django-stubs"),
]


@pytest.mark.parametrize("file", FILES, ids=str)
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_type_checker_finds_the_mistakes_and_no_others(checker, file, tmp_path):
    pytest.importorskip(checker)
    command = [each.format(cache=tmp_path, python=sys.executable) for each in CHECKERS[checker]]

    done = subprocess.run(
        [sys.executable, "-m", *command, str(file)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MYPYPATH": str(ROOT)},
    )

    found = re.findall(r"typed\.py:(\d+)(?::\d+)?(?: -|:) error", done.stdout)
    lines = (ROOT / file).read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# WRONG")}
    assert {int(number) for number in found} == wrong, done.stdout + done.stderr
