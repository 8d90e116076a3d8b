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
