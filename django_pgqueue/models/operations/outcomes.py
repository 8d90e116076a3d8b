"""What a consumer says of the messages it holds: done, once more, given back, failed."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

from django.db import transaction

from django_pgqueue import arguments
from django_pgqueue.acks import Ack, Discard, Failure, Nack, Outcome, Reject
from django_pgqueue.models.attempt import Attempt, masked
from django_pgqueue.models.operations.base import MessageT, twin
from django_pgqueue.models.operations.batches import Batches, narrowed
from django_pgqueue.models.operations.settling import lost
from django_pgqueue.models.queue import Queue
from django_pgqueue.types import Receipt, Settled

__all__ = ["Outcomes"]


class Outcomes(Batches[MessageT]):
    """Complete, retry, release and fail, many messages at once; all fenced by receipt.

    ``ran`` says whether a handler ran, which counts as an attempt.
    """

    def complete(
        self,
        queue: str | Queue,
        receipts: Iterable[Receipt],
        *,
        results: Mapping[Receipt, str] | None = None,
        ran: bool = True,
        using: str | None = None,
    ) -> Settled:
        """Done: to the archive as COMPLETED, the attempt counted.

        ``results`` are JSON texts that the archive keeps, for all of the receipts or for some.

        >>> Message.objects.complete("orders", [message.receipt])
        [1]
        """
        found = self.resolve(queue, using)
        params = {"ran": int(ran)}
        if not results:
            return self._conclude("archive", found, None, list(receipts), params)
        plain = [receipt for receipt in receipts if receipt not in results]
        texts = ",".join(f'"{receipt.id}":{text}' for receipt, text in results.items())
        given = {**params, "results": f"{{{texts}}}"}
        return _joined(
            [
                self._conclude("archive", found, None, plain, params),
                self._conclude("archive_result", found, None, list(results), given),
            ]
        )

    def retry(
        self,
        queue: str | Queue,
        delays: Mapping[Receipt, float],
        *,
        failures: Mapping[Receipt, Failure] | None = None,
        process_id: int | None = None,
        ran: bool = True,
        using: str | None = None,
    ) -> Settled:
        """Not done: each message is due again after its delay, in seconds.

        ``failures`` tell why, for :class:`~django_pgqueue.models.Attempt`, and ``process_id`` in
        which consumer process.

        >>> Message.objects.retry("orders", {message.receipt: 30})
        [1]

        Raises InvalidArgument, QueueNotFound.
        """
        seconds = [arguments.duration(delay, "delay").total_seconds() for delay in delays.values()]
        params = {"delays": seconds, "ran": int(ran)}
        found = self.resolve(queue, using)
        return self._noting(
            found,
            failures,
            process_id,
            lambda: self._conclude("retry", found, None, list(delays), params),
        )

    def release(
        self, queue: str | Queue, receipts: Iterable[Receipt], *, using: str | None = None
    ) -> Settled:
        """Give back what was read and not started: due at once, the delivery uncounted.

        Only for the holder of the receipts, and for the last time: the next delivery carries
        the same count again.

        >>> Message.objects.release("orders", [message.receipt])
        [1]
        """
        return self._conclude("release", queue, using, list(receipts), {})

    def fail(
        self,
        queue: str | Queue,
        errors: Mapping[Receipt, str],
        *,
        reason: str = "rejected",
        failures: Mapping[Receipt, Failure] | None = None,
        process_id: int | None = None,
        ran: bool = True,
        using: str | None = None,
    ) -> Settled:
        """Failed for good: to the queue's dead-letter queue, or else to the archive as FAILED.

        In the dead-letter queue the message keeps its id, and its header ``x-dead-letter``
        tells source, reason, error, counts and times. ``failures`` and ``process_id`` are as for
        :meth:`retry`.

        >>> Message.objects.fail("orders", {message.receipt: "no such customer"})
        [1]
        """
        found = self.resolve(queue, using)
        params: dict[str, Any] = {
            "errors": [masked(error) for error in errors.values()],
            "ran": int(ran),
        }
        if found.dead_letter_queue_id is None:
            return self._noting(
                found,
                failures,
                process_id,
                lambda: self._conclude("fail", found, None, list(errors), params),
            )
        target = Queue.objects.using(found.alias).get(pk=found.dead_letter_queue_id)
        params |= {"source": found.name, "reason": reason}
        tables = {"dead_message": target.tables["message"], "dead_queue_id": target.pk}
        return self._noting(
            found,
            failures,
            process_id,
            lambda: self._conclude("dead_letter", found, None, list(errors), params, tables),
        )

    def settle(
        self,
        queue: str | Queue,
        outcomes: Mapping[Receipt, Outcome],
        *,
        process_id: int | None = None,
        ran: bool = True,
        using: str | None = None,
    ) -> Settled:
        """Write what became of each message, one statement for each kind of outcome.

        >>> Message.objects.settle("orders", {message.receipt: Ack()})
        [1]
        """
        found = self.resolve(queue, using)
        done = [r for r, outcome in outcomes.items() if isinstance(outcome, Ack)]
        results = {
            r: o.result for r, o in outcomes.items() if isinstance(o, Ack) and o.result is not None
        }
        failures = {
            r: o.failure
            for r, o in outcomes.items()
            if isinstance(o, (Nack, Reject)) and o.failure is not None
        }
        again = {r: o.delay or 0.0 for r, o in outcomes.items() if isinstance(o, Nack)}
        failed = {r: o.reason for r, o in outcomes.items() if isinstance(o, Reject)}
        forgotten = [r for r, outcome in outcomes.items() if isinstance(outcome, Discard)]
        parts = [
            self.complete(found, done, results=results, ran=ran),
            self.retry(
                found, again, failures=_among(failures, again), process_id=process_id, ran=ran
            ),
            self.fail(
                found, failed, failures=_among(failures, failed), process_id=process_id, ran=ran
            ),
            self._conclude("delete", found, None, forgotten, {}),
        ]
        return _joined(parts)

    @staticmethod
    def _noting(
        queue: Queue,
        failures: Mapping[Receipt, Failure] | None,
        process_id: int | None,
        settle: Callable[[], Settled],
    ) -> Settled:
        """Settle, and keep why those attempts failed that were settled, in one transaction."""
        if not failures:
            return settle()
        with transaction.atomic(using=queue.alias):
            settled = settle()
            late = set(settled.lost)
            noted = [(r.id, f) for r, f in failures.items() if r not in late]
            Attempt.objects.note(queue, noted, process_id)
        return settled

    def _conclude(
        self,
        operation: str,
        queue: str | Queue,
        using: str | None,
        receipts: Sequence[Receipt],
        params: dict[str, Any],
        tables: Mapping[str, object] | None = None,
    ) -> Settled:
        if not receipts:
            return Settled()
        found = self.resolve(queue, using)
        good = arguments.newest(receipts)
        if len(good) < len(receipts):
            # A consumer whose lease ran out may settle two deliveries of a message at once.
            params = narrowed(params, receipts, good)
        latest = [receipt for receipt in receipts if receipt in good]
        done = self._by_receipts(operation, found, latest, params, tables)
        return Settled(
            [receipt.id for receipt in latest if receipt.id in done],
            lost=lost(receipts, good, done),
        )

    acomplete = twin(complete)
    aretry = twin(retry)
    arelease = twin(release)
    afail = twin(fail)
    asettle = twin(settle)


def _among(
    failures: Mapping[Receipt, Failure], chosen: Container[Receipt]
) -> dict[Receipt, Failure]:
    return {receipt: failure for receipt, failure in failures.items() if receipt in chosen}


def _joined(parts: Sequence[Settled]) -> Settled:
    return Settled(
        [pk for part in parts for pk in part], lost=[r for part in parts for r in part.lost]
    )
