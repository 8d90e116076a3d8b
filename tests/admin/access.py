"""A QUEUES_FOR hook that shows only some queues to a request."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from django_pgqueue.models import Queue


def ours(request: HttpRequest) -> Any:
    """The queues whose names start with the user's name."""
    return Queue.objects.filter(name__startswith=f"{request.user.get_username()}.")
