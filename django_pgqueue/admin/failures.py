"""Failures: failed messages and dead letters, grouped by the kind of their error."""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.http import HttpRequest
from django.utils.translation import gettext_lazy

from django_pgqueue.admin.access import queues_for
from django_pgqueue.admin.queries import ask
from django_pgqueue.admin.search import Targets
from django_pgqueue.engine.statements import compose
from django_pgqueue.models import Queue

#: Up to this many queue ids, the planner sees the ids and skips other queues' partitions. More ids
#: are hidden from it: it compares each id with each partition, which takes 36 s for 6,000 ids.
LISTED = 200


ERROR = compose("failures/error", {}, __package__)


class Window(NamedTuple):
    """The period that a page of failures shows, and the time span of a point in its trends."""

    label: Any
    length: dt.timedelta
    span: dt.timedelta


WINDOWS = {
    "1h": Window(gettext_lazy("1 hour"), dt.timedelta(hours=1), dt.timedelta(minutes=2)),
    "24h": Window(gettext_lazy("24 hours"), dt.timedelta(hours=24), dt.timedelta(hours=1)),
    "7d": Window(gettext_lazy("7 days"), dt.timedelta(days=7), dt.timedelta(hours=6)),
}


class Group(NamedTuple):
    """The failures of one kind."""

    kind: int
    number: int
    dead: int
    first: dt.datetime
    last: dt.datetime
    sources: list[int]  # Ids of the queues where the messages failed.
    spans: list[list[int]]  # Pairs of a span's start, in epoch seconds, and a count.
    example: list[int]  # An example message's id, and its queue's id.
    every: int  # The number of groups, including those beyond the limit.
    line: str  # The first line of the example's error.
    frame: str | None

    @property
    def place(self) -> str:
        """Where the error was raised: the end of the file's path, and the function."""
        file, _space, function = (self.frame or "").partition(" ")
        return f"{'/'.join(file.split('/')[-2:])} {function}".strip()


class Example(NamedTuple):
    """A failed message of a failure group."""

    pk: int
    queue_id: int
    at: dt.datetime
    error: str
    line: str


@dataclass(frozen=True)
class Failures:
    """The failures of some queues within a window, optionally of one kind or source queue."""

    queues: Sequence[int]
    dead_letters: Sequence[int]  # Ids of dead-letter queues.
    window: Window
    source: int | None = None
    kind: int | None = None

    @classmethod
    def of(cls, request: HttpRequest, window: Window, source: int | None = None) -> Failures:
        """Return the failures in all queues that the user may see."""
        own = sorted(queues_for(request).values_list("pk", flat=True))
        # A dead-letter queue is included even if the user may not see its source queues.
        dead = Queue.objects.filter(dead_letter_queue__in=own)
        into = set(dead.values_list("dead_letter_queue_id", flat=True))
        return cls(own, sorted(into), window, source)

    def groups(self, most: int) -> list[Group]:
        """Return up to ``most`` groups, the largest first."""
        params = {"span": self.window.span, "most": most}
        return [Group(*row) for row in self.ask("failures/groups", params)]

    def trend(self, group: Group) -> list[int]:
        """Return the number of a group's failures per span of the window, the oldest span first."""
        counts: Counter[int] = Counter()
        for start, count in group.spans:
            counts[start] += count
        span = int(self.window.span.total_seconds())
        last = int(time.time()) // span * span
        number = int(self.window.length.total_seconds()) // span
        return [counts[last - back * span] for back in reversed(range(number + 1))]

    def examples(self, most: int) -> list[Example]:
        """Return up to ``most`` failed messages, the newest first."""
        return [Example(*row) for row in self.ask("failures/examples", {"most": most})]

    def sent_again(self) -> int:
        """Return the number of failed messages that were sent again. They belong to no group."""
        return int(self.ask("failures/sent_again")[0][0])

    def ask(
        self, name: str, params: Mapping[str, Any] | None = None, **names: object
    ) -> list[tuple[Any, ...]]:
        """Run a named statement, and return its rows.

        The statement may use ``{open}``, a query for these failures, and ``{counts}``, a query for
        their numbers by source queue.
        """
        values: dict[str, Any] = {
            "queues": list(self.queues),
            "dead": list(self.dead_letters),
            "window": self.window.length,
            "source": self.source,
            "kind": self.kind,
        }
        names |= {"of_queues": _any("queues", self.queues)}
        names |= {"of_dead": _any("dead", self.dead_letters)}
        names["open"] = compose("failures/open", names, __package__)
        names["counts"] = compose("failures/counts", names, __package__)
        return ask(name, {**values, **(params or {})}, error=ERROR, **names)


def _any(name: str, ids: Sequence[int]) -> str:
    """Return SQL that matches the ids in the parameter ``name``. See ``LISTED``."""
    if len(ids) <= LISTED:
        return f"ANY(%({name})s::int[])"
    return f"ANY(ARRAY(SELECT unnest(%({name})s::int[])))"


@dataclass(frozen=True)
class Members(Targets):
    """A group's dead letters, or its failed messages in the archive."""

    failures: Failures
    text: str
    dead: bool

    def aggregate(self, what: str, asked_at: dt.datetime | None) -> list[tuple[Any, ...]]:
        params = {"is_dead": self.dead, "asked_at": asked_at}
        return self.failures.ask("failures/members", params, what=what)

    def as_query(self) -> dict[str, str]:
        return {"failure": self.text}
