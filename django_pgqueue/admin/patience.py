"""A statement timeout for the admin's pages, and the page that is shown after a timeout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from django.db import OperationalError, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from django_pgqueue.ddl.locks import milliseconds
from django_pgqueue.models import Queue
from django_pgqueue.sqlstates import QUERY_CANCELED, sqlstate

__all__ = ["SECONDS", "patiently"]

#: The statement timeout of a page, in seconds.
SECONDS = 10.0


def patiently(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Decorate a view of a PageAdmin: statements of a GET request time out after SECONDS."""

    @wraps(view)
    def shown(self: Any, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.method != "GET":
            return view(self, request, *args, **kwargs)
        try:
            with _limited(Queue.objects.database(), SECONDS):
                return view(self, request, *args, **kwargs)
        except OperationalError as error:
            if sqlstate(error) != QUERY_CANCELED:
                raise
        response: HttpResponse = self.render_page(
            request,
            "admin/django_pgqueue/too_slow.html",
            {"title": _("The database took too long"), "seconds": f"{SECONDS:g}", "is_list": True},
        )
        response.status_code = 503
        return response

    return shown


@contextmanager
def _limited(alias: str, seconds: float) -> Iterator[None]:
    nested = connections[alias].in_atomic_block
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('statement_timeout'), "
            "set_config('statement_timeout', %s, true)",
            [milliseconds(seconds)],
        )
        usual, _ = cursor.fetchone()
        yield
        if nested:  # the outer transaction continues: restore its timeout
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [usual])
