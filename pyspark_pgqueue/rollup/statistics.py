"""The statistics of a roll-up.

The SQL names the columns of a message that ended: those of the archive, with ``scheduled_at`` and
``group_key``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from django_pgqueue.history.histograms import LEAST, MOST
from django_pgqueue.types import ENDS, counted_in

#: The most values or messages in a list.
LONGEST_LIST = 5
PERCENTS = (50, 95, 99)
#: Maximum characters of an error's first line, which names the error. The traceback follows.
FIRST_LINE = 200

#: Whether a message's last attempt ended it.
_OF_ATTEMPT = f"state IN ({', '.join(repr(str(state)) for state in ENDS if state.is_of_attempt)})"

#: Sums of a span: a message's part.
SUMS = {
    **{
        state.counter: f"CASE WHEN state = '{state}' THEN 1 ELSE 0 END"
        for state in counted_in("rollup")
    },
    "retried": f"greatest(attempts - CASE WHEN {_OF_ATTEMPT} THEN 1 ELSE 0 END, 0)",
}


class Time(NamedTuple):
    """A time of each message, of which a span has percentiles and a histogram."""

    start: str
    end: str
    #: Whether a message has this time. Without it, greatest() would turn a missing time into zero.
    exists: str
    #: The column for the sum of these times.
    total: str | None = None


TIMES = {
    "wait": Time(
        "greatest(enqueued_at, scheduled_at)", "first_read_at", "first_read_at IS NOT NULL"
    ),
    "run": Time(
        "last_read_at", "archived_at", f"last_read_at IS NOT NULL AND {_OF_ATTEMPT}", "busy"
    ),
}


class Frequent(NamedTuple):
    """A value of each message, of which a span has the most frequent ones."""

    value: str
    #: Returns the columns, given the number of values, and the most frequent with their counts.
    columns: Callable[[int, list[tuple[str, int]]], dict[str, Any]]
    #: Whether only few messages have the value, and all of its columns are in the archive: it is
    #: then read separately, so that the intermediate rows stay narrow.
    is_rare: bool = False


FREQUENT = {
    "error": Frequent(
        f"left(split_part(ltrim(error), chr(10), 1), {FIRST_LINE})",
        lambda _, most: {"top_errors": [{"error": each, "count": count} for each, count in most]},
        is_rare=True,
    ),
    "group_key": Frequent(
        "group_key",
        lambda number, most: {
            "groups": number,
            "top_group": {"group": most[0][0], "count": most[0][1]},
        },
    ),
}


class Worst(NamedTuple):
    """Messages that meet a condition, of which a span has the first ones in an order."""

    condition: str
    order: tuple[str, ...]
    columns: tuple[str, ...]


WORST = {"poison": Worst("read_ct >= 3", ("-read_ct", "id"), ("id", "read_ct", "state"))}

#: The columns of a roll-up, with their values if nothing happened in a span.
COLUMNS: dict[str, Any] = {
    **dict.fromkeys(("sent", "dead_lettered", "backlog", *SUMS), 0),
    **{each.total: 0.0 for each in TIMES.values() if each.total},
    **{f"{name}_p{percent}": None for name in TIMES for percent in PERCENTS},
    **{f"{name}s": {} for name in TIMES},
    "groups": 0,
    "top_group": None,
    "top_errors": [],
    **{name: [] for name in WORST},
}


def bin_of(time: str) -> str:
    """SQL for the bin of a time in the histogram of :mod:`django_pgqueue.history.histograms`."""
    octaves = f"ln(greatest({time}, 1e-6)) / ln(2)"
    number = f"CAST(least(greatest(floor(4 * ({octaves})), {LEAST}), {MOST}) AS integer)"
    return f"CASE WHEN {time} IS NOT NULL THEN {number} END"
