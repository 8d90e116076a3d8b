"""Each installed contestant, with a few messages."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from benchmarks.bounds import SECOND
from benchmarks.peers import LIMITED, WORKERS, missing
from tests.benchmarks.processes import rehearse
from tests.benchmarks.rehearsal import COUNT, SECONDS

#: The contestants in Python: npm would download the other one.
LABELS = [label for label, (_, needed) in WORKERS.items() if "npm" not in needed]


@pytest.mark.slow
@pytest.mark.parametrize("tuning", [[], ["--tuned"]], ids=["default", "tuned"])
@pytest.mark.parametrize("label", LABELS)
def test_a_worker_handles_every_message_once_and_ends_when_it_is_asked_to(
    label, tuning, django_db_setup
):
    found = rehearsed(label, *tuning)

    assert found["handled"] == [float(number) for number in range(COUNT)]
    assert found["remaining"] == 0
    assert found["exit"] != -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("label", LIMITED)
def test_a_limited_worker_handles_every_message_once(label, django_db_setup):
    found = rehearsed(label, "--limited")

    assert found
    for of_limit in found.values():
        assert of_limit["sent"] == of_limit["started"] == COUNT
        assert of_limit["handled"] == list(range(COUNT))
        # The recorded runs contain the work.
        assert of_limit["shortest"] >= 0.9 * SECONDS * SECOND
        assert -signal.SIGKILL not in of_limit["exits"]


def rehearsed(label: str, *options: str) -> dict[str, Any]:
    """What a rehearsal prints. Skips the test if the contestant is not installed."""
    if needed := missing(label):
        pytest.skip(f"needs {needed}")
    return rehearse(label, *options)
