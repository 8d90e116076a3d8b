"""The growing waits of an idle consumer between its reads."""

from __future__ import annotations

from django_pgqueue.wake import THROTTLE

#: A message whose due time is at most this many seconds away counts as due now.
NOW = 0.001

_FIRST = 0.008
_GROWTH_LISTENING = 3.0
_GROWTH_POLLING = 1.5


def longer(wait: float, longest: float, *, listening: bool = True) -> float:
    """Return the next wait in seconds, after one of ``wait`` (0: none yet), up to ``longest``.

    The first waits are short: while notifications are throttled, only a read finds new messages.
    Later waits grow faster in a process that listens to notifications.

    >>> [longer(wait, 1.0) for wait in (0.0, 0.008, 0.5)]
    [0.008, 0.012, 1.0]
    """
    growth = _GROWTH_LISTENING if listening and wait >= THROTTLE else _GROWTH_POLLING
    return min(max(wait * growth, _FIRST), longest)
