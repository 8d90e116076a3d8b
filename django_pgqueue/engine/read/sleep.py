"""How long a reader waits that found too few messages."""

from __future__ import annotations

import random
from collections import deque

from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.read.reading import fall_asleep, next_due
from django_pgqueue.engine.wake import NOW, THROTTLE

__all__ = ["Sleep"]

# The first wait of a reader, its growth, and the longest wait: while a send may commit without a
# notification; while none may; and without notifications.
_IN_DOUBT = 0.002, 2.0, 0.064
_LISTENING = THROTTLE, 3.0, float("inf")
_POLLING = 0.008, 1.5, float("inf")


class Sleep:
    """The waits of one reader, from read to read."""

    def __init__(self) -> None:
        #: The last wait, in seconds. Set it to 0 when there may be messages: the waits begin anew.
        self.wait = 0.0
        self._doubt: int | None = 0
        #: The sessions whose notifications came since the last call; None: some may be missed. The
        #: waits begin anew after each.
        self._heard: deque[int | None] = deque(maxlen=1000)
        #: The seconds until the next message was due, at the last call.
        self._due = float("inf")

    def hear(self, session: int | None) -> None:
        """Count a notification from the session with this process id. Any thread may call it.
        None: notifications may have been missed.
        """
        self._heard.append(session)

    def begin(
        self, queue: OpenQueue, longest: float, *, listening: bool = True
    ) -> tuple[float, float]:
        """Return the seconds until the next read, and until the next message is due;
        the latter is zero or less if one is due now, and infinity if there is none.

        Call it outside a transaction after each read that found too few messages. If ``listening``,
        the next send notifies.

        Arguments:
            longest: the longest wait, in seconds.
            listening: whether notifications arrive. If not, waits are short.

        Raises QueueNotFound.
        """
        # Another thread may append meanwhile: what is not popped here counts at the next call.
        heard = [self._heard.popleft() for _ in range(len(self._heard))]
        before, doubt, last = 0.0 if heard else self.wait, self._doubt, self._due
        self._doubt = 0  # if the call fails, it may have changed the sequence
        if listening:
            # A notification may have come before the first call, when the reader did not listen.
            sessions = {each for each in heard if each is not None}
            missed = doubt == 0 or None in heard
            due, doubt = fall_asleep(queue, heard=None if missed else sessions, doubt=doubt)
            self._doubt = doubt
        else:
            due = next_due(queue)
            due = 0.0 if due <= NOW else due
        self.wait = longer(before, longest, listening=listening, doubt=doubt)
        wait = self.wait * random.uniform(0.9, 1)  # so that processes do not poll together
        self._due = due
        return pause(wait, due, may_be_new=before == 0 or last > 0), due


def longer(
    wait: float, longest: float, *, listening: bool = True, doubt: int | None = None
) -> float:
    """Return the wait before the next read. The last one, after ``wait`` seconds, found too little.

    Waits are short in a process that does not listen to notifications, and while there is a doubt
    (:func:`~django_pgqueue.engine.read.reading.fall_asleep`).

    >>> [longer(wait, 1.0) for wait in (0.0, 0.02, 0.5)]
    [0.02, 0.06, 1.0]
    >>> longer(0.0, 1.0, doubt=4711)
    0.002
    """
    first, growth, most = (_IN_DOUBT if doubt else _LISTENING) if listening else _POLLING
    return min(max(wait * growth, first), most, longest)


def pause(wait: float, due: float, *, may_be_new: bool) -> float:
    """Seconds until the next read, at most ``wait``, after one that found too few messages.

    A message that is due now may have come since the read. If the next read does not find it,
    another transaction has locked it, perhaps for long, or it does not match a condition.

    >>> pause(0.02, 0.0, may_be_new=True), pause(0.02, 0.0, may_be_new=False)
    (0.0, 0.02)
    """
    if due <= 0:
        return 0.0 if may_be_new else wait
    return min(wait, max(due, NOW))
