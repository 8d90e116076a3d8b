"""Poison protection: a message that may kill its process runs alone.

A delivery that ended neither with an outcome nor with a release most likely ended with its process.
After one such delivery a message still runs among others, because nearly all messages of a killed
process are innocent. After two, or before its last delivery, it is a suspect: the process finishes
or releases all other messages first. So poison costs any other message at most two redeliveries,
and never its last delivery.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from django_pgqueue.models import Message
from django_pgqueue.worker.settler import Settler
from django_pgqueue.worker.subscription import Subscription

#: A message is a suspect after this many deliveries without an outcome or a release.
_SILENT = 2
#: The longest wait for running handlers before a suspect starts, in seconds.
_PATIENCE = 5.0
#: How long a suspect runs alone before other messages are fetched again, in seconds.
_PROBATION = 2.0
_PAUSE = 0.001


def is_suspect(message: Message, max_deliveries: int) -> bool:
    """Whether two earlier deliveries, or one before the last, ended silently."""
    # Each outcome adds one to attempts, each release takes one from read_ct.
    silent = message.read_ct - message.attempts - 1
    return silent >= _SILENT or (silent >= 1 and message.read_ct >= max_deliveries)


class Quarantine:
    """Runs suspects alone. The fetch loop calls it, and fetches nothing until it returns."""

    def __init__(self, subscriptions: list[Subscription], settler: Settler) -> None:
        self._subscriptions = subscriptions
        self._settler = settler
        #: Whether the process is stopping: do not wait any more.
        self.stopping = False

    def isolate(self, subscription: Subscription, suspect: Message, others: list[Message]) -> None:
        """Run one message alone. Releases ``others``, which the same fetch has leased."""
        held = False
        try:
            subscription.release(others)
            for each in self._subscriptions:
                each.release(each.buffer.take_all())
            self._wait(_PATIENCE, lambda: not any(each.running for each in self._subscriptions))
            self._settler.flush()
            # The wait may have used up the lease.
            held = not subscription.extend([suspect], subscription.vt)
        finally:
            if not held:  # its lease is lost, or runs out
                subscription.counts.add(fetched=-1)
        if not held:
            return
        if self.stopping:
            subscription.release([suspect])
            return
        before = subscription.counts.started
        subscription.counts.add(lost=subscription.buffer.put([suspect]))
        self._wait(_PATIENCE, lambda: subscription.counts.started > before)
        self._wait(_PROBATION, lambda: not subscription.running)
        self._settler.flush()

    def _wait(self, seconds: float, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while not until() and not self.stopping and time.monotonic() < deadline:
            time.sleep(_PAUSE)
