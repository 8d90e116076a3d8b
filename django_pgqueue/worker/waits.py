"""How long to wait before the next look for messages: longer each time there were none."""

from __future__ import annotations

from django_pgqueue.wake import THROTTLE

__all__ = ["NOW", "longer"]

#: What is due within so many seconds is due.
NOW = 0.001

_FIRST = 0.008
_GROWTH_LISTENING = 3.0
_GROWTH_POLLING = 1.5


def longer(wait: float, longest: float, *, listening: bool = True) -> float:
    """The wait after one of so many seconds, or after none; ``longest`` is the last.

    Short ones come close together: until a notification can be given again a look has to find
    what is sent. After that whoever listens need not look often.

    >>> [longer(wait, 1.0) for wait in (0.0, 0.008, 0.5)]
    [0.008, 0.012, 1.0]
    """
    growth = _GROWTH_LISTENING if listening and wait >= THROTTLE else _GROWTH_POLLING
    return min(max(wait * growth, _FIRST), longest)
