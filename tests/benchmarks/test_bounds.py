"""Whether runs kept a cap and starts a rate, in made-up data."""

from __future__ import annotations

from itertools import combinations_with_replacement

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bounds import SECOND, over_cap, over_rate
from benchmarks.runs import Run
from benchmarks.scenarios.limits import rated, waits

MOMENTS = st.lists(st.integers(0, 3 * SECOND), min_size=1, max_size=20).map(sorted)
#: 20 a second for 10 seconds.
EVEN = [number * SECOND // 20 for number in range(200)]
CAP = 5
#: Five lines of runs, each without a pause.
FULL = [(line + 10 * number, line + 10 * (number + 1)) for line in range(5) for number in range(9)]


def test_a_full_cap_is_kept():
    assert over_cap(FULL, CAP) == (5, 0)


@pytest.mark.parametrize("started", [4, 44, 89])
def test_one_run_over_the_cap_is_found(started):
    assert over_cap([*FULL, (started, started + 1)], CAP) == (6, 1)


def test_a_run_without_an_end_occupies_the_cap():
    assert over_cap([*FULL, (0, None)], CAP) == (6, 41)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), max_size=12))
def test_the_most_at_once_are_those_that_run_at_one_of_the_starts(lengths):
    runs = [(start, start + length) for start, length in lengths]

    most, _ = over_cap(runs, CAP)

    assert most == max((sum(a <= now < b for a, b in runs) for now, _ in runs), default=0)


def test_an_even_rate_is_kept():
    assert over_rate(EVEN, rate=20, burst=1) == (0, 0)


@pytest.mark.parametrize("extra", [0, EVEN[1] // 2, EVEN[100], EVEN[100] + 1, EVEN[-1]])
def test_one_start_over_the_rate_is_found(extra):
    worst, over = over_rate(sorted([*EVEN, extra]), rate=20, burst=1)

    assert (worst, over) == (1, 1)


def test_a_start_that_is_a_little_early_is_an_excess_but_not_a_start_over():
    early = [*EVEN[:100], EVEN[100] - SECOND // 100, *EVEN[101:]]

    assert over_rate(early, rate=20, burst=1) == (0.2, 0)


def test_a_rate_that_is_a_little_too_high_is_over_in_a_long_window():
    assert over_rate([number * SECOND // 25 for number in range(101)], rate=20, burst=1) == (20, 20)


@pytest.mark.parametrize(("first", "found"), [(5, (0, 0)), (6, (1, 1))])
@pytest.mark.parametrize("idle", [0, 60 * SECOND])
def test_a_pause_allows_one_burst(first, found, idle):
    starts = [idle] * first + [idle + moment for moment in EVEN[1:]]

    assert over_rate([0, *starts] if idle else starts, rate=20, burst=5) == found


@given(MOMENTS, st.integers(1, 30), st.integers(1, 5))
def test_the_worst_excess_is_that_of_all_windows(starts, rate, burst):
    worst, over = over_rate(starts, rate, burst)

    places = range(len(starts))
    assert worst == pytest.approx(
        max(
            (j - i + 1) - rate * (starts[j] - starts[i]) / SECOND - burst
            for i, j in combinations_with_replacement(places, 2)
        )
    )
    assert bool(over) == (worst >= 1)


def test_no_start_keeps_every_rate():
    assert over_rate([], rate=20, burst=1) == (-1, 0)


def test_the_share_of_a_rate_counts_from_the_first_start():
    late = [Run("busy", 0, moment + 60 * SECOND, None) for moment in EVEN]
    early = [run._replace(started=run.started - SECOND // 100) for run in late[1:]]

    assert rated(late, 20, seconds=10)["share of the rate"] == 1
    assert rated(late, 20, seconds=5)["share of the rate"] == 1
    assert rated(late[:1] + early, 20, seconds=5)["share of the rate"] == 1
    assert rated(late[::2], 20, seconds=10)["share of the rate"] == 0.5


def test_a_newcomer_waits_for_the_busy_starts_between_its_send_and_its_start():
    busy = [Run("busy", number, 10 * number, None) for number in range(10)]
    newcomers = [
        Run("newcomer", 0, 35, 36),
        Run("newcomer", 1, 81, None),
        Run("newcomer", 1, 95, 96),
    ]

    assert waits(sorted([*busy, *newcomers], key=lambda run: run.started), [15, 30]) == [2, 5]
