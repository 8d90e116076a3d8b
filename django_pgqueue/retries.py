"""Retry strategies: when a message that failed is tried again.

Strategies are small frozen values, after FastStream's SQL broker. One of your own is anything
with a ``delay(attempt, elapsed)`` method.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["Constant", "Exponential", "Linear", "NoRetry", "RetryStrategy", "wants_retry"]

ExceptionTypes = tuple[type[BaseException], ...]


class RetryStrategy(Protocol):
    """The one method of a retry strategy."""

    def delay(self, attempt: int, elapsed: float) -> float | None:
        """Seconds until the next try, or None for no more.

        ``attempt`` counts from 1: the attempt that has just failed. ``elapsed`` is the time in
        seconds since the message was first given out.
        """


@dataclass(frozen=True)
class NoRetry:
    """Fail at the first error.

    >>> NoRetry().delay(1, 0.0) is None
    True
    """

    def delay(self, attempt: int, elapsed: float) -> float | None:
        return None


@dataclass(frozen=True, kw_only=True)
class _Limited:
    """The limits that all strategies share: when to stop, and for which exceptions.

    ``max_attempts`` counts handler runs, the first one too; ``max_total_delay`` is in seconds
    since the first delivery: no try is planned beyond it. ``retry_on`` names the only exception
    types that are tried again, ``reject_on`` those that never are; the latter wins.
    """

    max_attempts: int | None = None
    max_total_delay: float | None = None
    retry_on: ExceptionTypes = (Exception,)
    reject_on: ExceptionTypes = ()

    def __post_init__(self) -> None:
        if self.max_attempts is not None and self.max_attempts < 1:
            raise ValueError("max_attempts must be at least 1, or None for no limit")

    def delay(self, attempt: int, elapsed: float) -> float | None:
        if self.max_attempts is not None and attempt >= self.max_attempts:
            return None
        wait = self.wait(attempt)
        if self.max_total_delay is not None and elapsed + wait > self.max_total_delay:
            return None
        return wait

    def wait(self, attempt: int) -> float:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Constant(_Limited):
    """The same wait each time.

    >>> Constant(seconds=5, max_attempts=3).delay(1, 0.0)
    5
    """

    seconds: float = 10.0

    def wait(self, attempt: int) -> float:
        return self.seconds


@dataclass(frozen=True, kw_only=True)
class Linear(_Limited):
    """A wait that grows by ``step`` seconds each time, up to ``longest``.

    >>> [Linear(first=1, step=2).delay(attempt, 0.0) for attempt in (1, 2, 3)]
    [1, 3, 5]
    """

    first: float = 1.0
    step: float = 1.0
    longest: float = 3600.0

    def wait(self, attempt: int) -> float:
        return min(self.first + self.step * (attempt - 1), self.longest)


@dataclass(frozen=True, kw_only=True)
class Exponential(_Limited):
    """A wait that is multiplied by ``factor`` each time, up to ``longest`` seconds.

    With ``jitter`` the wait is drawn between nothing and that ("full jitter", Brooker 2015, AWS
    Architecture Blog), so that messages which failed together do not come back together.

    >>> [Exponential(first=1).delay(attempt, 0.0) for attempt in (1, 2, 3)]
    [1.0, 2.0, 4.0]
    """

    first: float = 1.0
    factor: float = 2.0
    longest: float = 3600.0
    jitter: bool = False
    draw: random.Random = field(default_factory=random.Random, repr=False, compare=False)

    def wait(self, attempt: int) -> float:
        # A large exponent would overflow long before it matters.
        wait = min(self.first * self.factor ** min(attempt - 1, 64), self.longest)
        return self.draw.uniform(0, wait) if self.jitter else wait


def wants_retry(strategy: RetryStrategy, error: BaseException) -> bool:
    """Whether the strategy takes that exception for one that may pass.

    >>> wants_retry(Constant(reject_on=(ValueError,)), ValueError("no number"))
    False
    """
    if isinstance(error, getattr(strategy, "reject_on", ())):
        return False
    # SystemExit and KeyboardInterrupt are not the message's fault.
    return not isinstance(error, Exception) or isinstance(
        error, getattr(strategy, "retry_on", (Exception,))
    )
