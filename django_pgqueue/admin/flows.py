"""Reads the steps, notes and waits of a message."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from typing import Any, NamedTuple

from django_pgqueue.admin.contents import in_line
from django_pgqueue.admin.masking import MASK, is_secret
from django_pgqueue.admin.queries import ask

#: Maximum number of steps that a page shows.
MOST_STEPS = 50
#: Maximum number of characters that a page shows of a value.
LENGTH = 500


class Stored(NamedTuple):
    """A step, a note, or a wait."""

    name: str | None  # None for a note.
    at: dt.datetime
    text: str | None  # The beginning of the value as JSON.
    earlier: int  # If not 0, this row stands for so many steps that are not shown.
    waits: bool

    @property
    def value(self) -> str:
        """The value for a page, cut and with secrets masked; "" for none.

        A step's name is the key of its value: that of a step "fetch token" is masked.
        """
        if self.text is None:
            return ""
        return MASK if is_secret(self.name or "") else in_line(self.text, LENGTH)


def flow_of(message: Any, source_id: int | None, seen: Collection[int] | None) -> list[Stored]:
    """Return the newest steps, the notes and the wait of a message, in the order of time.

    A message keeps them when it moves to another queue. A subscription's page shows its own only.

    Arguments:
        source_id: the id of the queue that a dead letter came from.
        seen: the ids of the queues that the user may see; None: all. A user who may see only some
            gets the steps of the message's queue and of a dead letter's source.
    """
    params = {
        "id": message.pk,
        "queue_id": message.queue_id,
        "subscribed": message.queue.source_id is not None,
        "everywhere": seen is None,
        "source": source_id,
        "most": MOST_STEPS,
        "length": LENGTH,
    }
    return [Stored(*row) for row in ask("flows", params, **message.queue.tables)]
