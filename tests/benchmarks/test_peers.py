"""Each installed contestant, with a few messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import WORKERS, missing
from django_pgqueue.management.jobs import url_of
from tests.benchmarks.rehearsal import COUNT

ROOT = Path(__file__).resolve().parents[2]
#: The contestants in Python: npm would download the other one.
LABELS = [label for label, (_, needed) in WORKERS.items() if "npm" not in needed]


@pytest.mark.slow
@pytest.mark.parametrize("tuning", [[], ["--tuned"]], ids=["default", "tuned"])
@pytest.mark.parametrize("label", LABELS)
def test_a_worker_handles_every_message_once_and_ends_when_it_is_asked_to(
    label, tuning, django_db_setup
):
    if needed := missing(label):
        pytest.skip(f"needs {needed}")

    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.rehearsal", label, *tuning],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": url_of("default"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["handled"] == [float(number) for number in range(COUNT)]
    assert found["remaining"] == 0
    assert found["exit"] != -signal.SIGKILL
