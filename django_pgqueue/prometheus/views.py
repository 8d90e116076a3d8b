"""A view for Prometheus."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from django_pgqueue.prometheus import queues

__all__ = ["metrics"]


@require_safe
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """The contents of all queues, as text for Prometheus.

    The page names the queues: keep it inside, or put a decorator around it::

        path("metrics/queues", django_pgqueue.prometheus.views.metrics)
    """
    content_type, text = queues.page()
    return HttpResponse(text, content_type=content_type)
