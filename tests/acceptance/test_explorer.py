"""The first interleavings of each scenario; ``python -m tests.acceptance.explorer`` runs all."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.acceptance.explorer import Choice, following
from tests.acceptance.mutants import MUTANTS, laboratory

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).resolve().parents[2]
#: The interleavings of each scenario, at most, and the scenarios, if not all.
MOST = os.environ.get("EXPLORER_MOST", "25")
ONLY = os.environ.get("EXPLORER_ONLY", "").split()


@pytest.mark.parametrize(("bound", "count"), [(0, 2), (1, 4), (2, 6), (None, 6)])
def test_a_bound_leaves_out_interleavings_with_more_switches(bound, count):
    """Two sessions with two steps each."""
    found, prefix = [], []
    while True:
        left, before = {"a": 2, "b": 2}, None
        choices, order = [], ""
        while able := sorted((s for s in left if left[s]), key=lambda s: (s != before, s)):
            chosen = prefix[len(choices)] if len(choices) < len(prefix) else 0
            choices.append(Choice(chosen, len(able), before in able))
            before = able[chosen]
            left[before] -= 1
            order += before
        found.append(order)
        later = following(choices, bound)
        if later is None:
            break
        prefix = later

    assert len(set(found)) == len(found) == count


@pytest.mark.slow
def test_no_interleaving_breaks_an_invariant():
    command = [sys.executable, "-m", "tests.acceptance.explorer", *ONLY, "--most", MOST]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "."}
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(ended.stdout.splitlines()) == (len(ONLY) or 17)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "scenario"),
    [
        ("no-fence", "expire"),
        ("fence-by-count", "release"),
        ("followers-ready", "grouped"),
        ("slot-freed-in-flight", "two-slots"),
    ],
)
def test_an_interleaving_shows_a_planted_bug(name, scenario, monkeypatch):
    monkeypatch.setenv("EXPLORER_ONLY", scenario)
    [mutant] = [mutant for mutant in MUTANTS if mutant.name == name]
    this = f"{Path(__file__).relative_to(ROOT)}::test_no_interleaving_breaks_an_invariant"

    with laboratory() as bench:
        verdict = bench.examine(replace(mutant, tests=(this,)), 300)

    assert verdict.catcher == this
