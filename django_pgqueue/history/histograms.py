"""Histograms of times with logarithmic buckets, four per factor of two.

A bucket's number is ``floor(4 * log2(seconds))``, as in the lakes' roll-ups. Unlike percentiles,
counts can be added over any span. Percentiles computed from them are off by 10 % at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, log2

__all__ = ["LEAST", "MOST", "bucket", "quantile"]

#: The first and last bucket: a millisecond or less, and 48 days or more.
LEAST, MOST = -40, 88
_SHORTEST, _LONGEST = 2.0 ** (LEAST / 4), 2.0 ** (MOST / 4)


def bucket(seconds: float) -> int:
    """Return the number of the bucket that counts a time.

    >>> bucket(1), bucket(2), bucket(0.0), bucket(1e9)
    (0, 4, -40, 88)
    """
    if seconds <= _SHORTEST:
        return LEAST
    return MOST if seconds >= _LONGEST else floor(4 * log2(seconds))


def quantile(counts: Mapping[str, int], share: float) -> float | None:
    """Return a quantile in seconds: this share of the counted times did not exceed it.

    The result is the logarithmic middle of the quantile's bucket; None without counts. The keys of
    ``counts`` are bucket numbers as text.

    >>> quantile({"0": 95, "4": 5}, 0.5), quantile({}, 0.5)
    (1.0905077326652577, None)
    """
    left = share * sum(counts.values())
    for number, count in sorted((int(key), count) for key, count in counts.items()):
        left -= count
        if left <= 0 and count:
            middle: float = 2.0 ** ((number + 0.5) / 4)
            return middle
    return None
