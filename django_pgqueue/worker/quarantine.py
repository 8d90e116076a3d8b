"""Poison protection: a message that may kill its process runs alone.

A delivery that ended neither with an outcome nor with a release most likely ended with its process.
After one such delivery a message still runs among others, because nearly all messages of a killed
process are innocent. After two, or after one if the present delivery is the last, it is a
suspect: the process finishes or releases all other messages first. So poison costs any other
message at most two redeliveries, and never its last delivery.
"""

from __future__ import annotations

from django_pgqueue.models import Message

#: A message is a suspect after this many deliveries without an outcome or a release.
_SILENT = 2


def is_suspect(message: Message, max_deliveries: int) -> bool:
    """Whether two earlier deliveries ended silently. One is enough if this delivery is the last."""
    # Silently: without an outcome, which adds one to attempts, or a release, which takes one from
    # read_ct.
    silent = message.read_ct - message.attempts - 1
    return silent >= _SILENT or (silent >= 1 and message.read_ct >= max_deliveries)
