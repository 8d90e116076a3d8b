"""Store and load steps, notes and waits, fenced by the receipt of a delivery."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from django_pgqueue.engine import arguments
from django_pgqueue.engine.decoding import decode
from django_pgqueue.engine.leases.batches import unfold
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.runner import Rows
from django_pgqueue.engine.statements import render
from django_pgqueue.errors import InvalidArgument, InvalidMessage, LeaseLost
from django_pgqueue.types import Receipt

__all__ = ["NOTE_BYTES", "STEP_BYTES", "Steps", "json_value", "note_of", "step_name"]

#: The most bytes of JSON of a step's value, and of a note.
STEP_BYTES, NOTE_BYTES = 2**20, 2**14
#: Notes are stored at most this often, in seconds.
NOTE_SECONDS = 1.0


class Steps:
    """The steps and the note of a message, as one delivery of it knows them."""

    def __init__(self, queue: OpenQueue, receipt: Receipt) -> None:
        self._queue = queue
        self._receipt = receipt
        #: The values of the steps that were stored before this delivery, by name.
        self._stored: dict[str, Any] | None = None
        #: The names of the steps that this delivery has begun or done.
        self._begun: set[str] = set()
        self._next_note = 0.0

    def transaction(self) -> AbstractContextManager[Any]:
        """A transaction on the queue's database."""
        return self._queue.runner.transaction()

    def begin(self, name: str) -> tuple[bool, Any]:
        """Begin a step. Returns whether an earlier delivery has done it, and its value.

        Raises InvalidArgument if this delivery has begun a step of that name before, and LeaseLost.
        """
        step_name(name)
        if name in self._begun:
            raise InvalidArgument(
                f"this delivery of message {self._receipt.id} has used step {name!r} before, and "
                f"a later delivery could not tell them apart: give each step its own name, such as "
                f"f'{name}-{{n}}' in a loop"
            )
        if self._stored is None:
            self._stored = self._load(None)
        self._begun.add(name)
        return name in self._stored, self._stored.get(name)

    @contextmanager
    def under_way(self, name: str) -> Iterator[None]:
        """Run the block that does a step. If it raises, the handler may begin the step again."""
        try:
            yield
        except BaseException:
            self._begun.discard(name)
            self._stored = None  # it may be stored: the answer of the commit may be lost
            raise

    def store(self, name: str, value: Any) -> tuple[Any, bool]:
        """Store the value of a step, unless this delivery has stored one before.

        Returns what is stored, as later deliveries get it, and whether this call stored it. Raises
        InvalidMessage for a value that is not JSON or too large, and LeaseLost.
        """
        return self._store(name, json_value(value, f"the value of step {name!r}", STEP_BYTES))

    def _store(self, name: str, text: str | None) -> tuple[Any, bool]:
        [(_, stored, is_first)] = self._fenced("store_step", {"name": name, "value": text})
        return None if stored is None else decode(stored), is_first

    def outcome(self, name: str) -> dict[str, Any] | None:
        """Return the outcome of a wait if it is stored by now. Raises LeaseLost."""
        found: dict[str, Any] | None = self._load(name).get(name)
        return found

    def _load(self, name: str | None) -> dict[str, Any]:
        """Return the values of the stored steps, or of one of them, by name. Raises LeaseLost."""
        rows = self._fenced("load_steps", {"id": self._receipt.id, "name": name})
        return {
            name: None if text is None else decode(text)
            for _, name, text in rows
            if name is not None
        }

    def park(self, name: str, key: str | None, timeout: dt.timedelta) -> bool:
        """Let the message wait, or end its wait after the deadline. Returns whether it is over."""
        params = {"name": name, "key": key, "timeout": timeout}
        [(_, is_over)] = self._fenced("wait", params)
        return bool(is_over)

    def end_wait(self, name: str, outcome: dict[str, Any]) -> dict[str, Any]:
        """End a wait, and store its outcome. Returns what is stored."""
        _run(self._queue, "end_wait", {"id": self._receipt.id, "name": name})
        # A signal's value had its limit, which this may exceed by the outcome's own characters.
        stored: dict[str, Any]
        stored, _ = self._store(name, arguments.json_text(outcome, "the outcome"))
        return stored

    def lock_signal(self, key: str, timeout: dt.timedelta) -> tuple[bool, Any]:
        """Lock a signal until the transaction ends. Returns whether it was sent, and its value."""
        [(was_sent, value)] = _run(self._queue, "lock_signal", {"key": key, "timeout": timeout})
        return was_sent, None if value is None else decode(value)

    def forget_signal(self, key: str) -> None:
        """Delete the row of a signal that was not sent, if nothing waits for it any more."""
        _run(self._queue, "forget_signal", {"key": key})

    def note(self, value: Any, flush: bool) -> None:
        """Store a note, unless one was stored within the last second. Raises as :meth:`store`."""
        text = json_value(value, "the note", NOTE_BYTES)
        now = time.monotonic()
        if flush or now >= self._next_note:
            self._fenced("store_note", {"value": text})
            self._next_note = now + NOTE_SECONDS

    def _fenced(self, statement: str, params: Mapping[str, Any]) -> Rows:
        """Run a fenced statement. Raises LeaseLost unless a row begins with true."""
        queue, receipt = self._queue, self._receipt
        alone = "true" if queue.runner.alone else "false"
        text = render(statement, queue.id, (("own_transaction", alone),), __package__)
        values = {**arguments.fence([receipt]), **params}
        rows = queue.runner.run(text, values)
        # A message that was read once may be in a batch lease. That of a subscription may be split
        # while the statement waits: once more finds it.
        for _attempt in range(1 if queue.source_id is None else 2):
            if (rows and rows[0][0]) or receipt.read_ct != 1:
                break
            unfold(queue, [receipt.id])
            rows = queue.runner.run(text, values)
        if not (rows and rows[0][0]):
            raise LeaseLost(receipt)
        return rows


def note_of(queue: OpenQueue, message_id: int) -> Any:
    """Return what a message's handler has noted last. None without a note.

    >>> queue("imports").note(7)
    {'row': 40000}

    Raises QueueNotFound, InvalidArgument.
    """
    [pk] = arguments.ids([message_id])
    rows = _run(queue, "load_note", {"id": pk})
    return decode(rows[0][0]) if rows and rows[0][0] is not None else None


def _run(queue: OpenQueue, statement: str, params: Mapping[str, Any]) -> Rows:
    return queue.runner.run(render(statement, queue.id, package=__package__), params)


def step_name(value: object) -> str:
    """Validate the name of a step. Raises InvalidArgument."""
    checked = arguments.key(value, "the name of a step")
    if checked is None:
        raise InvalidArgument("the name of a step must be text, not None")
    return checked


def json_value(value: Any, what: str, most: int) -> str | None:
    """Return the JSON text of a value. Raises InvalidMessage."""
    text = arguments.json_text(value, what)
    if text is not None and len(text) > most // 4 and (size := len(text.encode())) > most:
        raise InvalidMessage(
            f"{what} is {size} bytes of JSON, more than {most}. Store the data in a table or a "
            f"file, and return its key"
        )
    return text
