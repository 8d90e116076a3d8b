"""Decides what becomes of the messages of a run: by its result, its policy and its strategy."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django_pgqueue.acks import Ack, Discard, Failure, Nack, Outcome, Reject, decide, describe
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.models import Message
from django_pgqueue.worker.running import Running
from django_pgqueue.worker.subscription import Subscription

__all__ = ["Ending", "Lost", "Release", "endings", "outcome_of", "outcomes_of"]


@dataclass(frozen=True)
class Lost:
    """The lease ended before the message was settled: another reader has it, or will have it."""


@dataclass(frozen=True)
class Release:
    """No handler ran: the message goes back at once, the delivery uncounted."""


#: The end of a message in this process: a handler's outcome, or that there was none.
Ending = Outcome | Lost | Release


def endings(
    outcomes: Iterable[tuple[Message, Ending]], lost: Collection[object]
) -> list[tuple[Message, Ending]]:
    """The outcomes, with Lost for each message whose receipt was found lost."""
    gone = set(lost)
    return [(m, Lost() if gone and m.receipt in gone else outcome) for m, outcome in outcomes]


def outcomes_of(
    subscription: Subscription, running: Running, error: BaseException | None, returned: Any
) -> list[tuple[Message, Outcome]]:
    """The outcome of each message that has not been settled by the handler's own word.

    Raises TypeError when a batch handler returned neither None nor an answer for each.
    """
    batch, keeps = subscription.handler.batch, subscription.handler.keep_result
    answers = _answers(returned, len(running.messages)) if batch else [returned]
    outcomes = []
    for message, answer in zip(running.messages, answers, strict=False):
        said = running.said.get(message.id)
        if said is not None and running.on_said is not None:
            continue
        outcome = outcome_of(subscription, running, message, error, said or _as_outcome(answer))
        if keeps and said is None and error is None and not _says(answer):
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
    try:
        return _decide(subscription, running, message, error, said)
    except Exception as broken:
        # A retry strategy of the project's that fails must not take the message with it.
        failure = Failure.of(broken, message.attempts + 1)
        return Nack(subscription.vt, describe(broken), broken, failure)


def _decide(
    subscription: Subscription,
    running: Running,
    message: Message,
    error: BaseException | None,
    said: Outcome | BaseException | None,
) -> Outcome | None:
    if isinstance(said, BaseException) and not isinstance(said, (Reject, Discard)):
        said, error = None, said
    # Until this lease began, which is its end less its length. As dates the two moments would take
    # a tenth of a process's time.
    before = message.leased_for - subscription.vt
    return decide(
        subscription.handler.ack_policy,
        subscription.handler.retry_of(message),
        error=error,
        attempt=message.attempts + 1,
        elapsed=max(0.0, before) + time.monotonic() - running.started,
        said=said,
    )


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


def _as_outcome(answer: Any) -> Any:
    """An outcome that a handler returned; any other value says nothing."""
    return answer if _says(answer) else None


def _says(answer: Any) -> bool:
    return isinstance(answer, (Ack, Nack, BaseException))


def _with_result(
    subscription: Subscription,
    running: Running,
    message: Message,
    answer: Any,
    outcome: Outcome | None,
) -> Outcome | None:
    """Done, with what the handler returned; a value that is not JSON is an error of the handler."""
    if not isinstance(outcome, Ack):
        return outcome  # a manual policy, and nothing was said
    try:
        return Ack(subscription.handler.result_of(answer))
    except InvalidArgument as unfit:
        return outcome_of(subscription, running, message, unfit)
