"""The checks of ``pgqueue_doctor``. Each problem comes with a remedy."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from django.db import Error, connections, transaction

from django_pgqueue.conf import settings
from django_pgqueue.ddl import LIVE, inspection, moment, server_time
from django_pgqueue.ddl.locks import milliseconds, settings_for
from django_pgqueue.engine.statements import compose
from django_pgqueue.errors import TablesMissing
from django_pgqueue.maintenance.round import is_lost
from django_pgqueue.management.base import counted
from django_pgqueue.models import Message, Process, Queue, Schedule
from django_pgqueue.wording import age

__all__ = ["Finding", "Limits", "examine"]


@dataclass(frozen=True)
class Limits:
    """The thresholds of the checks; times in seconds, sizes in bytes."""

    snapshot: float = 300.0
    dead_rows: int = 100_000
    clock: float = 2.0
    overdue: float = 120.0
    unbounded: int = 10 * 2**30
    #: Failed attempts beyond ATTEMPTS_PER_QUEUE: some pile up between two rounds of maintenance.
    attempts: int = 100_000
    dead_after: float = 12.0
    #: Statement timeout of one check.
    timeout: float = 10.0


@dataclass(frozen=True)
class Finding:
    """The result of one check. ``action`` is empty if there is no problem."""

    check: str
    text: str
    action: str = ""
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def is_problem(self) -> bool:
        return bool(self.action)


Check = Callable[[str, Limits], Iterator[Finding]]


def examine(alias: str, limits: Limits) -> Iterator[Finding]:
    """Run every check. A check that fails to run is reported as a finding.

    Raises TablesMissing, and the database's error when there is no connection.
    """
    [row] = _rows(alias, "SELECT to_regclass('pgqueue_queue') IS NOT NULL AS migrated")
    if not row["migrated"]:
        raise TablesMissing("there is no table pgqueue_queue", alias)
    for name, check in CHECKS.items():
        try:
            with (
                transaction.atomic(using=alias),
                connections[alias].cursor() as cursor,
                settings_for(cursor, statement_timeout=milliseconds(limits.timeout)),
            ):
                found = list(check(alias, limits))
        except Error as error:
            if is_lost(alias):
                raise
            text = str(error).strip().splitlines()[0]
            found = [
                Finding(
                    name,
                    f"could not be checked: {text}",
                    "Grant the user pg_read_all_stats, or try again when the server is less busy.",
                )
            ]
        yield from found


def _rows(alias: str, sql: str, params: Any = None) -> list[dict[str, Any]]:
    with connections[alias].cursor() as cursor:
        cursor.execute(sql, params or ())
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _now(alias: str) -> dt.datetime:
    with connections[alias].cursor() as cursor:
        return server_time(cursor)


def _snapshots(alias: str, limits: Limits) -> Iterator[Finding]:
    """Old snapshots: dead rows cannot be removed while an older snapshot may see them."""
    held = _rows(
        alias,
        """
        SELECT 'session ' || pid AS holder, coalesce(state, 'active') AS state,
               left(coalesce(nullif(application_name, ''), usename::text), 60) AS name,
               extract(epoch FROM clock_timestamp() - xact_start)::float AS seconds,
               format('SELECT pg_terminate_backend(%%s)', pid) AS remedy
        FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
          AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
          AND backend_type = 'client backend'
        UNION ALL
        SELECT 'prepared transaction ' || gid, 'prepared', owner::text,
               extract(epoch FROM clock_timestamp() - prepared)::float,
               format('ROLLBACK PREPARED %%L', gid)
        FROM pg_prepared_xacts WHERE database = current_database()
        ORDER BY seconds DESC
        """,
    )
    old = [row for row in held if row["seconds"] > limits.snapshot]
    for row in old:
        yield Finding(
            "snapshot",
            f"{row['holder']} ({row['name']}, {row['state']}) has a transaction open for "
            f"{age(row['seconds'])}: rows deleted since then cannot be removed",
            f"End it, or see why it stays open: {row['remedy']}",
            row,
        )
    slots = _rows(
        alias,
        "SELECT slot_name, age(xmin)::bigint AS transactions FROM pg_replication_slots "
        "WHERE xmin IS NOT NULL AND NOT active",
    )
    for row in slots:
        yield Finding(
            "snapshot",
            f"replication slot {row['slot_name']} is not in use and holds back vacuum by "
            f"{row['transactions']:,} transactions",
            f"Start its replica, or: SELECT pg_drop_replication_slot('{row['slot_name']}')",
            row,
        )
    if not old and not slots:
        oldest = age(held[0]["seconds"]) if held else "none"
        yield Finding("snapshot", f"oldest transaction of others: {oldest}")


def _dead_rows(alias: str, limits: Limits) -> Iterator[Finding]:
    found = _rows(
        alias,
        """
        SELECT relname::text AS name, n_dead_tup AS dead, n_live_tup AS live,
               extract(epoch FROM clock_timestamp()
                   - greatest(last_autovacuum, last_vacuum))::float AS vacuumed
        FROM pg_stat_user_tables WHERE relname = ANY(%s) ORDER BY n_dead_tup DESC
        """,
        [list(LIVE)],
    )
    bad = [row for row in found if row["dead"] > max(limits.dead_rows, 2 * row["live"])]
    for row in bad:
        yield Finding(
            "dead rows",
            f"{row['name']} has {row['dead']:,} dead rows beside {row['live']:,} live ones; last "
            f"vacuumed {_ago(row['vacuumed'])}",
            f"End old snapshots first, then: VACUUM {row['name']}",
            row,
        )
    if not bad:
        most = found[0] if found else {"dead": 0}
        yield Finding("dead rows", f"at most {most['dead']:,} in a hot table")


def _ago(seconds: float | None) -> str:
    return "never" if seconds is None else f"{age(seconds)} ago"


def _autovacuum(alias: str, limits: Limits) -> Iterator[Finding]:
    [row] = _rows(
        alias,
        "SELECT current_setting('autovacuum') AS autovacuum, "
        "current_setting('track_counts') AS track_counts",
    )
    for setting, value in row.items():
        if value != "on":
            yield Finding(
                "autovacuum",
                f"{setting} is {value} for the whole server",
                f"ALTER SYSTEM SET {setting} = on; SELECT pg_reload_conf()",
                {setting: value},
            )
    off = _rows(
        alias,
        "SELECT relname::text AS name FROM pg_class "
        "WHERE relname LIKE 'pgqueue\\_%%' AND relkind = 'r' "
        "AND reloptions @> ARRAY['autovacuum_enabled=false'] ORDER BY relname",
    )
    for table in off:
        yield Finding(
            "autovacuum",
            f"autovacuum is off for {table['name']}",
            f"ALTER TABLE {table['name']} RESET (autovacuum_enabled)",
            table,
        )
    if not off and set(row.values()) == {"on"}:
        yield Finding("autovacuum", "on")


def _consumers(alias: str, limits: Limits) -> Iterator[Finding]:
    live = Process.objects.live(limits.dead_after, using=alias)
    served = {name for process in live for name in process.queues}
    paused = set(Queue.objects.using(alias).filter(paused=True).values_list("name", flat=True))
    dead_letters = set(
        Queue.objects.using(alias).filter(sources__isnull=False).values_list("name", flat=True)
    )
    alone = [
        each
        for each in Message.objects.using(alias).metrics_all()
        if each.visible and each.queue_name not in served | paused | dead_letters
    ]
    for each in alone:
        yield Finding(
            "consumers",
            f"queue {each.queue_name} has {counted(each.visible, exact=each.exact)} to read, the "
            f"oldest sent {age(each.oldest_age)} ago, and no live consumer",
            f"Start one: manage.py runconsumer {each.queue_name}",
            {"queue": each.queue_name, "visible": each.visible},
        )
    if not alone:
        yield Finding("consumers", f"{len(live)} live; no queue with work is without one")


def _dead_leases(alias: str, limits: Limits) -> Iterator[Finding]:
    found = _rows(
        alias,
        f"""
        SELECT process_id, count(*) AS leases FROM pgqueue_live
        WHERE process_id IS NOT NULL AND {compose("places/in_flight", {})} AND NOT EXISTS (
            SELECT FROM pgqueue_process p
            WHERE p.id = process_id AND p.heartbeat_at > statement_timestamp() - %s)
        GROUP BY process_id ORDER BY process_id
        """,
        [dt.timedelta(seconds=limits.dead_after)],
    )
    for row in found:
        yield Finding(
            "leases",
            f"process {row['process_id']} is dead and holds {counted(row['leases'])}",
            "A running consumer or manage.py pgqueue_maintain gives them back. Otherwise they "
            "become readable when their visibility timeout ends.",
            row,
        )
    if not found:
        yield Finding("leases", "none of a dead process")


def _clock(alias: str, limits: Limits) -> Iterator[Finding]:
    before = dt.datetime.now(dt.timezone.utc)
    now = _now(alias)
    after = dt.datetime.now(dt.timezone.utc)
    apart = (now - (before + (after - before) / 2)).total_seconds()
    if abs(apart) > limits.clock + (after - before).total_seconds():
        yield Finding(
            "clock",
            f"the server's clock is {abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'} "
            f"this host's",
            "Synchronise both with NTP. Delays given as datetimes are off by this difference.",
            {"seconds": apart},
        )
    else:
        yield Finding("clock", f"{abs(apart):.1f} s apart", values={"seconds": apart})


def _sizes(alias: str, limits: Limits) -> Iterator[Finding]:
    found = _rows(
        alias,
        """
        SELECT q.name, q.retention IS NULL AS endless,
               coalesce((SELECT sum(pg_total_relation_size(relid))::bigint FROM pg_partition_tree(
                   to_regclass('pgqueue_message_q' || q.id))), 0) AS messages,
               coalesce((SELECT sum(pg_total_relation_size(relid))::bigint FROM pg_partition_tree(
                   to_regclass('pgqueue_archive_q' || q.id))), 0) AS archive
        FROM pgqueue_queue q ORDER BY 3 DESC LIMIT 1000
        """,
    )
    large = [
        row
        for row in found
        if row["endless"] and row["messages"] + row["archive"] > limits.unbounded
    ]
    for row in large:
        yield Finding(
            "sizes",
            f"queue {row['name']} has {_size(row['messages'] + row['archive'])} and keeps its "
            f"archive for ever",
            "Give it a retention, in the admin or by pgqueue_create --retention.",
            row,
        )
    if not large:
        total = sum(row["messages"] + row["archive"] for row in found)
        yield Finding("sizes", f"{_size(total)} in {len(found)} queues")


def _attempts(alias: str, limits: Limits) -> Iterator[Finding]:
    """Stored failed attempts: maintenance keeps ATTEMPTS_PER_QUEUE of them."""
    kept = settings.ATTEMPTS_PER_QUEUE
    many = kept + limits.attempts
    found = _rows(
        alias,
        """
        SELECT q.name FROM pgqueue_queue q WHERE EXISTS (
            SELECT FROM pgqueue_attempt a WHERE a.queue_id = q.id
            ORDER BY a.at DESC, a.id DESC OFFSET %s LIMIT 1) ORDER BY q.name
        """,
        [many],
    )
    for row in found:
        yield Finding(
            "attempts",
            f"queue {row['name']} has the errors of more than {many:,} failed attempts, and "
            f"ATTEMPTS_PER_QUEUE is {kept:,}",
            "Remove the oldest: manage.py pgqueue_maintain. Consumers also do it, at least once "
            "an hour, unless MAINTENANCE_SECONDS is None.",
            {"queue": row["name"], "kept": kept},
        )
    if not found:
        [row] = _rows(alias, "SELECT pg_total_relation_size('pgqueue_attempt') AS size")
        yield Finding("attempts", f"{_size(row['size'])} of errors", values=row)


def _size(number: float) -> str:
    """Format a number of bytes.

    >>> _size(0), _size(20_000), _size(5 * 2**30)
    ('0 B', '20 kB', '5.0 GB')
    """
    if number < 1024:
        return f"{number:.0f} B"
    for unit in ("kB", "MB"):
        number /= 1024
        if number < 1024:
            return f"{number:.0f} {unit}"
    return f"{number / 1024:,.1f} GB"


def _schedules(alias: str, limits: Limits) -> Iterator[Finding]:
    now = _now(alias)
    active = Schedule.objects.timed(alias).filter(ended_at=None)
    late = now - dt.timedelta(seconds=limits.overdue)
    found = 0
    for schedule in active.filter(paused=False, next_run_at__lt=late):
        found += 1
        overdue = (now - moment(schedule.tick)).total_seconds()
        yield Finding(
            "schedules",
            f"schedule {schedule} was due {age(overdue)} ago",
            "Start any consumer: it sends the message (cron expressions need cronsim).",
            {"schedule": schedule.name},
        )
    for schedule in active.filter(paused=False):
        if (sooner := schedule.sooner(now)) is not None:
            found += 1
            row, times = moment(schedule.tick) - now, sooner - now
            yield Finding(
                "schedules",
                f"schedule {schedule} is due in {age(row.total_seconds())}, but its times say "
                f"{age(times.total_seconds())}, as after a server's clock that ran ahead",
                "Start a consumer: it corrects the next tick within ten seconds.",
                {"schedule": schedule.name},
            )
    for schedule in active.exclude(error=""):
        found += 1
        yield Finding(
            "schedules",
            f"schedule {schedule} cannot be sent: {schedule.error}",
            "Correct what the error names: the schedule in the admin or the code, or its queue.",
            {"schedule": schedule.name},
        )
    running = Process.objects.using(alias).exists()
    declared = Process.objects.declared(using=alias)
    for name in active.filter(declared__isnull=False, paused=False).values_list("name", flat=True):
        if running and name not in declared:
            found += 1
            yield Finding(
                "schedules",
                f"schedule {name} is declared by no running consumer",
                "Start the consumer whose code declares it. If there is none any more, delete it "
                "in the admin.",
                {"schedule": name},
            )
    if not found:
        ended = Schedule.objects.using(alias).exclude(ended_at=None).count()
        rest = f"; {ended} ended with its declaration" if ended else ""
        yield Finding("schedules", f"{active.count() + ended}; none is late{rest}")


def _objects(alias: str, limits: Limits) -> Iterator[Finding]:
    found = inspection.damage(connections[alias])
    for each in found:
        yield Finding("objects", str(each), each.remedy, {"kind": each.kind, "name": each.name})
    if not found:
        yield Finding("objects", "triggers, functions and tables are as the migrations made them")


CHECKS: dict[str, Check] = {
    "objects": _objects,
    "snapshot": _snapshots,
    "dead rows": _dead_rows,
    "autovacuum": _autovacuum,
    "consumers": _consumers,
    "leases": _dead_leases,
    "clock": _clock,
    "sizes": _sizes,
    "attempts": _attempts,
    "schedules": _schedules,
}
