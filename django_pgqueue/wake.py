"""The notifications that wake consumers: their channel, and their minimum interval.

A notification is only a hint: it can be late or lost, and behind a pooler in transaction mode there
is none. So every wait has a timeout.
"""

from __future__ import annotations

#: The channel of all notifications. The payload is the name of a queue that got messages.
CHANNEL = "pgqueue"
#: Seconds after a notification in which a queue sends no further one. Waits stay short during this
#: time, so that reads find the messages that caused no notification. Then waits grow step by step,
#: since a sender whose notification was skipped may commit much later.
THROTTLE = 0.02
