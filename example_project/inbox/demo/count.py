"""Counts what became of the deliveries of one run of the demo."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Count, Max, QuerySet

from django_pgqueue.models import ArchivedMessage, LiveMessage
from example_project.inbox.models import Activity, Delivery


@dataclass(frozen=True)
class Standing:
    """How many messages of a run are where, at one moment."""

    ready: int
    in_flight: int
    waiting: int
    archived: int
    failed: int

    @property
    def left(self) -> int:
        return self.ready + self.in_flight + self.waiting

    @property
    def done(self) -> int:
        return self.archived + self.failed


@dataclass(frozen=True)
class Outcome:
    """What a run came to. ``archived`` are the messages handled well, ``failed`` the others."""

    sent: int
    refused: int
    redelivered: int
    duplicates: int
    archived: int
    failed: int
    left: int
    activities: int
    seconds: float
    events: dict[str, dict[str, int]] = field(default_factory=dict)
    repositories: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.archived / self.seconds if self.seconds else 0.0

    @property
    def adds_up(self) -> bool:
        """Every delivery sent is in exactly one place, and every message handled left a trace."""
        return (
            self.sent == self.archived + self.failed + self.left
            and self.archived == self.activities
            and self.redelivered == self.duplicates
        )

    @property
    def is_clean(self) -> bool:
        return self.adds_up and not (self.refused or self.failed or self.left)


class Run:
    """The deliveries received from now on."""

    def __init__(self) -> None:
        self._before = Delivery.objects.aggregate(last=Max("pk"))["last"] or 0

    @property
    def deliveries(self) -> QuerySet[Delivery]:
        return Delivery.objects.filter(pk__gt=self._before)

    def standing(self) -> Standing:
        ids = self.deliveries.values("message_id")
        live = _count(LiveMessage.objects.filter(pk__in=ids))
        archived = _count(ArchivedMessage.objects.filter(pk__in=ids))
        return Standing(
            ready=live["PENDING"],
            in_flight=live["PROCESSING"],
            waiting=live["RETRYABLE"] + live["SCHEDULED"],
            archived=archived["COMPLETED"],
            failed=archived["FAILED"],
        )

    def outcome(self, traffic: Counter[str], seconds: float) -> Outcome:
        standing = self.standing()
        activities = Activity.objects.filter(delivery__in=self.deliveries)
        by_repository = (
            activities.exclude(repository=None)
            .values_list("repository__full_name")
            .annotate(number=Count("pk"))
            .order_by("-number", "repository__full_name")
        )
        return Outcome(
            sent=traffic["sent"],
            refused=traffic["refused"],
            redelivered=traffic["redelivered"],
            duplicates=traffic["duplicates"],
            archived=standing.archived,
            failed=standing.failed,
            left=standing.left,
            activities=activities.count(),
            seconds=round(seconds, 3),
            events=self._events(),
            repositories=dict(by_repository[:5]),
        )

    def _events(self) -> dict[str, dict[str, int]]:
        ids = self.deliveries.values("message_id")
        archived = ArchivedMessage.objects.filter(pk__in=ids)
        states = dict(archived.values_list("pk", "state"))
        events: dict[str, dict[str, int]] = defaultdict(
            lambda: {"archived": 0, "failed": 0, "left": 0}
        )
        place = {"COMPLETED": "archived", "FAILED": "failed"}
        for message_id, event in self.deliveries.values_list("message_id", "event"):
            state = states.get(message_id) if message_id else None
            events[event][place.get(state or "", "left")] += 1
        return dict(sorted(events.items()))


def _count(messages: QuerySet[Any]) -> Counter[str]:
    return Counter(dict(messages.order_by().values_list("state").annotate(Count("pk"))))
