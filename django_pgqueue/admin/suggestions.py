"""The suggestions of the fields *Search* and *Group*, from the newest messages."""

from __future__ import annotations

from collections.abc import Sequence

from django_pgqueue.admin.queries import ask
from django_pgqueue.admin.search import Search

#: The number of newest messages, and of newest failures, that are read.
NEWEST = 200
#: The largest body and headers that are read, in bytes on disk.
SMALL = 8192
#: Maximum number of suggestions of a field.
MOST = 60


def suggestions(queues: Sequence[int] | None) -> dict[str, list[str]]:
    """Return suggestions by the field's name, ``q`` or ``group``, the most frequent first.

    Arguments:
        queues: the ids of the queues that the user may see and has chosen; None: all.
    """
    newest, params = Search(queues=None if queues is None else tuple(queues)).newest(NEWEST)
    params |= {"small": SMALL, "look": NEWEST, "most": MOST}
    found: dict[str, list[str]] = {"q": [], "group": []}
    for field, word in ask("search/suggestions", params, newest=newest):
        found[field].append(word)
    return found
