"""Outcomes of deliveries, many at once: done, once more, given back, failed. All fenced by receipt.

``ran`` says whether a handler ran, which counts as an attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django_pgqueue import arguments, ddl
from django_pgqueue.acks import Ack, Discard, Nack, Outcome, Reject
from django_pgqueue.engine.session import OpenQueue
from django_pgqueue.engine.settle.settling import by_receipts
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.types import Receipt, Settled

__all__ = ["complete", "end_exhausted", "fail", "release", "retry", "settle"]


def complete(
    queue: OpenQueue,
    receipts: Iterable[Receipt],
    *,
    ran: bool = True,
    results: Mapping[Receipt, Any] | None = None,
) -> Settled:
    """Done: to the archive as COMPLETED, the attempt counted.

    ``results`` are values to keep there, anything JSON can hold, for some of the receipts.

    >>> queue("orders").complete([message.receipt])
    [1]

    Raises InvalidArgument, InvalidMessage for a result that is not JSON, QueueNotFound.
    """
    receipts = arguments.receipts(receipts)
    results = arguments.by_receipt(results, "results", "values")
    if not receipts:
        return Settled()
    if not results:
        return by_receipts(queue, "archive", receipts, {"ran": _count(ran), "results": None})
    texts = {r: arguments.json_text(value, "result") for r, value in results.items()}
    return by_receipts(queue, "archive", receipts, {"ran": _count(ran)}, {"results": texts})


def retry(
    queue: OpenQueue,
    delays: Mapping[Receipt, float],
    *,
    ran: bool = True,
    errors: Mapping[Receipt, str] | None = None,
) -> Settled:
    """Not done: each message is due again after its delay, in seconds.

    ``errors`` tell why, for some of the receipts; the last one is kept until the message is done.

    >>> queue("orders").retry({message.receipt: 30})
    [1]

    Raises InvalidArgument, QueueNotFound.
    """
    delays = arguments.by_receipt(delays, "delays", "seconds")
    texts = arguments.texts(errors, "errors")
    if not delays:
        return Settled()
    seconds = {r: arguments.duration(d, "delay").total_seconds() for r, d in delays.items()}
    each: dict[str, Mapping[Receipt, Any]] = {"delays": seconds, "errors": texts}
    return by_receipts(queue, "retry", list(delays), {"ran": _count(ran)}, each)


def release(queue: OpenQueue, receipts: Iterable[Receipt]) -> Settled:
    """Give back messages that were read and not started: due at once, the delivery uncounted.

    >>> queue("orders").release([message.receipt])
    [1]
    """
    receipts = arguments.receipts(receipts)
    return by_receipts(queue, "release", receipts, {}) if receipts else Settled()


def fail(
    queue: OpenQueue,
    errors: Mapping[Receipt, str],
    *,
    reason: str = "rejected",
    ran: bool = True,
) -> Settled:
    """Failed for good: to the queue's dead-letter queue, or else to the archive as FAILED.

    In the dead-letter queue the message keeps its id, and its header ``x-dead-letter`` tells
    source, reason, error, counts and times.

    >>> queue("orders").fail({message.receipt: "no such customer"})
    [1]
    """
    texts = arguments.texts(errors, "errors")
    arguments.text(reason, "reason")
    if not texts:
        return Settled()
    return _fail(queue, list(texts), {"errors": texts}, reason, ran)


def end_exhausted(queue: OpenQueue, receipts: Sequence[Receipt]) -> None:
    """Fail messages whose deliveries have run out, with the last error that they had."""
    _fail(queue, receipts, {"errors": {}}, "max_deliveries", False)


def _fail(
    queue: OpenQueue,
    receipts: Sequence[Receipt],
    each: Mapping[str, Mapping[Receipt, str | None]],
    reason: str,
    ran: bool,
) -> Settled:
    params: dict[str, Any] = {"ran": _count(ran)}
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
        dead_message=ddl.own_table("pgqueue_message", target),
    )


def settle(queue: OpenQueue, outcomes: Mapping[Receipt, Outcome], *, ran: bool = True) -> Settled:
    """Write the outcome of each message, one statement for each kind of outcome.

    >>> queue("orders").settle({message.receipt: Ack()})
    [1]
    """
    outcomes = arguments.by_receipt(outcomes, "outcomes", "outcomes")
    for outcome in outcomes.values():
        if not isinstance(outcome, (Ack, Nack, Reject, Discard)):
            raise InvalidArgument(
                f"outcomes: {outcome!r} is no outcome; give an Ack, Nack, Reject or Discard of "
                f"django_pgqueue.acks"
            )
    done = [r for r, outcome in outcomes.items() if isinstance(outcome, Ack)]
    nacks = {r: outcome for r, outcome in outcomes.items() if isinstance(outcome, Nack)}
    failed = {r: o.reason for r, o in outcomes.items() if isinstance(o, Reject)}
    discarded = [r for r, outcome in outcomes.items() if isinstance(outcome, Discard)]
    parts = [
        complete(queue, done, ran=ran),
        retry(
            queue,
            {r: nack.delay or 0.0 for r, nack in nacks.items()},
            ran=ran,
            errors={r: nack.error for r, nack in nacks.items() if nack.error},
        ),
        fail(queue, failed, ran=ran),
        by_receipts(queue, "delete", discarded, {}) if discarded else Settled(),
    ]
    return Settled(
        [pk for part in parts for pk in part],
        lost=[receipt for part in parts for receipt in part.lost],
        before=[receipt for part in parts for receipt in part.before],
    )


def _count(ran: bool) -> int:
    """How many attempts an outcome counts."""
    return 1 if ran else 0
