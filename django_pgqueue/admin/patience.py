"""Time limits for the admin's pages and actions, and the page that is shown after a timeout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from django.db import (
    DatabaseError,
    InterfaceError,
    OperationalError,
    connections,
    transaction,
)
from django.http import HttpRequest, HttpResponse
from django.template.response import SimpleTemplateResponse
from django.utils.translation import gettext as _

from django_pgqueue.admin.shown import used
from django_pgqueue.audit import actor
from django_pgqueue.database.blockers import Blocker, blockers
from django_pgqueue.database.locks import milliseconds, set_locally
from django_pgqueue.engine.sqlstates import LOCK_NOT_AVAILABLE, QUERY_CANCELED, sqlstate
from django_pgqueue.models import Queue

#: The statement timeout of a page, and the lock timeout of an action, in seconds.
SECONDS = 10.0
#: The statement timeout of an action, in seconds. An action may change a million messages.
ACTION_SECONDS = 60.0

#: SQLSTATEs, by their beginnings, of a server that is down, starting or full. psycopg has none for
#: a connection that it cannot open or has lost.
UNREACHABLE = ("08", "57P", "53300")

_IDLE = 0  # libpq's status of a connection outside a transaction


def patiently(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Decorate a view of a PageAdmin with timeouts for its statements.

    A GET request is one transaction with a statement timeout of SECONDS. Any other request keeps
    its own transactions; each has a lock timeout of SECONDS and a statement timeout of
    ACTION_SECONDS.
    """

    @wraps(view)
    def limited_view(self: Any, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        alias = Queue.objects.database()
        if request.method in ("GET", "HEAD"):
            used(request)  # Before the transaction, in which it would need a savepoint.
        limits = (
            limited(alias, SECONDS)
            if request.method in ("GET", "HEAD")
            else connections[alias].execute_wrapper(_limit_transaction)
        )
        try:
            with limits:
                shown = view(self, request, *args, **kwargs)
                # Render the template here, since it may run queries too.
                return shown.render() if isinstance(shown, SimpleTemplateResponse) else shown
        except (OperationalError, InterfaceError) as error:
            told = _told(request, alias, error)
        response: HttpResponse = self.render_page(
            request, "admin/django_pgqueue/too_slow.html", {"is_list": True, **told}
        )
        response.status_code = 503
        return response

    return limited_view


def _told(request: HttpRequest, alias: str, error: Exception) -> dict[str, Any]:
    """Return what the page says about an error of the database. Raises an unknown error."""
    state = sqlstate(error)
    may_see = request.user.has_perm("django_pgqueue.view_health")
    if state is None or state.startswith(UNREACHABLE):
        told = str(error).strip().partition("\n")[0] if may_see else ""
        return {"title": _("The database of the queues does not answer"), "error": told}
    if state not in (QUERY_CANCELED, LOCK_NOT_AVAILABLE):
        raise error
    is_locked = state == LOCK_NOT_AVAILABLE
    title = _("Another session blocks the page") if is_locked else _("The database took too long")
    return {
        "title": title,
        "seconds": f"{SECONDS:g}",
        "is_locked": is_locked,
        "blockers": _blockers(alias),
        "may_see": may_see,
    }


def _blockers(alias: str) -> list[Blocker]:
    """Return the sessions that block others; none if the server refuses to tell."""
    try:
        with limited(alias, 1.0):
            return blockers(alias)
    except DatabaseError:
        return []


def _limit_transaction(
    execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]
) -> Any:
    """Run a statement. If it is the first of its transaction, set the timeouts before it."""
    connection = context["connection"]
    if not connection.in_atomic_block:
        with transaction.atomic(using=connection.alias):
            return _limit_transaction(execute, sql, params, many, context)
    if connection.connection.info.transaction_status == _IDLE:
        # Use psycopg's cursor: Django's would call this function again.
        set_locally(
            context["cursor"].cursor,
            lock_timeout=milliseconds(SECONDS),
            statement_timeout=milliseconds(ACTION_SECONDS),
            **{"pgqueue.actor": actor().as_json()},  # for the triggers of the audit log
        )
    return execute(sql, params, many, context)


@contextmanager
def unlimited(alias: str) -> Iterator[None]:
    """Run the block without the timeouts of an action, for statements that refuse a transaction.

    The block must itself take care not to wait for locks.
    """
    connection = connections[alias]
    wrappers, connection.execute_wrappers = connection.execute_wrappers, []
    try:
        yield
    finally:
        connection.execute_wrappers = wrappers


@contextmanager
def limited(alias: str, seconds: float) -> Iterator[None]:
    """Run the block in a transaction with a statement timeout of ``seconds``.

    The lock timeout is a little shorter, so that the error tells a lock from a slow statement.
    """
    nested = connections[alias].in_atomic_block
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('statement_timeout'), current_setting('lock_timeout'), "
            "set_config('statement_timeout', %s, true), set_config('lock_timeout', %s, true), "
            # It would compile statements whose costs the planner overestimates, for seconds.
            "set_config('jit', 'off', true)",
            [milliseconds(seconds), milliseconds(0.9 * seconds)],
        )
        usual = cursor.fetchone()[:2]
        yield
        if nested:  # The outer transaction continues: restore its timeouts.
            cursor.execute(
                "SELECT set_config('statement_timeout', %s, true), "
                "set_config('lock_timeout', %s, true)",
                usual,
            )
