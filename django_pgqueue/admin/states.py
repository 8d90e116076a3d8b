"""Finding messages by state: in the narrow tables, and never through all of them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from django_pgqueue.models import ArchivedMessage, LiveMessage
from django_pgqueue.types import State

__all__ = ["ARCHIVED", "ArchiveStateFilter", "MessageStateFilter", "newest"]

ARCHIVED = (State.COMPLETED, State.FAILED, State.CANCELLED)

#: How many messages a state shows at most, and how many of the newest it looks at for them.
SHOWN = 1_000
LOOK_BACK = 100_000

_QUEUE = "queue__id__exact"


def newest(rows: QuerySet[Any], qty: int = LOOK_BACK) -> QuerySet[Any]:
    """Only so many rows, the newest by id: an end for a search that no index serves."""
    for floor in rows.order_by("-pk").values_list("pk", flat=True)[qty : qty + 1]:
        return rows.filter(pk__gt=floor)
    return rows


class StateFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"
    states: tuple[State, ...]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(state.value, state.value.capitalize()) for state in self.states]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() not in [state.value for state in self.states]:
            return queryset
        return self.in_state(queryset, State(self.value()), request.GET.get(_QUEUE))

    def in_state(
        self, queryset: QuerySet[Any], state: State, queue_id: str | None
    ) -> QuerySet[Any]:
        raise NotImplementedError


class ArchiveStateFilter(StateFilter):
    """How archived messages ended, looking at the newest."""

    states = ARCHIVED

    def in_state(
        self, queryset: QuerySet[Any], state: State, queue_id: str | None
    ) -> QuerySet[Any]:
        return newest(queryset).filter(state=state.value)


class MessageStateFilter(StateFilter):
    """Where messages stand: up to SHOWN of them, by what the narrow tables say."""

    title = f"state (up to {SHOWN:,})"
    states = tuple(State)

    def in_state(
        self, queryset: QuerySet[Any], state: State, queue_id: str | None
    ) -> QuerySet[Any]:
        rows: QuerySet[Any]
        of_queue = {"queue_id": int(queue_id)} if queue_id and queue_id.isdecimal() else {}
        if state is State.PENDING:
            # In the order they will be read in, which is the one of the index.
            rows = LiveMessage.objects.using(queryset.db).filter(state=state.value, **of_queue)
            rows = rows.order_by("-priority", "id") if of_queue else rows
        elif state in ARCHIVED:
            rows = newest(ArchivedMessage.objects.using(queryset.db).filter(**of_queue))
            rows = rows.filter(state=state.value).order_by("-id")
        else:
            rows = LiveMessage.objects.using(queryset.db).exclude(state=State.PENDING.value)
            rows = newest(rows).filter(state=state.value, **of_queue).order_by("-id")
        found = rows.values_list("pk", "queue_id")[:SHOWN]
        # By queue too, or every leaf would be searched for every id.
        return queryset.filter(
            pk__in=[pk for pk, _ in found], queue_id__in={queue for _, queue in found}
        )
