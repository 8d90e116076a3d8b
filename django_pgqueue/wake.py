"""The notifications that wake consumers: their channel, and their minimum interval.

A notification can be late or lost, and behind a pooler in transaction mode there is none. So every
wait has a timeout.
"""

from __future__ import annotations

#: The channel of all notifications. The payload is the name of a queue that got messages.
CHANNEL = "pgqueue"
#: Minimum seconds between two notifications of a queue. After a notification, consumers wait only
#: briefly for that time, so that they find messages without a notification. Then the waits grow
#: step by step, because a sender whose notification was skipped may commit much later.
THROTTLE = 0.02
