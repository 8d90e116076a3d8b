"""Dead letters and the archive, back to work: redrive and replay."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from django.db import connections

from django_pgqueue import arguments
from django_pgqueue.errors import InvalidArgument, QueueNotFound
from django_pgqueue.models.operations.base import MessageT, twin
from django_pgqueue.models.operations.batches import Batches
from django_pgqueue.models.queue import Queue
from django_pgqueue.types import State

__all__ = ["DeadLetters"]

BATCH = 1000
LOWEST = -(2**63)


class DeadLetters(Batches[MessageT]):
    """Redrive and replay. Both go in batches that are kept when they are interrupted."""

    def redrive(
        self,
        dead_letter_queue: str | Queue,
        *,
        to: str | Queue | None = None,
        ids: Iterable[int] | None = None,
        filter: Any = None,
        rate: float | None = None,
        progress: Callable[[int], None] | None = None,
        using: str | None = None,
    ) -> int:
        """Send dead letters back, each to the queue it came from; how many went.

        They keep their ids, and their header ``x-dead-letter``; deliveries are counted anew. ``to``
        names one queue for all. ``ids`` or a ``filter`` (JSON that the body contains) choose some.
        ``rate`` is how many a second at most. ``progress`` is called with the count so far.
        What a consumer of the dead-letter queue holds stays, and so does what did not come from
        a queue, unless ``to`` is given.

        >>> Message.objects.redrive("orders.dead", filter={"customer": 7})
        3

        Raises QueueNotFound, after everything else went back, when a source is gone.
        """
        found = self.resolve(dead_letter_queue, using)
        target = None if to is None else self.resolve(to, found.alias)
        if target is not None and target.pk == found.pk:
            raise InvalidArgument(f"messages of queue {found.name!r} cannot be redriven to itself")
        while self._unfold_due(found, BATCH):
            pass  # what nobody holds any more can go back
        gone: dict[str, QueueNotFound] = {}
        pages = self._redrivable(found, ids, filter)
        rest: list[tuple[int, str | None]] = []

        def batch(size: int) -> tuple[int, bool]:
            if len(rest) < size:
                rest.extend(next(pages, ()))
            rows = rest[:size]
            del rest[:size]
            by_source: dict[str | None, list[int]] = {}
            for pk, source in rows:
                by_source.setdefault(source if target is None else None, []).append(pk)
            went = 0
            for source, chosen in by_source.items():
                try:
                    home = target or (source and self.resolve(source, found.alias))
                except (QueueNotFound, InvalidArgument) as error:
                    gone[str(source)] = (
                        error
                        if isinstance(error, QueueNotFound)
                        else QueueNotFound(source, found.alias)
                    )
                    continue
                if not home or home.pk == found.pk:
                    continue
                tables = {
                    "target_message": home.tables["message"],
                    "target_queue_id": home.pk,
                }
                went += len(self._by_ids("move", found, chosen, {}, tables))
            return went, bool(rows)

        done = _in_batches(batch, rate, progress)
        if gone:
            raise next(iter(gone.values()))
        return done

    def replay(
        self,
        queue: str | Queue,
        *,
        to: str | Queue | None = None,
        ids: Iterable[int] | None = None,
        state: State | str | None = None,
        filter: Any = None,
        rate: float | None = None,
        progress: Callable[[int], None] | None = None,
        using: str | None = None,
    ) -> int:
        """Send archived messages again, to their queue or another; how many were sent.

        They are new messages with new ids; the header ``x-replay-of`` tells from which. The archive
        stays as it is. ``ids``, a ``state`` (COMPLETED, FAILED or CANCELLED) or a ``filter`` (JSON
        that the body contains) choose some; ``rate`` and ``progress`` are as for :meth:`redrive`.

        >>> Message.objects.replay("orders", state=State.FAILED)
        2

        Raises QueueNotFound, InvalidArgument.
        """
        found = self.resolve(queue, using)
        target = found if to is None else self.resolve(to, found.alias)
        ends = (State.COMPLETED, State.FAILED, State.CANCELLED)
        if state is not None and str(state) not in map(str, ends):
            raise InvalidArgument(
                f"state must be COMPLETED, FAILED, CANCELLED or None, not {state!r}"
            )
        with connections[found.alias].cursor() as cursor:
            cursor.execute("SELECT last_value FROM pgqueue_message_id_seq")
            (last,) = cursor.fetchone()  # what is replayed and archived meanwhile has higher ids
        params = {
            "ids": None if ids is None else list(ids),
            "state": None if state is None else str(state),
            "filter": None if filter is None else arguments.json_text(filter, "filter"),
            "last": last,
        }
        tables = {"target_message": target.tables["message"], "target_queue_id": target.pk}
        after = 0

        def batch(size: int) -> tuple[int, bool]:
            nonlocal after
            step = {**params, "after": after, "batch": size, "page": BATCH}
            _, [(sent, looked, reached)] = self._run("replay", found, None, step, tables)
            after = after if reached is None else reached
            # Ids beyond the last are those of what was archived since.
            return sent, (sent == size or looked == BATCH) and after <= last

        return _in_batches(batch, rate, progress)

    def _redrivable(
        self, queue: Queue, ids: Iterable[int] | None, filter: Any
    ) -> Iterator[list[tuple[int, str | None]]]:
        """What can go back and where it came from, in the order of ids, a page at a time."""
        params = {
            "ids": None if ids is None else list(ids),
            "filter": None if filter is None else arguments.json_text(filter, "filter"),
            "batch": BATCH,
        }
        after, looked = LOWEST, BATCH
        while looked == BATCH:
            _, rows = self._run("redrivable", queue, None, {**params, "after": after})
            looked = len(rows)
            if rows:
                after = rows[-1][0]
            page = [(pk, source) for pk, source, can_go in rows if can_go]
            if page:
                yield page

    aredrive = twin(redrive)
    areplay = twin(replay)


def _in_batches(
    batch: Callable[[int], tuple[int, bool]],
    rate: float | None,
    progress: Callable[[int], None] | None,
) -> int:
    """Batch after batch until there is no more, no faster than the rate."""
    if rate is not None and (isinstance(rate, bool) or not rate > 0):
        raise InvalidArgument(f"rate must be a number of messages a second, not {rate!r}")
    # A tenth of a second's worth at a time keeps a slow rate even.
    size = BATCH if rate is None else max(1, min(BATCH, int(rate / 10)))
    began = time.monotonic()
    done, more = 0, True
    while more:
        went, more = batch(size)
        done += went
        if progress is not None and went:
            progress(done)
        if more and rate is not None:
            time.sleep(max(0.0, began + done / rate - time.monotonic()))
    return done
