"""Retry strategies: when a failed message is retried."""

from __future__ import annotations

import pytest

from django_pgqueue.errors import InvalidArgument
from django_pgqueue.retries import Constant, Exponential, Linear, NoRetry, wants_retry


def test_no_retry_never_retries():
    assert NoRetry().delay(1, 0.0) is None


@pytest.mark.parametrize(
    ("strategy", "delays"),
    [
        (Constant(seconds=5), [5, 5, 5, 5]),
        (Linear(first=1, step=2), [1, 3, 5, 7]),
        (Linear(first=1, step=2, longest=4), [1, 3, 4, 4]),
        (Exponential(first=1), [1, 2, 4, 8]),
        (Exponential(first=2, factor=3, longest=20), [2, 6, 18, 20]),
    ],
)
def test_delays_grow_as_the_strategy_says(strategy, delays):
    assert [strategy.delay(attempt, 0.0) for attempt in (1, 2, 3, 4)] == delays


def test_jitter_draws_between_nothing_and_the_delay():
    strategy = Exponential(first=1, jitter=True)

    delays = [strategy.delay(4, 0.0) or 0.0 for _ in range(1000)]

    assert 0 <= min(delays) < 1
    assert 7 < max(delays) <= 8


def test_ten_thousand_attempts_overflow_nothing():
    assert Exponential(longest=60).delay(10_000, 0.0) == 60
    assert Exponential(factor=1e100, longest=60).delay(10_000, 0.0) == 60
    assert Exponential(first=0).delay(10_000, 0.0) == 0


@pytest.mark.parametrize("strategy", [Constant, Linear, Exponential])
def test_max_attempts_counts_the_first_run_too(strategy):
    limited = strategy(max_attempts=3)

    assert limited.delay(2, 0.0) is not None
    assert limited.delay(3, 0.0) is None


def test_no_try_is_planned_beyond_max_total_delay():
    strategy = Constant(seconds=10, max_total_delay=25)

    assert strategy.delay(2, 15.0) == 10
    assert strategy.delay(2, 15.1) is None


@pytest.mark.parametrize(
    ("options", "error", "wanted"),
    [
        ({}, ValueError(), True),
        ({"retry_on": (OSError,)}, ConnectionError(), True),
        ({"retry_on": (OSError,)}, ValueError(), False),
        ({"reject_on": (ValueError,)}, UnicodeError(), False),
        ({"retry_on": (Exception,), "reject_on": (KeyError,)}, KeyError(), False),
        ({"retry_on": (OSError,)}, SystemExit(), True),
        ({"reject_on": (SystemExit,)}, SystemExit(), False),
    ],
)
def test_exception_types_choose(options, error, wanted):
    assert wants_retry(Constant(**options), error) is wanted


def test_a_strategy_of_ones_own_needs_no_types():
    class Own:
        def delay(self, attempt: int, elapsed: float) -> float | None:
            return None

    assert wants_retry(Own(), ValueError())
    assert wants_retry(NoRetry(), ValueError())


@pytest.mark.parametrize("strategy", [Constant, Linear, Exponential])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_attempts": 0}, "max_attempts must be a whole number, at least 1, or None"),
        ({"max_attempts": 2.5}, "max_attempts must be a whole number"),
        ({"max_attempts": True}, "max_attempts must be a whole number"),
        ({"max_total_delay": -1}, "max_total_delay of .* at least 0, or None for no limit, not -1"),
        ({"max_total_delay": "1h"}, "max_total_delay of .* number of seconds"),
        ({"retry_on": "ValueError"}, "retry_on must be exception types"),
        ({"reject_on": (ValueError, 7)}, "reject_on must be exception types"),
    ],
)
def test_limits_that_make_no_sense_are_refused(strategy, options, message):
    with pytest.raises(InvalidArgument, match=message):
        strategy(**options)


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        (Constant, "seconds"),
        (Linear, "first"),
        (Linear, "step"),
        (Linear, "longest"),
        (Exponential, "first"),
        (Exponential, "factor"),
        (Exponential, "longest"),
    ],
)
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "5", None, True])
def test_waits_that_make_no_sense_are_refused(strategy, name, value):
    with pytest.raises(InvalidArgument, match=f"{name} of {strategy.__name__} must be a number"):
        strategy(**{name: value})


def test_a_factor_below_one_is_refused():
    with pytest.raises(InvalidArgument, match=r"factor of Exponential .* at least 1, not 0\.5"):
        Exponential(factor=0.5)


def test_the_first_wait_may_be_given_by_position():
    assert Constant(1) == Constant(seconds=1)
    assert Linear(2, step=3) == Linear(first=2, step=3)
    assert Exponential(2, max_attempts=5) == Exponential(first=2, max_attempts=5)


def test_exception_types_may_be_one_type_or_a_list():
    assert (
        Constant(retry_on=OSError) == Constant(retry_on=[OSError]) == Constant(retry_on=(OSError,))
    )
    assert not wants_retry(Constant(reject_on=[KeyError, OSError]), ConnectionError())
