"""Counts the deliveries of one demo run: their states, and their retries."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from django.db.models import Count, Max, QuerySet

from django_pgqueue.models import ArchivedMessage, LiveMessage
from example_project.inbox.demo.faults import KILL, RETRY
from example_project.inbox.models import Activity, Delivery

DEAD_LETTERS = "github.dead"


@dataclass(frozen=True)
class Standing:
    """How many of a run's messages are in each state, at one moment."""

    ready: int
    in_flight: int
    waiting: int
    archived: int
    dead: int

    @property
    def left(self) -> int:
        return self.ready + self.in_flight + self.waiting

    @property
    def done(self) -> int:
        return self.archived + self.dead


@dataclass(frozen=True)
class Outcome:
    """The result of a run. ``sent`` was accepted by the web server, ``archived`` handled by
    consumers.
    """

    sent: int
    refused: int
    redelivered: int
    duplicates: int
    archived: int
    dead: int
    left: int
    activities: int
    retried: int
    recovered: int
    redriven: int
    seconds: float
    events: dict[str, dict[str, int]] = field(default_factory=dict)
    repositories: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.archived / self.seconds if self.seconds else 0.0

    @property
    def adds_up(self) -> bool:
        """Whether each delivery is counted once, and each handled delivery has one activity."""
        return (
            self.sent == self.archived + self.dead + self.left
            and self.archived == self.activities
            and self.redelivered == self.duplicates
        )

    @property
    def is_clean(self) -> bool:
        return self.adds_up and not (self.refused or self.dead or self.left)


class Run:
    """A run: the deliveries received from now on. *faults* are the planted ones, by guid."""

    def __init__(self, faults: dict[str, str]) -> None:
        self._before = Delivery.objects.aggregate(last=Max("pk"))["last"] or 0
        self._faults = faults
        self.redriven = 0

    @property
    def deliveries(self) -> QuerySet[Delivery]:
        return Delivery.objects.filter(pk__gt=self._before)

    def dead_letters(self) -> list[int]:
        """The ids of this run's dead letters. An interrupted earlier run may have left others."""
        ids = self.deliveries.values("message_id")
        dead = LiveMessage.objects.filter(pk__in=ids, queue__name=DEAD_LETTERS)
        return list(dead.order_by("pk").values_list("pk", flat=True))

    def standing(self) -> Standing:
        ids = self.deliveries.values("message_id")
        live = LiveMessage.objects.filter(pk__in=ids)
        by_state = live.exclude(queue__name=DEAD_LETTERS).order_by().values_list("state")
        states = Counter(dict(by_state.annotate(Count("pk"))))
        return Standing(
            ready=states["PENDING"],
            in_flight=states["PROCESSING"],
            waiting=states["RETRYABLE"] + states["SCHEDULED"],
            archived=ArchivedMessage.objects.filter(pk__in=ids, state="COMPLETED").count(),
            dead=len(self.dead_letters()),
        )

    def delivered_again(self) -> tuple[int, int]:
        """The numbers of messages retried after an error, and redelivered after their consumer
        died.
        """
        again = ArchivedMessage.objects.filter(read_ct__gt=1).values("pk")
        guids = self.deliveries.filter(message_id__in=again).values_list("guid", flat=True)
        faults = Counter(self._faults.get(str(guid), KILL) for guid in guids)
        return faults[RETRY], faults[KILL]

    def outcome(
        self, traffic: Counter[str], delivered_again: tuple[int, int], seconds: float
    ) -> Outcome:
        standing = self.standing()
        retried, recovered = delivered_again
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
            dead=standing.dead,
            left=standing.left,
            activities=activities.count(),
            retried=retried,
            recovered=recovered,
            redriven=self.redriven,
            seconds=round(seconds, 3),
            events=self._events(),
            repositories=dict(by_repository[:5]),
        )

    def _events(self) -> dict[str, dict[str, int]]:
        ids = self.deliveries.values("message_id")
        done = ArchivedMessage.objects.filter(pk__in=ids, state="COMPLETED")
        places = dict.fromkeys(done.values_list("pk", flat=True), "archived")
        places |= dict.fromkeys(self.dead_letters(), "dead")
        events: dict[str, dict[str, int]] = {}
        for message_id, event in self.deliveries.values_list("message_id", "event"):
            numbers = events.setdefault(event, {"archived": 0, "dead": 0, "left": 0})
            numbers[places.get(message_id or 0, "left")] += 1
        return dict(sorted(events.items()))
