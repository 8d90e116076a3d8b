"""Finding messages by queue and by where they stand: in the narrow tables, never through all."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.db.models.expressions import RawSQL
from django.http import HttpRequest

from django_pgqueue.admin import pages, places
from django_pgqueue.admin.access import allowed, queues_for
from django_pgqueue.admin.places import LIVE, Place
from django_pgqueue.models import ArchivedMessage

__all__ = ["ENDED", "ArchiveStateFilter", "MessageStateFilter", "QueueFilter", "newest"]

ENDED = (Place.COMPLETED, Place.FAILED, Place.CANCELLED)

#: How many of the newest outcomes are searched for those of one kind.
LOOK_BACK = 100_000

QUEUE = "queue"


def newest(rows: QuerySet[Any], qty: int = LOOK_BACK) -> QuerySet[Any]:
    """Only the newest rows by id: an end for a search that no index serves."""
    for floor in rows.order_by("-pk").values_list("pk", flat=True)[qty : qty + 1]:
        return rows.filter(pk__gt=floor)
    return rows


class QueueFilter(admin.SimpleListFilter):
    """One queue."""

    title = "queue"
    parameter_name = QUEUE

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            (str(pk), name)
            for pk, name in queues_for(request).order_by("name").values_list("pk", "name")
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        chosen = queue_of(self.value())
        return queryset.none() if chosen is None else queryset.filter(queue_id=chosen)


def queue_of(text: str | None) -> int | None:
    """A queue's id from the address, if it can be one."""
    if text is None or not (text.isascii() and text.isdigit()) or int(text) >= 2**31:
        return None
    return int(text)


class StateFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"
    places: tuple[Place, ...]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(place.value, str(place).capitalize()) for place in self.places]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() not in [place.value for place in self.places]:
            return queryset
        given = request.GET.get(QUEUE)
        chosen = queue_of(given)
        if given is not None and chosen is None:
            return queryset.none()
        seen = allowed(request)
        queues = None if seen is None else list(seen)
        if chosen is not None:
            queues = [chosen] if seen is None or chosen in seen else []
        return self.in_place(queryset, Place(self.value()), queues, request)

    def in_place(
        self, queryset: QuerySet[Any], place: Place, queues: list[int] | None, request: HttpRequest
    ) -> QuerySet[Any]:
        raise NotImplementedError


class ArchiveStateFilter(StateFilter):
    """How archived messages ended, looking at the newest."""

    places = ENDED

    def in_place(
        self, queryset: QuerySet[Any], place: Place, queues: list[int] | None, request: HttpRequest
    ) -> QuerySet[Any]:
        return newest(queryset).filter(state=place.name)


class MessageStateFilter(StateFilter):
    """Where messages stand; those in a queue in the order in which they will be read."""

    places = (*LIVE, *ENDED)

    def in_place(
        self, queryset: QuerySet[Any], place: Place, queues: list[int] | None, request: HttpRequest
    ) -> QuerySet[Any]:
        using = queryset.db
        if place in LIVE:
            found = places.found(place, queues, pages.CAP, using=using)
        else:
            ended = ArchivedMessage.objects.using(using)
            if queues is not None:
                ended = ended.filter(queue_id__in=queues)
            rows = newest(ended).filter(state=place.name).order_by("-id")
            found = list(rows.values_list("queue_id", "pk")[: pages.CAP])
        request.pgqueue_found = found  # type: ignore[attr-defined]
        return among(queryset, found)


def among(queryset: QuerySet[Any], found: list[tuple[int, int]]) -> QuerySet[Any]:
    """The rows of these queues and ids. By queue too, or each id is searched in every partition."""
    ids = RawSQL("SELECT unnest(%s::bigint[])", [[pk for _, pk in found]])
    return queryset.filter(pk__in=ids, queue_id__in={queue_id for queue_id, _ in found})
