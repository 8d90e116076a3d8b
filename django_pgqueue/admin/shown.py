"""Which parts of the admin are shown: those that have a row, or that ``ADMIN_SHOWS`` names.

A part that is hidden has no link in lists of pages. Its pages open by their URLs.
"""

from __future__ import annotations

from collections.abc import Collection

from django.db import Error, connections, transaction
from django.http import HttpRequest

from django_pgqueue.admin.queries import ask
from django_pgqueue.conf import problem, settings
from django_pgqueue.database.locks import milliseconds, set_locally
from django_pgqueue.engine.settings import ADMIN_PARTS
from django_pgqueue.models import Queue

#: How long to wait for a lock before all parts are shown, in seconds.
PATIENCE = 0.5


def is_shown(request: HttpRequest, part: str) -> bool:
    """Return whether to link to the pages of a part. Pages without a part are always linked."""
    return not part or part in _named() or part in used(request)


def _named() -> Collection[str]:
    """Return the parts that ``ADMIN_SHOWS`` names; all parts if its value is invalid.

    Every page of the project's admin asks. The system check E006 reports an invalid value.
    """
    parts: Collection[str] = ADMIN_PARTS if problem("ADMIN_SHOWS") else settings.ADMIN_SHOWS
    return parts


def used(request: HttpRequest) -> set[str]:
    """Return the parts that have a row. The result is cached on the request."""
    known: set[str] | None = getattr(request, "pgqueue_used", None)
    if known is None:
        known = _used()
        request.pgqueue_used = known  # type: ignore[attr-defined]
    return known


def _used() -> set[str]:
    """Return the parts that have a row; all parts if the database refuses the statement.

    Every page of the project's admin asks, so an error must neither fail the page nor break its
    transaction.
    """
    alias = Queue.objects.database()
    in_block = connections[alias].in_atomic_block
    try:
        with transaction.atomic(using=alias):
            if not in_block:  # Otherwise the page has limits already.
                with connections[alias].cursor() as cursor:
                    set_locally(cursor, lock_timeout=milliseconds(PATIENCE))
            [found] = ask("shown")
    except Error:
        return set(ADMIN_PARTS)
    return {part for part, is_used in zip(ADMIN_PARTS, found, strict=True) if is_used}
