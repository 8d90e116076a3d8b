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
#: Seconds until a reader that has just fallen asleep polls, if senders may commit without a
#: notification.
SOON = 0.002
#: The shortest time, in seconds, until a message is due that is not due now.
NOW = 0.001


def pause(wait: float, due: float, *, is_first: bool) -> float:
    """Seconds until the next read, at most ``wait``, after one that found too few messages.

    A message that is due now may have come since the read. If the next read does not find it,
    another transaction has locked it, perhaps for long, or it does not match a condition.

    >>> pause(0.02, 0.0, is_first=True), pause(0.02, 0.0, is_first=False)
    (0.001, 0.02)
    """
    return min(wait, max(due, NOW)) if is_first or due > 0 else wait
