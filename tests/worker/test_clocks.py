"""No consumer uses its own wall clock: times are the server's, and durations monotonic."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import django_pgqueue

PACKAGE = Path(django_pgqueue.__file__).parent
WALL_CLOCKS = {
    ("time", "time"),
    ("time", "time_ns"),
    ("timezone", "now"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
}


def wall_clocks(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
            if (owner, node.attr) in WALL_CLOCKS:
                yield f"{owner}.{node.attr} in line {node.lineno}"


def test_the_search_finds_wall_clocks():
    source = "import time\ntime.time()\ndt.datetime.now()\ntime.monotonic()\n"

    assert list(wall_clocks(source)) == ["time.time in line 2", "datetime.now in line 3"]


def test_nothing_between_send_and_settle_asks_a_wall_clock():
    paths = [
        *(PACKAGE / "worker").glob("*.py"),
        *(PACKAGE / "tables").rglob("*.py"),
        *(PACKAGE / "queues").rglob("*.py"),
        *(PACKAGE / "handlers").rglob("*.py"),
        *(PACKAGE / name for name in ("acks.py", "retries.py", "engine/read/sleep.py")),
    ]

    found = {path.name: list(wall_clocks(path.read_text())) for path in paths}

    assert len(paths) > 40
    assert {name: clocks for name, clocks in found.items() if clocks} == {}
