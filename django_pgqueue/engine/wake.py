"""The notifications that wake consumers: their channel, and their minimum interval.

A notification can be late or lost, and behind a pooler in transaction mode there is none. So every
wait has a timeout.
"""

from __future__ import annotations

#: The channel of all notifications. The payload is the name of a queue that got messages.
CHANNEL = "pgqueue"
#: Seconds after a notification in which a queue does not notify again, unless a reader has fallen
#: asleep since. If the notification is rolled back, no other takes its place: so readers also poll,
#: first after this time.
THROTTLE = 0.02
#: The shortest time, in seconds, until a message is due that is not due now.
NOW = 0.001

# The first wait of a reader, its growth, and the longest wait: while a send may commit without a
# notification; while none may; and in a process that does not listen.
_IN_DOUBT = 0.002, 2.0, 0.064
_LISTENING = THROTTLE, 3.0, float("inf")
_POLLING = 0.008, 1.5, float("inf")


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


def pause(wait: float, due: float, *, is_first: bool) -> float:
    """Seconds until the next read, at most ``wait``, after one that found too few messages.

    A message that is due now may have come since the read. If the next read does not find it,
    another transaction has locked it, perhaps for long, or it does not match a condition.

    >>> pause(0.02, 0.0, is_first=True), pause(0.02, 0.0, is_first=False)
    (0.001, 0.02)
    """
    return min(wait, max(due, NOW)) if is_first or due > 0 else wait
