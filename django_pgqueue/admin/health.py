"""The health page: dead rows, sessions that keep them from removal, retention."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.db import connections
from django.db.models import QuerySet
from django.http import HttpResponse
from django.template.defaultfilters import filesizeformat
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue import ddl
from django_pgqueue.admin.overview import LONG_TRANSACTION
from django_pgqueue.admin.page import Page
from django_pgqueue.admin.wording import EMPTY, moment, visible
from django_pgqueue.models import PurgeMark, Queue
from django_pgqueue.wording import age, amount, length_text

__all__ = ["HealthPage"]

#: A table needs a vacuum if it has more dead rows than this, and more per live row than this.
DEAD_ROWS, DEAD_SHARE = 10_000, 2.0

KINDS = {
    "session": gettext_lazy("session"),
    "prepared": gettext_lazy("prepared transaction"),
    "slot": gettext_lazy("replication slot"),
}

_HOLDERS = """
    SELECT 'session' AS kind, pid::text AS number, coalesce(usename, '') AS who,
           coalesce(application_name, ''), coalesce(state, ''),
           extract(epoch FROM clock_timestamp() - xact_start)::float AS seconds
    FROM pg_stat_activity
    WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'
      AND datname = current_database()
    UNION ALL
    SELECT 'prepared', '', owner, gid, 'prepared',
           extract(epoch FROM clock_timestamp() - prepared)::float
    FROM pg_prepared_xacts WHERE database = current_database()
    UNION ALL
    SELECT 'slot', '', slot_name, coalesce(plugin, slot_type),
           CASE WHEN active THEN 'active' ELSE 'inactive' END, NULL
    FROM pg_replication_slots WHERE xmin IS NOT NULL OR catalog_xmin IS NOT NULL
    ORDER BY seconds DESC NULLS LAST
    LIMIT 10
"""

_TABLES = """
    SELECT s.relname, s.n_live_tup, s.n_dead_tup, pg_total_relation_size(s.relid),
           greatest(s.last_autovacuum, s.last_vacuum), greatest(s.last_autoanalyze, s.last_analyze)
    FROM pg_stat_user_tables s
    WHERE s.relid = ANY(ARRAY(SELECT to_regclass(name)::oid FROM unnest(%s::text[]) AS name))
    ORDER BY s.n_dead_tup DESC, s.relname
"""

_SERVER = """
    SELECT current_setting('server_version'), pg_notification_queue_usage(),
           (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
           current_setting('max_connections')::int, pg_database_size(current_database())
"""


class Holder(NamedTuple):
    """A transaction or replication slot that keeps dead rows from being removed."""

    what: str
    who: str
    application: str
    state: str
    open_for: str
    bad: bool


class Table(NamedTuple):
    """One of the hot tables."""

    name: str
    live: str
    dead: str
    size: str
    vacuumed: str
    analyzed: str
    bad: bool


def holders(alias: str) -> list[Holder]:
    """The oldest transactions, prepared transactions and replication slots. Omits their SQL."""
    return [
        Holder(
            f"{KINDS[kind]} {number}".strip(),
            visible(who),
            visible(application),
            state,
            age(seconds),
            seconds is None or seconds > LONG_TRANSACTION,
        )
        for kind, number, who, application, state, seconds in _rows(alias, _HOLDERS)
    ]


def tables(alias: str) -> list[Table]:
    """Live and dead rows of the hot tables, from PostgreSQL's statistics."""
    return [
        Table(
            name,
            amount(live),
            amount(dead),
            str(filesizeformat(size)),
            moment(vacuumed),
            moment(analyzed),
            dead > DEAD_ROWS and dead > DEAD_SHARE * live,
        )
        for name, live, dead, size, vacuumed, analyzed in _rows(alias, _TABLES, [list(ddl.LIVE)])
    ]


def server(alias: str) -> list[tuple[str, str, bool]]:
    """The server's version and usage as (name, value, is bad)."""
    [(version, notifications, sessions, most, size)] = _rows(alias, _SERVER)
    return [
        ("PostgreSQL", version, False),
        (_("Notification queue in use"), f"{notifications:.1%}", notifications > 0.5),
        (
            _("Connections"),
            _("%(number)s of %(most)s") % {"number": sessions, "most": most},
            sessions > 0.9 * most,
        ),
        (_("Size of the database"), str(filesizeformat(size)), False),
    ]


def retention(queues: QuerySet[Queue]) -> list[dict[str, Any]]:
    """Retention and last removal of each queue with a retention."""
    kept = list(queues.filter(retention__isnull=False).order_by("name"))
    marks = {
        mark.queue_id: mark for mark in PurgeMark.objects.filter(queue_id__in=[q.pk for q in kept])
    }
    return [
        {
            "queue": queue.name,
            "kept": length_text(queue.retention) if queue.retention else EMPTY,
            "removed": moment(marks[queue.pk].purged_at) if queue.pk in marks else EMPTY,
        }
        for queue in kept
    ]


def _rows(alias: str, sql: str, params: Any = None) -> list[tuple[Any, ...]]:
    with connections[alias].cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())


class HealthPage(Page):
    """Dead rows, the sessions that keep them from removal, and retention."""

    name = "health"
    route = "health/"
    permission = "view_health"
    template = "health"

    def answer(self) -> HttpResponse:
        alias = Queue.objects.database()
        return self.render_live(
            {
                "title": _("Database"),
                "holders": holders(alias),
                "tables": tables(alias),
                "server": server(alias),
                "retention": retention(self.owner.queues(self.request)),
            },
        )
