"""Decides the outcome of each message of a run, by result, ack policy and retry strategy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from django_pgqueue.acks import Ack, Discard, Failure, Nack, Outcome, Reject, decide, describe
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.models import Message
from django_pgqueue.worker.running import Running
from django_pgqueue.worker.subscription import Subscription

#: What a handler, or a batch handler in its list, may return to set an outcome.
_EXPLICIT = (Ack, Nack, BaseException)


def outcomes_of(
    subscription: Subscription, running: Running, error: BaseException | None, returned: Any
) -> list[tuple[Message, Outcome]]:
    """The outcome of each message that the handler has not settled itself.

    Raises TypeError when a batch handler returned neither None nor an answer for each message.
    """
    handler = subscription.handler
    answers = _answers(returned, len(running.messages)) if handler.batch else [returned]
    outcomes = []
    for message, answer in zip(running.messages, answers, strict=False):
        explicit = running.explicit.get(message.id)
        if explicit is not None and running.on_explicit is not None:
            continue
        given = answer if isinstance(answer, _EXPLICIT) else None
        outcome = outcome_of(subscription, running, message, error, explicit or given)
        is_result = explicit is error is given is None
        if handler.keep_result and is_result and isinstance(outcome, Ack):
            try:
                outcome = Ack(handler.result_of(answer))
            except InvalidArgument as unfit:  # a result that is not JSON
                outcome = outcome_of(subscription, running, message, unfit)
        if outcome is not None:
            outcomes.append((message, outcome))
    return outcomes


def outcome_of(
    subscription: Subscription,
    running: Running,
    message: Message,
    error: BaseException | None,
    explicit: Outcome | BaseException | None = None,
) -> Outcome | None:
    """The outcome of one message; None if it was settled before the handler ran."""
    if isinstance(explicit, BaseException) and not isinstance(explicit, (Reject, Discard)):
        explicit, error = None, explicit
    # From the first delivery to the start of this lease, which is its end less its length. With
    # datetimes this would take a tenth of a process's time.
    before = message.leased_for - subscription.vt
    try:
        return decide(
            subscription.handler.ack_policy,
            subscription.handler.retry_of(message),
            error=error,
            attempt=message.attempts + 1,
            elapsed=max(0.0, before) + time.monotonic() - running.started,
            explicit=explicit,
        )
    except Exception as broken:
        # The project's retry strategy raised an error: retry after the visibility timeout.
        failure = Failure.of(broken, message.attempts + 1)
        return Nack(subscription.vt, describe(broken), broken, failure)


def _answers(returned: Any, count: int) -> Sequence[Any]:
    """A batch handler's answer for each message."""
    if returned is None:
        return [None] * count
    answers = list(returned)
    if len(answers) != count:
        raise TypeError(
            f"a batch handler must return None or one outcome for each message: "
            f"it returned {len(answers)} for {count}"
        )
    return answers
