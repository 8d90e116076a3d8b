"""Poison protection: a message that may kill its process runs alone.

A delivery that ends without an outcome or a release is silent: most likely its process died. After
one silent delivery a message still runs among others, because nearly all messages of a killed
process are innocent. After two, or after one if the present delivery is the last, the message is a
suspect: the process finishes or releases all other messages first. Therefore a poison message costs
any other message at most two redeliveries, and never its last delivery.
"""

from __future__ import annotations

from django_pgqueue.models import Message

#: A message is a suspect after this many deliveries without an outcome or a release.
_SILENT = 2


def is_suspect(message: Message, max_deliveries: int) -> bool:
    """Whether two earlier deliveries ended silently. One is enough if this delivery is the last."""
    # An outcome adds one to attempts, and a release takes one from read_ct. The present delivery is
    # subtracted, too.
    silent = message.read_ct - message.attempts - 1
    return silent >= _SILENT or (silent >= 1 and message.read_ct >= max_deliveries)
