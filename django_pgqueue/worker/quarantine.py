"""Poison protection: a message that may have killed its consumer runs alone.

A delivery that ended in neither an outcome nor a release ended with its process, most likely,
and perhaps because of this very message. To try it among others would cost each of them a
delivery again. So everybody else is given back or finished first, and it runs alone until it
has survived a probation.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from django_pgqueue.models import Message
from django_pgqueue.worker.settler import Settler
from django_pgqueue.worker.subscription import Subscription

__all__ = ["Quarantine", "is_suspect"]

#: How long the others get to finish before a suspect starts, in seconds.
_PATIENCE = 5.0
#: How long a suspect runs alone before the others go on, in seconds.
_PROBATION = 2.0
_PAUSE = 0.001


def is_suspect(message: Message) -> bool:
    """Whether an earlier delivery of the message ended without a word."""
    return message.read_ct > message.attempts + 1


class Quarantine:
    """Isolates suspects; called by the fetch loop, which fetches nothing meanwhile."""

    def __init__(self, subscriptions: list[Subscription], settler: Settler) -> None:
        self._subscriptions = subscriptions
        self._settler = settler
        #: Nobody waits for anything any more.
        self.stopping = False

    def isolate(self, subscription: Subscription, suspect: Message, others: list[Message]) -> None:
        """Run one message alone, after giving back the ``others`` that came with it."""
        try:
            subscription.give_back(others)
            for each in self._subscriptions:
                each.give_back(each.take_all())
            self._wait(_PATIENCE, lambda: not any(each.running for each in self._subscriptions))
            self._settler.flush()
            held = self._renew(subscription, suspect)
        except BaseException:
            # Its lease runs out.
            subscription.count(fetched=-1)
            raise
        if not held:
            subscription.count(fetched=-1)
            return
        if self.stopping:
            subscription.give_back([suspect])
            return
        before = subscription.started
        subscription.fill([suspect])
        self._wait(_PATIENCE, lambda: subscription.started > before)
        self._wait(_PROBATION, lambda: not subscription.running)
        self._settler.flush()

    @staticmethod
    def _renew(subscription: Subscription, suspect: Message) -> bool:
        """Waiting for the others may have cost its lease; whether it is still ours."""
        now = time.monotonic()
        if Message.objects.set_vt(subscription.queue, suspect.receipt, subscription.vt).lost:
            return False
        suspect.lease_until = now + subscription.vt
        return True

    def _wait(self, seconds: float, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while not until() and not self.stopping and time.monotonic() < deadline:
            time.sleep(_PAUSE)
