"""A hook that lets a request see some queues only."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from django_pgqueue.models import Queue


def ours(request: HttpRequest) -> Any:
    """The queues whose names begin as the user's does."""
    return Queue.objects.filter(name__startswith=f"{request.user.get_username()}.")
