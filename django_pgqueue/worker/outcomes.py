"""Chooses the outcome of each message of a run, by result, ack policy and retry strategy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from django_pgqueue.acks import Ack, Discard, Failure, Nack, Outcome, Reject, decide, describe
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.models import Message
from django_pgqueue.worker.running import Running
from django_pgqueue.worker.subscription import Subscription

#: What a handler may return, or in a batch handler's list, to settle a message.
_WORDS = (Ack, Nack, BaseException)


def outcomes_of(
    subscription: Subscription, running: Running, error: BaseException | None, returned: Any
) -> list[tuple[Message, Outcome]]:
    """The outcome of each message that the handler has not settled itself.

    Raises TypeError when a batch handler returned neither None nor an answer for each.
    """
    batch, keeps = subscription.handler.batch, subscription.handler.keep_result
    answers = _answers(returned, len(running.messages)) if batch else [returned]
    outcomes = []
    for message, answer in zip(running.messages, answers, strict=False):
        said = running.said.get(message.id)
        if said is not None and running.on_said is not None:
            continue
        word = answer if isinstance(answer, _WORDS) else None
        outcome = outcome_of(subscription, running, message, error, said or word)
        if keeps and said is None and error is None and word is None:
            outcome = _with_result(subscription, running, message, answer, outcome)
        if outcome is not None:
            outcomes.append((message, outcome))
    return outcomes


def outcome_of(
    subscription: Subscription,
    running: Running,
    message: Message,
    error: BaseException | None,
    said: Outcome | BaseException | None = None,
) -> Outcome | None:
    """The outcome of one message; None when it was settled before."""
    if isinstance(said, BaseException) and not isinstance(said, (Reject, Discard)):
        said, error = None, said
    # Until this lease began, which is its end less its length. As dates the two moments would take
    # a tenth of a process's time.
    before = message.leased_for - subscription.vt
    try:
        return decide(
            subscription.handler.ack_policy,
            subscription.handler.retry_of(message),
            error=error,
            attempt=message.attempts + 1,
            elapsed=max(0.0, before) + time.monotonic() - running.started,
            said=said,
        )
    except Exception as broken:
        # The project's retry strategy raised an error: retry after the visibility timeout.
        failure = Failure.of(broken, message.attempts + 1)
        return Nack(subscription.vt, describe(broken), broken, failure)


def _answers(returned: Any, count: int) -> Sequence[Any]:
    """One answer of a batch handler for each message."""
    if returned is None:
        return [None] * count
    answers = list(returned)
    if len(answers) != count:
        raise TypeError(
            f"a batch handler must return None or one outcome for each message: "
            f"it returned {len(answers)} for {count}"
        )
    return answers


def _with_result(
    subscription: Subscription,
    running: Running,
    message: Message,
    answer: Any,
    outcome: Outcome | None,
) -> Outcome | None:
    """An Ack with the handler's return value. A value that is not JSON counts as its error."""
    if not isinstance(outcome, Ack):
        return outcome  # manual ack policy, and the handler settled nothing
    try:
        return Ack(subscription.handler.result_of(answer))
    except InvalidArgument as unfit:
        return outcome_of(subscription, running, message, unfit)
