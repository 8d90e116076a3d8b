"""Run a rehearsal in a process of its own, which has the benchmark's settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from django_pgqueue.management.jobs import url_of

ROOT = Path(__file__).resolve().parents[2]


def rehearse(*arguments: str, seconds: float = 180) -> dict[str, Any]:
    """What ``tests.benchmarks.rehearsal`` prints, on the server of the tests."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.rehearsal", *arguments],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": url_of("default"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))
