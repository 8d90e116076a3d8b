"""The waits of an idle consumer between two looks for messages: longer each time."""

from __future__ import annotations

from django_pgqueue.wake import THROTTLE

__all__ = ["NOW", "longer"]

#: A message that is due within this many seconds is due.
NOW = 0.001

_FIRST = 0.008
_GROWTH_LISTENING = 3.0
_GROWTH_POLLING = 1.5


def longer(wait: float, longest: float, *, listening: bool = True) -> float:
    """The wait that follows one of ``wait`` seconds, 0 for none, up to ``longest``.

    The first ones are short: while notifications are throttled, only a look finds new messages.
    After that a process that listens need not look often.

    >>> [longer(wait, 1.0) for wait in (0.0, 0.008, 0.5)]
    [0.008, 0.012, 1.0]
    """
    growth = _GROWTH_LISTENING if listening and wait >= THROTTLE else _GROWTH_POLLING
    return min(max(wait * growth, _FIRST), longest)
