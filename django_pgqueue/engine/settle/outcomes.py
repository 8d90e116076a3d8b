"""Settle many deliveries at once: complete, retry, release or fail. All are fenced by receipt.

Each function returns the ids that it settled, with the receipts of the others in ``.lost``
(:class:`django_pgqueue.types.Settled`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from django_pgqueue.acks import Ack, Discard, Failure, Nack, Outcome, Reject
from django_pgqueue.engine import arguments
from django_pgqueue.engine.groups.heads import recheck
from django_pgqueue.engine.names import own_table
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.settle.settling import by_receipts
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.types import Receipt, Settled

__all__ = [
    "complete",
    "end_exhausted",
    "end_expired",
    "end_next_expired",
    "fail",
    "release",
    "retry",
    "settle",
]

#: After a read that found only expired messages, this many due, this many ready and this many
#: waiting messages are searched for further expired ones.
EXPIRED_BATCH = 1000
#: The most characters of results in one statement. A jsonb object holds at most 256 MB, and numbers
#: take up to six times as much there as in text.
_MOST_RESULTS = 16 * 2**20


def complete(
    queue: OpenQueue,
    receipts: Iterable[Receipt],
    *,
    ran: bool = True,
    results: Mapping[Receipt, Any] | None = None,
) -> Settled:
    """Complete messages: move them to the archive as COMPLETED.

    Arguments:
        receipts: the messages' receipts.
        ran: whether a handler ran, which counts as an attempt.
        results: JSON values to store in the archive, by receipt. They are optional.

    >>> queue("orders").complete([message.receipt], results={message.receipt: {"invoice": 41}})
    [1]

    Raises InvalidArgument, InvalidMessage for a result that is not JSON, QueueNotFound.
    """
    found = arguments.by_receipt(results, "results", "values")
    texts = {
        r: text
        for r, value in found.items()
        if (text := arguments.json_text(value, "result")) is not None
    }
    return _complete(queue, arguments.receipts(receipts), texts, ran)


def retry(
    queue: OpenQueue,
    delays: Mapping[Receipt, float],
    *,
    ran: bool = True,
    errors: Mapping[Receipt, str] | None = None,
    failures: Mapping[Receipt, Failure] | None = None,
    process_id: int | None = None,
) -> Settled:
    """Retry messages: each is due again after a delay.

    Arguments:
        delays: seconds, by receipt.
        ran: whether a handler ran, which counts as an attempt.
        errors: error messages, by receipt. Messages left out keep their last error.
        failures: the errors with their tracebacks, for ``attempts()``, by receipt.
        process_id: the consumer process that ran the handlers.

    >>> queue("orders").retry({message.receipt: 30})
    [1]

    Raises InvalidArgument, QueueNotFound.
    """
    try:
        delays = arguments.by_receipt(delays, "delays", "seconds")
    except InvalidArgument as error:
        raise InvalidArgument(
            f"{error}. retry() is for messages that you have just read: "
            f"retry({{message.receipt: 30}}). To send one again that has failed or is done, pass "
            f"its id to replay(ids=[7]), or to redrive(ids=[7]) of its dead-letter queue"
        ) from error
    texts = arguments.texts(errors, "errors")
    if not delays:
        return Settled()
    seconds = {r: arguments.duration(d, "delay").total_seconds() for r, d in delays.items()}
    each: dict[str, Mapping[Receipt, Any]] = {"delays": seconds, "errors": _masked(queue, texts)}
    settled = _noting(
        queue,
        failures,
        process_id,
        lambda: by_receipts(queue, "retry", list(delays), {"ran": int(bool(ran))}, each),
    )
    if settled and queue.has_slots:
        recheck(queue, settled)
    return settled


def release(queue: OpenQueue, receipts: Iterable[Receipt]) -> Settled:
    """Release messages whose handler did not start, or was interrupted.

    They are due at once, and the delivery is not counted.

    >>> queue("orders").release([message.receipt])
    [1]

    Raises QueueNotFound.
    """
    receipts = arguments.receipts(receipts)
    return by_receipts(queue, "release", receipts, {"deliveries": 1}) if receipts else Settled()


def fail(
    queue: OpenQueue,
    errors: Mapping[Receipt, str],
    *,
    reason: str = "rejected",
    ran: bool = True,
    failures: Mapping[Receipt, Failure] | None = None,
    process_id: int | None = None,
) -> Settled:
    """Move messages to the dead-letter queue, or without one to the archive as FAILED.

    In the dead-letter queue a message keeps its id; its header ``x-dead-letter`` has the source,
    reason, error, counts and times.

    Arguments:
        errors: the error messages, by receipt.
        reason: the ``reason`` in that header.
        ran: whether a handler ran, which counts as an attempt.
        failures, process_id: as for :func:`retry`.

    >>> queue("orders").fail({message.receipt: "no such customer"})
    [1]

    Raises QueueNotFound.
    """
    texts = arguments.texts(errors, "errors")
    arguments.text(reason, "reason")
    if not texts:
        return Settled()
    each = {"errors": _masked(queue, texts)}
    return _noting(
        queue, failures, process_id, lambda: _fail(queue, list(texts), each, reason, ran)
    )


def end_exhausted(queue: OpenQueue, receipts: Sequence[Receipt]) -> Settled:
    """Fail messages that have no deliveries left. Their last error is already stored."""
    return _fail(queue, receipts, {"errors": {}}, "max_deliveries", False)


def end_expired(queue: OpenQueue, receipts: Sequence[Receipt]) -> list[int]:
    """Archive messages that had expired when they were leased. Returns the archived ids."""
    return by_receipts(queue, "expire", receipts, {})


def end_next_expired(queue: OpenQueue, max_deliveries: int) -> list[int]:
    """Archive the expired messages that the next reads would find. Returns their ids."""
    params = {"batch": EXPIRED_BATCH, "max_deliveries": max_deliveries}
    return [pk for (pk,) in queue.run("settle/expire_next", params)]


def _fail(
    queue: OpenQueue,
    receipts: Sequence[Receipt],
    each: Mapping[str, Mapping[Receipt, str | None]],
    reason: str,
    ran: bool,
) -> Settled:
    params: dict[str, Any] = {"ran": int(bool(ran))}
    target = queue.dead_letter_queue_id
    if target is None:
        return by_receipts(queue, "fail", receipts, params, each)
    return by_receipts(
        queue,
        "dead_letter",
        receipts,
        {**params, "source": queue.name, "reason": reason},
        each,
        dead_queue_id=target,
        dead_message=own_table("pgqueue_message", target),
    )


def settle(
    queue: OpenQueue,
    outcomes: Mapping[Receipt, Outcome],
    *,
    ran: bool = True,
    process_id: int | None = None,
) -> Settled:
    """Settle each message by its outcome, with one statement for each kind of outcome.

    Arguments:
        outcomes: an Ack, Nack, Reject or Discard of :mod:`django_pgqueue.acks`, by receipt.
        ran: whether handlers ran, which counts as an attempt.
        process_id: the consumer process, stored with the errors of failed attempts.

    >>> queue("orders").settle({message.receipt: Ack()})
    [1]

    Raises QueueNotFound, InvalidArgument.
    """
    outcomes = arguments.by_receipt(outcomes, "outcomes", "outcomes")
    for outcome in outcomes.values():
        if not isinstance(outcome, (Ack, Nack, Reject, Discard)):
            raise InvalidArgument(
                f"outcomes: {outcome!r} is not an outcome: pass an Ack, Nack, Reject or Discard of "
                f"django_pgqueue.acks"
            )
    done = {r: outcome for r, outcome in outcomes.items() if isinstance(outcome, Ack)}
    nacks = {r: outcome for r, outcome in outcomes.items() if isinstance(outcome, Nack)}
    rejects = {r: outcome for r, outcome in outcomes.items() if isinstance(outcome, Reject)}
    discarded = [r for r, outcome in outcomes.items() if isinstance(outcome, Discard)]
    results = {r: ack.result for r, ack in done.items() if ack.result}
    parts = [
        _noting(
            queue, _failures(done), process_id, lambda: _complete(queue, list(done), results, ran)
        ),
        retry(
            queue,
            {r: nack.delay or 0.0 for r, nack in nacks.items()},
            ran=ran,
            errors={r: nack.reason for r, nack in nacks.items() if nack.reason},
            failures=_failures(nacks),
            process_id=process_id,
        ),
        fail(
            queue,
            {r: reject.reason for r, reject in rejects.items()},
            ran=ran,
            failures=_failures(rejects),
            process_id=process_id,
        ),
        by_receipts(queue, "delete", discarded, {}) if discarded else Settled(),
    ]
    return Settled(
        [pk for part in parts for pk in part],
        lost=[receipt for part in parts for receipt in part.lost],
    )


def _complete(
    queue: OpenQueue, receipts: list[Receipt], results: Mapping[Receipt, str], ran: bool
) -> Settled:
    """Complete messages. ``results`` are JSON texts, by receipt."""
    if not receipts:
        return Settled()
    if len(results) > 1 and sum(map(len, results.values())) > _MOST_RESULTS:
        middle = len(receipts) // 2
        parts = receipts[:middle], receipts[middle:]
        first, second = (
            _complete(queue, part, {r: results[r] for r in part if r in results}, ran)
            for part in parts
        )
        return Settled([*first, *second], lost=[*first.lost, *second.lost])
    pairs = ",".join(f'"{receipt.id}":{text}' for receipt, text in results.items())
    params = {"ran": int(bool(ran)), "results": f"{{{pairs}}}" if pairs else None}
    return by_receipts(queue, "archive", receipts, params)


def _noting(
    queue: OpenQueue,
    failures: Mapping[Receipt, Failure] | None,
    process_id: int | None,
    act: Callable[[], Settled],
) -> Settled:
    """In one transaction, call ``act`` and store the failures of the messages that it settled.

    Keeps only the latest attempts of each message.
    """
    found = arguments.by_receipt(failures, "failures", "failures")
    for failure in found.values():
        if not isinstance(failure, Failure):
            raise InvalidArgument(
                f"failures: {failure!r} is not a Failure: pass Failure.of(error, attempt)"
            )
    holder = arguments.process(process_id)
    if not found or queue.runner.settings.ATTEMPTS_KEPT < 1:
        return act()
    with queue.runner.transaction():
        settled = act()
        lost = set(settled.lost)
        note(queue, {r.id: failure for r, failure in found.items() if r not in lost}, holder)
    return settled


def note(queue: OpenQueue, failures: Mapping[int, Failure], process_id: int | None) -> None:
    """Store the failures, by message id, in the caller's transaction.

    Keeps only the latest attempts of each message.
    """
    kept = queue.runner.settings.ATTEMPTS_KEPT
    if not failures or kept < 1:
        return
    length = queue.runner.settings.TRACEBACK_LENGTH
    params = {
        "ids": list(failures),
        "attempts": [failure.attempt for failure in failures.values()],
        "error_classes": [failure.error_class for failure in failures.values()],
        "messages": [_mask(queue, each.message)[:length] for each in failures.values()],
        # Only the end is kept: it has the exception and the line that raised it.
        "tracebacks": [_mask(queue, each.traceback)[-length:] for each in failures.values()],
        "process_id": process_id,
    }
    queue.run("settle/note_attempts", params)
    queue.run("settle/trim_attempts", {"ids": list(failures), "kept": kept})


def _failures(outcomes: Mapping[Receipt, Ack | Nack | Reject]) -> dict[Receipt, Failure]:
    return {r: o.failure for r, o in outcomes.items() if o.failure is not None}


def _masked(queue: OpenQueue, errors: Mapping[Receipt, str | None]) -> dict[Receipt, str | None]:
    return {receipt: error and _mask(queue, error) for receipt, error in errors.items()}


def _mask(queue: OpenQueue, text: str) -> str:
    """Mask all matches of the patterns in the setting MASK, so that no secret is stored."""
    for pattern in queue.runner.settings.MASK:
        text = re.sub(pattern, "********", text)
    return text
