"""The queues that the user of a request may see. Every page of the admin uses these functions."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.module_loading import import_string

from django_pgqueue.conf import settings
from django_pgqueue.models import Queue


def queues_for(request: HttpRequest) -> QuerySet[Queue]:
    """Return the queues that the user may see: all, or those that the ``QUEUES_FOR`` hook returns.

    >>> PGQUEUE = {"QUEUES_FOR": "shop.access.queues_for"}
    """
    chosen = allowed(request)
    queues = Queue.objects.all()
    return queues if chosen is None else queues.filter(pk__in=list(chosen))


def allowed(request: HttpRequest) -> dict[int, str] | None:
    """Return the visible queues' names by id; None: all. The result is cached on the request."""
    if settings.QUEUES_FOR is None:
        return None
    known = getattr(request, "pgqueue_allowed", None)
    if known is None:
        hook = import_string(settings.QUEUES_FOR)
        known = dict(hook(request).values_list("pk", "name"))
        request.pgqueue_allowed = known  # type: ignore[attr-defined]
    return dict(known)


def names_for(request: HttpRequest) -> Collection[str] | None:
    """Return the names of the queues that the user may see; None: all."""
    seen = allowed(request)
    return None if seen is None else seen.values()
