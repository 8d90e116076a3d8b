"""The outcome of a message after its handler, computed without a database."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from django_pgqueue.acks import Ack, AckPolicy, Discard, Nack, Reject, Retry, decide, describe
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.retries import Constant, NoRetry

FIVE = Constant(seconds=5, max_attempts=3)
ERROR = ValueError("bad")


def outcome(policy: str, error: BaseException | None = None, **options: Any) -> Any:
    options = {"attempt": 1, "elapsed": 0.0, **options}
    return decide(AckPolicy(policy), options.pop("strategy", FIVE), error=error, **options)


@pytest.mark.parametrize("policy", ["ACK", "NACK_ON_ERROR", "REJECT_ON_ERROR", "TRANSACTIONAL"])
def test_a_return_acks(policy):
    assert outcome(policy) == Ack()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("ACK", Ack()),
        ("ACK_FIRST", None),
        ("NACK_ON_ERROR", Nack(5, "ValueError: bad")),
        ("MANUAL", Nack(5, "ValueError: bad")),
        ("TRANSACTIONAL", Nack(5, "ValueError: bad")),
    ],
)
def test_an_error_ends_as_the_policy_says(policy, expected):
    assert outcome(policy, ERROR) == expected


def test_reject_on_error_rejects_with_the_error():
    assert outcome("REJECT_ON_ERROR", ERROR).reason == "ValueError: bad"


def test_the_last_attempt_rejects():
    assert outcome("NACK_ON_ERROR", ERROR, attempt=3).reason == "ValueError: bad"


def test_manual_without_an_outcome_is_no_ack():
    assert isinstance(outcome("MANUAL"), Nack)
    assert isinstance(outcome("MANUAL", strategy=NoRetry()), Reject)


@pytest.mark.parametrize("policy", ["ACK", "NACK_ON_ERROR", "REJECT_ON_ERROR", "MANUAL"])
def test_what_the_handler_says_counts_more_than_the_policy(policy):
    rejected, discarded = Reject("no"), Discard()

    assert outcome(policy, ERROR, explicit=Ack()) == Ack()
    assert outcome(policy, explicit=rejected) is rejected
    assert outcome(policy, rejected) is rejected
    assert outcome(policy, discarded) is discarded
    assert outcome(policy, Retry(delay=7)).delay == 7


@pytest.mark.parametrize("error", [None, ERROR, Retry(delay=0), Reject(), Discard()])
def test_ack_first_has_nothing_left_to_decide(error):
    assert outcome("ACK_FIRST", error) is None
    assert outcome("ACK_FIRST", explicit=Nack(0)) is None


class OutOfStock(Reject):
    def __init__(self, article: str, reason: Any = None) -> None:
        self.article = article
        if reason is not None:
            self.reason = reason


class NotYet(Retry):
    def __init__(self, article: str) -> None:
        self.article = article


def test_a_subclass_need_not_call_the_outcomes_init():
    assert outcome("NACK_ON_ERROR", OutOfStock("nail")).reason == "rejected by its handler"
    assert outcome("NACK_ON_ERROR", OutOfStock("nail", 404)).reason == "404"
    assert outcome("NACK_ON_ERROR", OutOfStock("nail", "a NUL \x00")).reason == "a NUL \\0"
    again = outcome("NACK_ON_ERROR", NotYet("nail"))
    assert (again.delay, again.reason) == (5, "the handler asked for a retry")


def test_an_explicit_delay_needs_no_strategys_consent():
    assert outcome("NACK_ON_ERROR", explicit=Nack(7), attempt=99) == Nack(7)
    assert outcome("NACK_ON_ERROR", Retry(delay=7), strategy=NoRetry(), attempt=99).delay == 7


def test_a_retry_without_delay_asks_the_strategy():
    assert outcome("NACK_ON_ERROR", Retry()).delay == 5
    assert outcome("NACK_ON_ERROR", Retry(reason="later"), attempt=3).reason == "later"


@pytest.mark.parametrize("make", [Nack, Retry])
@pytest.mark.parametrize("delay", [-1, "5", True, float("nan"), float("inf"), 1e10, object()])
def test_a_delay_must_be_one(make, delay):
    with pytest.raises(InvalidArgument, match="a delay must be 0 to 1000000000 seconds"):
        make(delay)


def test_a_delay_may_be_a_timedelta():
    assert Nack(dt.timedelta(minutes=1)).delay == 60  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [Nack, Retry])
def test_an_outcome_keeps_its_reason(make):
    assert make(5, reason="the bank is closed").reason == "the bank is closed"
    assert Reject(reason="no such order").reason == "no such order"


@pytest.mark.parametrize("make", [Nack, Retry])
def test_a_reason_can_be_stored(make):
    assert make(5, "a\x00b\ud800").reason == "a\\0b\\ud800"


def test_an_error_is_described_by_its_last_line_and_its_traceback():
    try:
        raise KeyError("order")
    except KeyError as error:
        text = describe(error)

    assert text.splitlines()[0] == "KeyError: 'order'"
    assert "Traceback" in text
    assert "test_acks.py" in text


@pytest.mark.parametrize("text", ["\x00", "\ud800", "x" * 100_000])
def test_a_description_can_be_stored(text):
    for reason in (describe(ValueError(text)), Reject(text).reason):
        assert "\x00" not in reason
        assert len(reason.encode()) < 10_000


def test_an_error_that_cannot_be_printed_is_described_all_the_same():
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "Mute" in describe(Mute())


def test_policies_are_found_by_name():
    assert AckPolicy("TRANSACTIONAL") is AckPolicy.TRANSACTIONAL
