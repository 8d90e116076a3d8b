"""When a queue will be empty at its present rates, or how fast it grows."""

from __future__ import annotations

from typing import NamedTuple

from django.utils.translation import gettext as _

from django_pgqueue.engine.wording import age
from django_pgqueue.templatetags.pgqueue_admin import rate

#: Rates that differ by less than this share of the higher one keep the backlog as it is.
STEADY = 0.05
#: A backlog of fewer minutes' messages is none that fills or empties.
WORTH = 0.5


class Outlook(NamedTuple):
    """The future of a backlog: one of the two is None."""

    empty_in: float | None  # Seconds.
    grows: float | None  # Messages per minute.

    def __str__(self) -> str:
        if self.grows is not None:
            return _("grows by %s/min") % rate(self.grows)
        return _("empty in ≈ %s") % age(self.empty_in)


def outlook(backlog: int, came: float, went: float) -> Outlook | None:
    """Return the outlook of a queue; None if its backlog is small or stays as it is.

    Arguments:
        backlog: the number of messages, without delayed ones.
        came: messages sent per minute.
        went: messages ended per minute.

    >>> str(outlook(2800, 100, 300)), str(outlook(500, 150, 30))
    ('empty in ≈ 14 min', 'grows by 120/min')
    >>> outlook(3, 100, 90), outlook(5000, 100, 99), outlook(0, 0, 0)
    (None, None, None)
    """
    busiest, more = max(came, went), came - went
    if backlog <= WORTH * busiest or abs(more) <= STEADY * busiest:
        return None
    return Outlook(None, more) if more > 0 else Outlook(60 * backlog / -more, None)
