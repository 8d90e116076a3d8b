"""Ack policies, outcomes, and the function that decides a run's outcome. Does no I/O."""

from __future__ import annotations

import datetime as dt
import traceback
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal

from django_pgqueue.errors import InvalidArgument
from django_pgqueue.retries import RetryStrategy, wants_retry

__all__ = [
    "Ack",
    "AckPolicy",
    "AckPolicyName",
    "Discard",
    "Failure",
    "Nack",
    "Outcome",
    "Reject",
    "Retry",
    "Waiting",
]

_LONGEST_ERROR = 8192
#: Thirty years, in seconds. A longer delay is refused: its unit is probably not seconds.
_LONGEST_DELAY = 1e9


class AckPolicy(str, Enum):
    """The policy that decides when a message is archived as COMPLETED.

    ACK             after the handler, even if it raises
    ACK_FIRST       before the handler runs: at most once
    NACK_ON_ERROR   when the handler returns; on an error the retry strategy decides (the default)
    REJECT_ON_ERROR when the handler returns; an error fails the message for good
    MANUAL          when the handler calls message.ack(), nack() or reject()
    TRANSACTIONAL   handler and ack commit together, or roll back together: effectively once
    """

    ACK = "ACK"
    ACK_FIRST = "ACK_FIRST"
    NACK_ON_ERROR = "NACK_ON_ERROR"
    REJECT_ON_ERROR = "REJECT_ON_ERROR"
    MANUAL = "MANUAL"
    TRANSACTIONAL = "TRANSACTIONAL"


#: The names of the policies, for type checkers and editors.
AckPolicyName = Literal[
    "ACK", "ACK_FIRST", "NACK_ON_ERROR", "REJECT_ON_ERROR", "MANUAL", "TRANSACTIONAL"
]


@dataclass(frozen=True)
class Failure:
    """The error of a failed attempt. :class:`~django_pgqueue.models.Attempt` stores it.

    ``attempt`` is the number of the handler's run, from 1, ``error_class`` the import path of the
    exception's class.

    >>> failure = Failure.of(ValueError("no number"), attempt=2)
    >>> failure.error_class, failure.message
    ('builtins.ValueError', 'no number')
    """

    attempt: int
    error_class: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException, attempt: int) -> Failure:
        """Return the failure for an exception that a handler raised."""
        kind = type(error)
        try:
            message = str(error)
        except BaseException:
            message = "<exception str() failed>"
        trace = "".join(traceback.format_exception(kind, error, error.__traceback__))
        path = f"{kind.__module__}.{kind.__qualname__}"
        return cls(attempt, path, storable(message), _printable(trace))


@dataclass(frozen=True)
class Ack:
    """The outcome of success: the message is archived as COMPLETED.

    ``result`` is JSON text that is archived too. A consumer with ``keep_result`` sets it.
    ``failure`` is the error of a handler whose policy is ACK.
    """

    result: str | None = field(default=None, repr=False)
    failure: Failure | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Nack:
    """The outcome that plans a retry after ``delay`` seconds; None: the retry strategy decides.

    ``reason`` is the message's error until its next attempt. ``cause`` is the exception, for logs
    and error trackers. Raises InvalidArgument for a delay that is not 0 to 1,000,000,000 seconds.
    """

    delay: float | None = None
    reason: str = ""
    cause: BaseException | None = field(default=None, compare=False, repr=False)
    failure: Failure | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "delay", _seconds(self.delay))
        object.__setattr__(self, "reason", storable(str(self.reason)))


class Retry(Exception):
    """Raised by a handler to retry the message after ``delay`` seconds.

    With a delay the message is always retried. Without a delay the retry strategy decides, and may
    give up.
    """

    # Defaults for a subclass whose __init__ does not call this one.
    delay: float | None = None
    reason: str = "the handler asked for a retry"

    def __init__(self, delay: float | None = None, reason: str = "") -> None:
        self.reason = storable(str(reason) or Retry.reason)
        super().__init__(self.reason)
        self.delay = _seconds(delay)


class Reject(Exception):
    """Raised or returned by a handler for a message that can never succeed.

    The message goes to the dead-letter queue, or is archived as FAILED, with the reason.
    """

    failure: Failure | None = None
    # The default for a subclass whose __init__ does not call this one.
    reason: str = "rejected by its handler"

    def __init__(self, reason: str = "rejected by its handler") -> None:
        super().__init__(reason)
        self.reason = storable(str(reason))


class Discard(Exception):
    """Raised or returned by a handler to delete the message with its body."""


class Waiting(BaseException):
    """Raised by ``message.wait_for`` and ``message.sleep``: the message leaves its handler.

    It is stored already that the message waits, so whatever the handler does with this exception
    changes nothing. Neither a delivery nor an attempt is counted. No Exception, so that a handler's
    ``except Exception`` lets it pass.
    """

    def __init__(self, message: object) -> None:
        super().__init__(f"{message} waits")
        #: The message that waits.
        self.message = message


Outcome = Ack | Nack | Reject | Discard

_ACK = Ack()


def decide(
    policy: AckPolicy,
    strategy: RetryStrategy,
    *,
    error: BaseException | None,
    attempt: int,
    elapsed: float,
    explicit: Outcome | None = None,
) -> Outcome | None:
    """Return the outcome of one handler run.

    ``error`` is the exception that the handler raised, ``explicit`` the outcome that it set, for
    example with ``message.ack()``. ``attempt`` is the number of the run, from 1, ``elapsed`` the
    seconds since the first delivery. Returns None if the message was settled before the handler
    ran.
    """
    if policy is AckPolicy.ACK_FIRST:
        return None
    outcome = explicit
    if isinstance(error, (Discard, Reject)):
        outcome = error
    elif isinstance(error, Retry):
        failure = Failure.of(error.__cause__ or error, attempt)
        outcome = Nack(error.delay, error.reason, error.__cause__, failure)
    elif explicit is None and error is not None and policy is not AckPolicy.ACK:
        outcome = Nack(None, describe(error), error, Failure.of(error, attempt))
        if policy is AckPolicy.REJECT_ON_ERROR or not wants_retry(strategy, error):
            return _given_up(outcome)
    elif explicit is None and policy is AckPolicy.MANUAL:
        outcome = Nack(None, "the handler returned without ack(), nack() or reject()")
    elif explicit is None:
        return _ACK if error is None else Ack(failure=Failure.of(error, attempt))
    if isinstance(outcome, Reject):
        outcome.reason = storable(str(outcome.reason))
        outcome.failure = Failure.of(outcome.__cause__ or outcome, attempt)
    if not isinstance(outcome, Nack):
        return outcome
    if outcome.reason and outcome.failure is None:
        failure = Failure.of(outcome.cause or Retry(outcome.delay, outcome.reason), attempt)
        outcome = replace(outcome, failure=failure)
    if outcome.delay is not None:
        return outcome
    delay = strategy.delay(attempt, elapsed)
    return _given_up(outcome) if delay is None else replace(outcome, delay=delay)


def _given_up(nack: Nack) -> Reject:
    """Return the Reject for a message that is not tried again."""
    reject = Reject(nack.reason or "no attempts left")
    reject.failure, reject.__cause__ = nack.failure, nack.cause
    return reject


def describe(error: BaseException) -> str:
    """Format the exception as text of limited length: type and message, then the traceback."""
    summary = "".join(traceback.format_exception_only(type(error), error)).strip()
    if error.__traceback__ is None:
        return storable(summary)
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return storable(f"{summary}\n\n{trace}")


def text_of(error: BaseException) -> str:
    """Return the text of an exception, or else the name of its class, for a column.

    >>> text_of(ValueError("no such order")), text_of(KeyError())
    ('no such order', 'KeyError')
    """
    try:
        text = str(error).strip()
    except Exception:
        text = ""
    return storable(text) or type(error).__name__


def storable(text: str) -> str:
    """Shorten the text, and escape NUL and lone surrogates, which PostgreSQL cannot store."""
    return _printable(text[:_LONGEST_ERROR])


def _printable(text: str) -> str:
    return text.replace("\x00", "\\0").encode("utf-8", "backslashreplace").decode()


def _seconds(delay: object) -> float | None:
    """Convert a delay to seconds. Raises InvalidArgument."""
    if isinstance(delay, dt.timedelta):
        delay = delay.total_seconds()
    if delay is None:
        return None
    is_flag = isinstance(delay, bool)
    if isinstance(delay, (int, float)) and not is_flag and 0 <= delay <= _LONGEST_DELAY:
        return delay
    raise InvalidArgument(
        f"a delay must be 0 to {_LONGEST_DELAY:.0f} seconds, or None, not {delay!r}"
    )
