"""Redrive dead letters and replay archived messages, in steps that each commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from django_pgqueue.engine import arguments
from django_pgqueue.engine.audit.entry import Entry, ids_of
from django_pgqueue.engine.leases.batches import open_ended
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.errors import InvalidArgument, PgQueueError, QueueNotFound, UntrustedSource
from django_pgqueue.types import ENDS, State

__all__ = ["redrive", "replay"]

BATCH = 1000
#: The limits of a rate, in messages a second. The lowest is about one message a day.
RATES = (1e-5, 1e9)
LOWEST = -(2**63)

# A dead letter's id, and the name of its source queue.
_Dead = tuple[int, str | None]


def redrive(
    dead_letters: OpenQueue,
    *,
    to: str | None = None,
    ids: Iterable[int] | None = None,
    conditional: dict[str, Any] | None = None,
    rate: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Send dead letters back, each to its source queue. Returns how many.

    The messages keep their ids and the header ``x-dead-letter``. Their deliveries are counted from
    zero, and they no longer expire. Messages in flight stay. If ``to`` is not given, messages
    without a source queue stay, too. The source in a header is trusted if every role that may write
    to the dead-letter queue may also send to the source queue.

    Arguments:
        to: the name of one queue that gets all of them.
        ids: only messages with these ids.
        conditional: only messages whose body contains this JSON (jsonb's ``@>``).
        rate: the most messages a second; None: no limit.
        progress: called with the count so far.

    >>> queue("orders.dead").redrive(conditional={"customer": 7})
    3

    Raises InvalidArgument. After the other messages were sent, raises QueueNotFound if a source
    queue does not exist, or UntrustedSource if a role may have forged the header.
    """
    dead_letters.refuse_subscription(
        "it has no dead letters. Call redrive() of its dead-letter queue"
    )
    target = None if to is None else dead_letters.find(to)
    if target is not None:
        target.refuse_subscription(
            "only its own dead letters may come back to it, which they do if to= is left out"
        )
    if target is not None and target.id == dead_letters.id:
        name = dead_letters.name
        raise InvalidArgument(
            f"queue {name!r} cannot be the target of its own redrive: pass another queue as to=, "
            f"or leave to= out"
        )
    ids = None if ids is None else [int(pk) for pk in arguments.ids(ids)]
    given = {"to": to, **ids_of(ids), "conditional": conditional, "rate": rate}
    entry = Entry(dead_letters, "redrive", given)
    open_ended(dead_letters)  # unfolds expired leases: then their messages can be redriven
    pages = _redrivable(dead_letters, ids, conditional)
    rest: list[_Dead] = []
    left: dict[str, PgQueueError] = {}

    def batch(size: int) -> tuple[int, bool]:
        if len(rest) < size:
            rest.extend(next(pages, ()))
        rows = rest[:size]
        del rest[:size]
        return _move(dead_letters, rows, target, left), bool(rows)

    done = _in_steps(batch, rate, progress, entry)
    if left:
        raise next(iter(left.values()))
    return done


def _move(
    dead_letters: OpenQueue,
    rows: Iterable[_Dead],
    target: OpenQueue | None,
    left: dict[str, PgQueueError],
) -> int:
    """Move dead letters to the target, or else each to its source queue. Returns how many."""
    by_source: dict[str | None, list[int]] = {}
    for pk, source in rows:
        by_source.setdefault(source if target is None else None, []).append(pk)
    went = 0
    for source, chosen in by_source.items():
        home = target or _home(dead_letters, source, left)
        if home is not None and home.id != dead_letters.id:
            moved = dead_letters.run(
                "redrive/move",
                {"ids": arguments.array(chosen), "in_flight": False},
                target_message=home.message_table,
                target_queue_id=home.id,
            )
            went += len(moved)
    return went


def _home(
    dead_letters: OpenQueue, source: str | None, left: dict[str, PgQueueError]
) -> OpenQueue | None:
    """Return the source queue, or None if its dead letters must stay. Adds errors to ``left``."""
    if not source:
        return None
    try:
        home = dead_letters.find(source)
    except QueueNotFound as error:
        left[source] = error
        return None
    except InvalidArgument:
        left[source] = QueueNotFound(source, dead_letters.alias)
        return None
    outsiders = dead_letters.run("redrive/outsiders", source_message=home.message_table)
    if outsiders:
        roles = ", ".join(role for (role,) in outsiders)
        left[source] = UntrustedSource(dead_letters.name, home.name, roles)
        return None
    return home


def _redrivable(
    queue: OpenQueue, ids: Iterable[int] | None, conditional: dict[str, Any] | None
) -> Iterator[list[_Dead]]:
    """Yield pages of the messages that can be redriven, in order of id."""
    params = {
        "ids": None if ids is None else arguments.ids(ids),
        "conditional": arguments.condition(conditional),
        "batch": BATCH,
    }
    after, looked = LOWEST, BATCH
    while looked == BATCH:
        rows = queue.run("redrive/redrivable", {**params, "after": after})
        looked = len(rows)
        page = [(pk, source) for pk, source, can_go in rows if can_go]
        for pk, _source, _can_go in rows[-1:]:
            after = pk
        if page:
            yield page


def replay(
    queue: OpenQueue,
    *,
    to: str | None = None,
    ids: Iterable[int] | None = None,
    state: State | str | None = None,
    conditional: dict[str, Any] | None = None,
    rate: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Send archived messages again, to their queue or another. Returns how many.

    They are new messages with new ids, which do not expire; the header ``x-replay-of`` has the old
    id. The archive does not change.

    Arguments:
        state: only messages in this terminal state.
        to, ids, conditional, rate, progress: as for :func:`redrive`.

    >>> queue("orders").replay(state=State.FAILED)
    2

    Raises QueueNotFound, InvalidArgument.
    """
    target = queue if to is None else queue.find(to)
    if target is not queue:
        target.refuse_subscription("name its source as to=, or leave to= out")
    if state is not None and str(state) not in map(str, ENDS):
        raise InvalidArgument(f"state must be one of {', '.join(ENDS)}, or None, not {state!r}")
    ids = None if ids is None else [int(pk) for pk in arguments.ids(ids)]
    given = {
        "to": to,
        **ids_of(ids),
        "state": None if state is None else str(state),
        "conditional": conditional,
        "rate": rate,
    }
    # Stops at the present highest id: messages replayed and archived meanwhile are left out.
    [(last,)] = queue.run("redrive/last_id")
    params = {
        "ids": ids,
        "state": given["state"],
        "conditional": arguments.condition(conditional),
        "last": last,
        "page": BATCH,
    }
    after = 0

    def batch(size: int) -> tuple[int, bool]:
        nonlocal after
        [(sent, looked, reached)] = queue.run(
            "redrive/replay",
            {**params, "after": after, "batch": size},
            target_message=target.message_table,
            target_queue_id=target.id,
        )
        after = after if reached is None else reached
        return sent, (sent == size or looked == BATCH) and after <= last

    return _in_steps(batch, rate, progress, Entry(queue, "replay", given))


def _in_steps(
    batch: Callable[[int], tuple[int, bool]],
    rate: Any,
    progress: Callable[[int], None] | None,
    entry: Entry,
) -> int:
    """Call ``batch`` until it has no more messages, at ``rate`` messages a second at most.

    Each step is a transaction, in which it is added to the entry of the audit log.
    """
    if rate is not None and (
        isinstance(rate, bool)
        or not isinstance(rate, (int, float))
        or not RATES[0] <= rate <= RATES[1]
    ):
        raise InvalidArgument(
            f"rate must be a number of messages a second from {RATES[0]:g} to {RATES[1]:g}, "
            f"not {rate!r}"
        )
    # Steps of 0.1 s keep a slow rate even.
    size = BATCH if rate is None else max(1, min(BATCH, int(rate / 10)))
    began = time.monotonic()
    done, more = 0, True
    while more:
        with entry.transaction():
            went, more = batch(size)
            entry.add(went)
        done += went
        if progress is not None and went:
            progress(done)
        if more and rate is not None:
            time.sleep(max(0.0, began + done / rate - time.monotonic()))
    entry.end()
    return done
