"""The view that Prometheus scrapes."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from django_pgqueue.prometheus import queues

__all__ = ["metrics"]


@require_safe
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """The metrics of all queues, as text for Prometheus.

    The page lists queue names: do not expose it publicly, or decorate it with a permission check::

        path("metrics/queues", django_pgqueue.prometheus.views.metrics)
    """
    content_type, text = queues.page()
    return HttpResponse(text, content_type=content_type)
