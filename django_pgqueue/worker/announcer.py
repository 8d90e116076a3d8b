"""The announcer: sends the signals of a consumer's loops, so that no loop waits for a receiver."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from django.db import connections
from django.dispatch import Signal

from django_pgqueue.worker.connections import close_old, return_pooled, uses_pools

logger = logging.getLogger("django_pgqueue.consumer")

#: The most signals that wait; further ones are dropped. The fetch loop limits those of messages,
#: but nothing limits those of errors while a receiver blocks.
_MOST = 10_000
#: Seconds after which the announcer closes old connections, which receivers may have used.
_HOUSEKEEPING = 1.0

#: A context variable, so that code that an event loop runs in another thread finds it, too.
_present: ContextVar[Announcer | None] = ContextVar("pgqueue_announcer", default=None)


def use(announcer: Announcer | None) -> None:
    """Let an announcer send the signals of this thread. None: the thread sends them itself."""
    _present.set(announcer)


def send(signal: Signal, sender: Any, **arguments: Any) -> None:
    """Send a signal: in the announcer of this thread, or at once in a thread without one."""
    announcer = _present.get()
    if announcer is None:
        send_here(signal, sender, **arguments)
    else:
        announcer.put(signal, sender, arguments)


def send_here(signal: Signal, sender: Any, **arguments: Any) -> None:
    """Send a signal in this thread. No receiver can end the thread."""
    try:
        signal.send_robust(sender, **arguments)
    except BaseException:
        # SystemExit, for example. Django logs other errors of receivers.
        with suppress(BaseException):  # the receiver may be a log handler
            logger.exception("a receiver of a signal tried to end its thread")


class Announcer(threading.Thread):
    """Sends the signals of a consumer's loops, in their order.

    A receiver may be slow, such as a log handler that waits for a network, or block. Then signals
    pile up here, and the fetch loop stops reading (:attr:`unannounced`). Leases, heartbeats and
    outcomes do not wait.
    """

    def __init__(self) -> None:
        super().__init__(name="pgqueue-announce", daemon=True)
        #: The number of messages in waiting signals, by the signals' sender: a queue's name.
        self.unannounced: Counter[Any] = Counter()
        #: The number of dropped events: each message of a signal counts, and a signal without any.
        self.dropped = 0
        #: When the receivers of the present signal were called, by time.monotonic().
        self.since: float | None = None
        self._waiting: deque[tuple[Signal, Any, dict[str, Any]]] = deque()
        self._lock = threading.Lock()
        self._awake = threading.Event()
        self._stopping = False

    def put(self, signal: Signal, sender: Any, arguments: dict[str, Any]) -> None:
        """Queue a signal. Never waits for a receiver."""
        with self._lock:
            if len(self._waiting) >= _MOST:
                self.dropped += _events(arguments)
                return
            self._waiting.append((signal, sender, arguments))
            if messages := arguments.get("messages"):
                self.unannounced[sender] += len(messages)
        if not self._awake.is_set():
            self._awake.set()

    def run(self) -> None:
        pooled, housekept = uses_pools(), time.monotonic()
        try:
            while not self._stopping or self._waiting:
                while self._waiting:
                    self._send(*self._waiting[0])
                if pooled:
                    return_pooled()
                if time.monotonic() - housekept > _HOUSEKEEPING:
                    housekept = time.monotonic()
                    close_old()
                self._awake.wait(_HOUSEKEEPING)
                self._awake.clear()
        finally:
            connections.close_all()

    def stop(self) -> None:
        """End the thread when nothing waits any more."""
        self._stopping = True
        self._awake.set()

    def end(self, seconds: float) -> int:
        """Wait for the end, for some seconds at most. Returns the number of dropped events."""
        self.stop()
        if self.is_alive():
            self.join(seconds)
        with self._lock:
            self.dropped += sum(_events(arguments) for _, _, arguments in self._waiting)
            self._waiting.clear()
        return self.dropped

    def _send(self, signal: Signal, sender: Any, arguments: dict[str, Any]) -> None:
        self.since = time.monotonic()
        send_here(signal, sender, **arguments)
        self.since = None
        with self._lock:
            if self._waiting:
                self._waiting.popleft()
            if messages := arguments.get("messages"):
                self.unannounced[sender] -= len(messages)


def _events(arguments: dict[str, Any]) -> int:
    return len(arguments.get("messages") or (None,))
