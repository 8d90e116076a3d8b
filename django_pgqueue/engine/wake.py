"""The notifications that wake consumers: their channel, and their minimum interval.

A notification can be late or lost, and behind a pooler in transaction mode there is none. So every
wait has a timeout.
"""

from __future__ import annotations

#: The channel of all notifications. The payload is the name of a queue that got messages.
CHANNEL = "pgqueue"
#: Minimum seconds between two notifications of a queue: sends in between do not notify. So
#: readers also poll: a sender whose notification was skipped may commit much later. The intervals
#: are short after a notification, and then grow.
THROTTLE = 0.02
