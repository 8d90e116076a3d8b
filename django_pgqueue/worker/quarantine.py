"""Poison protection: a message that may kill its process is run alone.

A delivery that ended with neither an outcome nor a release most likely ended with its process.
After one such delivery the message runs among others as before: what a killed process held is
innocent, but for one message at most. After two, or before its last delivery, it is a suspect, and
the process finishes or gives back everything else before the suspect starts. So a poison message
costs any other message at most two redeliveries, and never its last delivery, until
``max_deliveries`` ends the poison.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from django_pgqueue.models import Message
from django_pgqueue.worker.settler import Settler
from django_pgqueue.worker.subscription import Subscription

#: Deliveries without a word after which a message is a suspect.
_SILENT = 2
#: How long running handlers may take to finish before a suspect starts, in seconds.
_PATIENCE = 5.0
#: How long a suspect runs alone before other messages are fetched again, in seconds.
_PROBATION = 2.0
_PAUSE = 0.001


def is_suspect(message: Message, max_deliveries: int) -> bool:
    """Whether two earlier deliveries of the message ended without a word, or one did and this is
    its last.

    A handler's outcome counts an attempt and a release takes the delivery back, so
    ``read_ct - attempts`` less this delivery is the number of those that ended in neither.
    """
    silent = message.read_ct - message.attempts - 1
    return silent >= _SILENT or (silent >= 1 and message.read_ct >= max_deliveries)


class Quarantine:
    """Isolates suspects; called by the fetch loop, which fetches nothing meanwhile."""

    def __init__(self, subscriptions: list[Subscription], settler: Settler) -> None:
        self._subscriptions = subscriptions
        self._settler = settler
        #: The process stops: nothing is waited for any more.
        self.stopping = False

    def isolate(self, subscription: Subscription, suspect: Message, others: list[Message]) -> None:
        """Run one message alone, after giving back the ``others`` of the same fetch."""
        try:
            subscription.give_back(others)
            for each in self._subscriptions:
                each.give_back(each.buffer.take_back())
            self._wait(_PATIENCE, lambda: not any(each.running for each in self._subscriptions))
            self._settler.flush()
            held = self._renew(subscription, suspect)
        except BaseException:
            # Its lease runs out.
            subscription.counts.add(fetched=-1)
            raise
        if not held:
            subscription.counts.add(fetched=-1)
            return
        if self.stopping:
            subscription.give_back([suspect])
            return
        before = subscription.counts.started
        subscription.counts.add(lost=subscription.buffer.put([suspect]))
        self._wait(_PATIENCE, lambda: subscription.counts.started > before)
        self._wait(_PROBATION, lambda: not subscription.running)
        self._settler.flush()

    @staticmethod
    def _renew(subscription: Subscription, suspect: Message) -> bool:
        """Extend the lease, which the wait may have used up; False when it was lost."""
        now = time.monotonic()
        if Message.objects.set_vt(subscription.queue, suspect.receipt, subscription.vt).lost:
            return False
        suspect.lease_until = now + subscription.vt
        return True

    def _wait(self, seconds: float, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while not until() and not self.stopping and time.monotonic() < deadline:
            time.sleep(_PAUSE)
