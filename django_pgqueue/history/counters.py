"""The columns of counts in ``pgqueue_history``, for the Python and the SQL of this package."""

from __future__ import annotations

from django_pgqueue.engine.statements import compose
from django_pgqueue.types import counted_in

_STATES = counted_in("history")
#: Messages that left the queue. A dead letter has no terminal state.
ENDED = (*(state.counter for state in _STATES), "dead_lettered")
#: Messages that ended with success.
SUCCEEDED = tuple(state.counter for state in _STATES if state.is_success)
#: Messages that failed for good, and are in the archive.
FAILED = tuple(state.counter for state in _STATES if state.is_failure)
#: All counts that consumers write. Rows are merged by adding them up.
COUNTERS = (*ENDED, "retried", "lost", "busy")

_NAMES = {
    "counters": ", ".join(COUNTERS),
    "zeros": ", ".join("0" for _ in COUNTERS),
    "sums": ", ".join(f"sum({name})" for name in COUNTERS),
    "updates": ", ".join(f"{name} = excluded.{name}" for name in COUNTERS),
    "ended": " + ".join(ENDED),
    "succeeded": " + ".join(SUCCEEDED),
    "failed": " + ".join(FAILED),
}


def statement(name: str) -> str:
    """Load a statement of this package, with the columns of counts."""
    return compose(name, _NAMES, __package__)
