"""What a consumer says of the messages it holds: done, once more, given back, failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django_pgqueue import arguments
from django_pgqueue.acks import Ack, Discard, Nack, Outcome, Reject
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
        ran: bool = True,
        using: str | None = None,
    ) -> Settled:
        """Done: to the archive as COMPLETED, the attempt counted.

        >>> Message.objects.complete("orders", [message.receipt])
        [1]
        """
        return self._conclude("archive", queue, using, list(receipts), {"ran": int(ran)})

    def retry(
        self,
        queue: str | Queue,
        delays: Mapping[Receipt, float],
        *,
        ran: bool = True,
        using: str | None = None,
    ) -> Settled:
        """Not done: each message is due again after its delay, in seconds.

        >>> Message.objects.retry("orders", {message.receipt: 30})
        [1]

        Raises InvalidArgument, QueueNotFound.
        """
        seconds = [arguments.duration(delay, "delay").total_seconds() for delay in delays.values()]
        params = {"delays": seconds, "ran": int(ran)}
        return self._conclude("retry", queue, using, list(delays), params)

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
        ran: bool = True,
        using: str | None = None,
    ) -> Settled:
        """Failed for good: to the queue's dead-letter queue, or else to the archive as FAILED.

        In the dead-letter queue the message keeps its id, and its header ``x-dead-letter``
        tells source, reason, error, counts and times.

        >>> Message.objects.fail("orders", {message.receipt: "no such customer"})
        [1]
        """
        found = self.resolve(queue, using)
        params = {"errors": list(errors.values()), "ran": int(ran)}
        if found.dead_letter_queue_id is None:
            return self._conclude("fail", found, using, list(errors), params)
        target = Queue.objects.using(found.alias).get(pk=found.dead_letter_queue_id)
        params |= {"source": found.name, "reason": reason}
        tables = {"dead_message": target.tables["message"], "dead_queue_id": target.pk}
        return self._conclude("dead_letter", found, using, list(errors), params, tables)

    def settle(
        self,
        queue: str | Queue,
        outcomes: Mapping[Receipt, Outcome],
        *,
        ran: bool = True,
        using: str | None = None,
    ) -> Settled:
        """Write what became of each message, one statement for each kind of outcome.

        >>> Message.objects.settle("orders", {message.receipt: Ack()})
        [1]
        """
        found = self.resolve(queue, using)
        done = [r for r, outcome in outcomes.items() if isinstance(outcome, Ack)]
        again = {r: o.delay or 0.0 for r, o in outcomes.items() if isinstance(o, Nack)}
        failed = {r: o.reason for r, o in outcomes.items() if isinstance(o, Reject)}
        forgotten = [r for r, outcome in outcomes.items() if isinstance(outcome, Discard)]
        parts = [
            self.complete(found, done, ran=ran),
            self.retry(found, again, ran=ran),
            self.fail(found, failed, ran=ran),
            self._conclude("delete", found, None, forgotten, {}),
        ]
        return Settled(
            [pk for part in parts for pk in part], lost=[r for part in parts for r in part.lost]
        )

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
