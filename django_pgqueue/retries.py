"""Retry strategies: when a failed message is tried again.

They follow FastStream's SQL broker. Any object with a method ``delay(attempt, elapsed)`` is a
strategy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol

from django_pgqueue.errors import InvalidArgument

__all__ = ["Constant", "Exponential", "Linear", "NoRetry", "RetryStrategy"]

ExceptionTypes = tuple[type[BaseException], ...]


class RetryStrategy(Protocol):
    """The interface of a retry strategy."""

    def delay(self, attempt: int, elapsed: float) -> float | None:
        """Return the seconds until the next attempt, or None to give up.

        ``attempt`` is the number of the attempt that has failed, from 1, ``elapsed`` the seconds
        since the first delivery.
        """


@dataclass(frozen=True)
class NoRetry:
    """The strategy that fails a message at its first error.

    >>> NoRetry().delay(1, 0.0) is None
    True
    """

    def delay(self, attempt: int, elapsed: float) -> float | None:
        return None


@dataclass(frozen=True, kw_only=True)
class _Limited:
    """The options of all strategies but NoRetry.

    ``max_attempts``
        maximum number of runs of the handler, including the first; None: no limit
    ``max_total_delay``
        seconds after the first delivery within which attempts may be planned; None: no limit
    ``retry_on``, ``reject_on``
        exception types that are retried; types that are not, even if ``retry_on`` has them

    Raises InvalidArgument for invalid values.
    """

    max_attempts: int | None = None
    max_total_delay: float | None = None
    retry_on: ExceptionTypes = (Exception,)
    reject_on: ExceptionTypes = ()

    def __post_init__(self) -> None:
        if self.max_attempts is not None and (
            type(self.max_attempts) is not int or self.max_attempts < 1
        ):
            raise InvalidArgument(
                f"max_attempts must be a whole number, at least 1, or None for no limit, not "
                f"{self.max_attempts!r}"
            )
        if self.max_total_delay is not None:
            _check_number(self, "max_total_delay", 0, "or None for no limit")
        for name in ("retry_on", "reject_on"):
            object.__setattr__(self, name, _exception_types(getattr(self, name), name))
        for name in ("seconds", "first", "step", "factor", "longest"):
            if hasattr(self, name):
                _check_number(self, name, 1 if name == "factor" else 0)

    def delay(self, attempt: int, elapsed: float) -> float | None:
        if self.max_attempts is not None and attempt >= self.max_attempts:
            return None
        wait = self.wait(attempt)
        if self.max_total_delay is not None and elapsed + wait > self.max_total_delay:
            return None
        return wait

    def wait(self, attempt: int) -> float:
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(_Limited):
    """The strategy that waits the same time before each retry.

    >>> Constant(5, max_attempts=3).delay(1, 0.0)
    5
    """

    seconds: float = 10.0

    def wait(self, attempt: int) -> float:
        return self.seconds


@dataclass(frozen=True)
class Linear(_Limited):
    """The strategy whose wait grows by ``step`` seconds each time, up to ``longest`` seconds.

    >>> [Linear(first=1, step=2).delay(attempt, 0.0) for attempt in (1, 2, 3)]
    [1, 3, 5]
    """

    first: float = 1.0
    _: KW_ONLY
    step: float = 1.0
    longest: float = 3600.0

    def wait(self, attempt: int) -> float:
        return min(self.first + self.step * (attempt - 1), self.longest)


@dataclass(frozen=True)
class Exponential(_Limited):
    """The strategy whose wait is multiplied by ``factor`` each time, up to ``longest`` seconds.

    With ``jitter`` it waits a random fraction of that time ("full jitter", Brooker 2015, AWS
    Architecture Blog), so that messages that failed together are not retried together.

    >>> [Exponential(first=1).delay(attempt, 0.0) for attempt in (1, 2, 3)]
    [1.0, 2.0, 4.0]
    """

    first: float = 1.0
    _: KW_ONLY
    factor: float = 2.0
    longest: float = 3600.0
    jitter: bool = False

    def wait(self, attempt: int) -> float:
        try:
            wait = min(self.first * self.factor ** (attempt - 1), self.longest)
        except OverflowError:
            wait = self.longest if self.first else self.first
        return random.uniform(0, wait) if self.jitter else wait


def wants_retry(strategy: RetryStrategy, error: BaseException) -> bool:
    """Whether the strategy retries after this exception."""
    if isinstance(error, getattr(strategy, "reject_on", ())):
        return False
    # SystemExit and KeyboardInterrupt are not the message's fault: the message is retried.
    return not isinstance(error, Exception) or isinstance(
        error, getattr(strategy, "retry_on", (Exception,))
    )


def is_unlimited(strategy: RetryStrategy) -> bool:
    """Whether a strategy of this module limits neither the attempts nor the total time."""
    return (
        isinstance(strategy, _Limited) and strategy.max_attempts is strategy.max_total_delay is None
    )


def _check_number(strategy: _Limited, name: str, least: int, otherwise: str = "") -> None:
    value: Any = getattr(strategy, name)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < least:
        unit = "number" if name == "factor" else "number of seconds"
        raise InvalidArgument(
            f"{name} of {type(strategy).__name__} must be a {unit}, at least {least}"
            f"{otherwise and f', {otherwise}'}, not {value!r}"
        )


def _exception_types(value: Any, name: str) -> ExceptionTypes:
    """Convert one exception type, or several, to a tuple. Raises InvalidArgument."""
    types = (
        tuple(value) if isinstance(value, Iterable) and not isinstance(value, type) else (value,)
    )
    if not all(isinstance(each, type) and issubclass(each, BaseException) for each in types):
        raise InvalidArgument(
            f"{name} must be exception types, such as (ValueError, OSError), not {value!r}"
        )
    return types
