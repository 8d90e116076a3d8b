"""Settings of the benchmark's processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATABASE = {"dbname": "none", "host": "none", "port": 5432, "user": "none"}


@pytest.mark.parametrize("settings", ["benchmarks.settings", "benchmarks.admin_settings"])
def test_consumers_of_a_benchmark_pass_the_checks_at_their_start(settings: str) -> None:
    environment = {
        **os.environ,
        "BENCHMARK_DATABASE": json.dumps(DATABASE),
        "DJANGO_SETTINGS_MODULE": settings,
        "PYTHONPATH": str(ROOT),
    }
    check = [sys.executable, "-m", "django", "check"]

    done = subprocess.run(check, cwd=ROOT, env=environment, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
