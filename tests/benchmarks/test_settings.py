"""Settings of the benchmark's processes, and the scenarios of the command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.__main__ import parser

ROOT = Path(__file__).resolve().parents[2]
#: The words of a command in a page, from its subcommand on.
COMMAND = r"python -m benchmarks[\s.]((?:run|turns)\b[^`#]*)"
DATABASE = {"dbname": "none", "host": "none", "port": 5432, "user": "none"}


def run(*arguments: str) -> str:
    environment = {
        **os.environ,
        "BENCHMARK_DATABASE": json.dumps(DATABASE),
        "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_consumers_of_a_benchmark_pass_the_checks_at_their_start():
    run("django", "check")


def test_every_command_of_a_page_names_scenarios_that_exist():
    known = {word for line in run("benchmarks", "list").splitlines() for word in line.split()[:2]}
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "tests" / "README.md"]
    commands = [
        found.split()
        for page in pages
        for found in re.findall(
            r"python -m benchmarks[\s.]((?:run|turns)\b[^`#]*)", page.read_text()
        )
    ]

    assert commands
    for command in commands:
        if command[0] == "turns" and len(command) > 1:
            command[1] = str(ROOT)
            assert set(parser().parse_args(command).scenarios) <= known, command
        elif command[0] == "run":
            assert set(parser().parse_args(command).scenarios) <= known, command
