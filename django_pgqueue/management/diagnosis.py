"""The checks of ``pgqueue_doctor``. Each reports problems with remedies, and returns a summary."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import Error, connections, transaction
from django.db.models import Q
from django.template.defaultfilters import filesizeformat

from django_pgqueue.conf import settings
from django_pgqueue.database.blockers import blockers
from django_pgqueue.database.locks import milliseconds, settings_for
from django_pgqueue.ddl import inspection, planting
from django_pgqueue.engine.names import LIVE
from django_pgqueue.engine.statements import compose
from django_pgqueue.engine.subscriptions.reading import position_lost
from django_pgqueue.engine.times import moment, server_time
from django_pgqueue.engine.wording import age
from django_pgqueue.errors import TablesMissing
from django_pgqueue.maintenance import batches, lakes
from django_pgqueue.maintenance.round import is_lost
from django_pgqueue.management.base import counted
from django_pgqueue.models import Message, Process, Queue, Schedule
from django_pgqueue.tables.process import DEAD_AFTER

#: Maximum number of unread messages that are counted for a subscription.
MOST_COUNTED = 10_000


@dataclass(frozen=True)
class Limits:
    """The thresholds of the checks; times in seconds, sizes in bytes."""

    snapshot: float = 300.0
    dead_rows: int = 100_000
    clock: float = 2.0
    overdue: float = 120.0
    unbounded: int = 10 * 2**30
    #: Failed attempts allowed above ATTEMPTS_PER_QUEUE: maintenance removes them only in rounds.
    attempts: int = 100_000
    dead_after: float = DEAD_AFTER
    export: float = lakes.LATE
    #: Timeout of each statement of a check.
    timeout: float = 10.0


@dataclass(frozen=True)
class Finding:
    """The result of one check. ``action`` is empty if there is no problem."""

    check: str
    text: str
    action: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_problem(self) -> bool:
        return bool(self.action)


#: Takes a problem: its text, its remedy, and its values for scripts.
Report = Callable[[str, str, Mapping[str, Any]], None]
#: Calls the Report for each problem. Returns a summary, shown if there is no problem.
Check = Callable[[str, Limits, Report], str]


def examine(alias: str, limits: Limits) -> Iterator[Finding]:
    """Run every check, and yield the findings. A check that cannot run is a finding, too.

    Raises TablesMissing before the first migration, and the database's error if its server is down.
    """
    [row] = _rows(alias, "SELECT to_regclass('pgqueue_queue') IS NOT NULL AS migrated")
    if not row["migrated"]:
        raise TablesMissing("there is no table pgqueue_queue", alias)
    for name, check in CHECKS.items():
        try:
            yield from _run(name, check, alias, limits)
        except Error as error:
            if is_lost(alias):
                raise
            yield Finding(
                name,
                f"could not be checked: {str(error).strip().splitlines()[0]}",
                "Grant the user pg_read_all_stats, or try again when the server is less busy.",
            )


def _run(name: str, check: Check, alias: str, limits: Limits) -> list[Finding]:
    problems: list[Finding] = []

    def report(text: str, action: str, values: Mapping[str, Any]) -> None:
        problems.append(Finding(name, text, action, values))

    with (
        transaction.atomic(using=alias),
        connections[alias].cursor() as cursor,
        settings_for(cursor, statement_timeout=milliseconds(limits.timeout)),
    ):
        summary = check(alias, limits, report)
    return problems or [Finding(name, summary)]


def _rows(alias: str, sql: str, params: Any = None) -> list[dict[str, Any]]:
    with connections[alias].cursor() as cursor:
        cursor.execute(sql, params or ())
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _now(alias: str) -> dt.datetime:
    with connections[alias].cursor() as cursor:
        return server_time(cursor)


def _snapshots(alias: str, limits: Limits, report: Report) -> str:
    """Report old transactions and idle replication slots, which keep vacuum from removing rows."""
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
    for row in held:
        if row["seconds"] > limits.snapshot:
            report(
                f"{row['holder']} ({row['name']}, {row['state']}) has a transaction open for "
                f"{age(row['seconds'])}: rows deleted since then cannot be removed",
                f"Find out why it stays open, or end it: {row['remedy']}",
                row,
            )
    slots = (
        "SELECT slot_name, age(xmin)::bigint AS transactions FROM pg_replication_slots "
        "WHERE xmin IS NOT NULL AND NOT active"
    )
    for row in _rows(alias, slots):
        report(
            f"replication slot {row['slot_name']} is not in use: rows deleted in the last "
            f"{row['transactions']:,} transactions cannot be removed",
            f"Start its replica, or drop the slot: "
            f"SELECT pg_drop_replication_slot('{row['slot_name']}')",
            row,
        )
    return f"oldest open transaction: {age(held[0]['seconds']) if held else 'none'}"


def _dead_rows(alias: str, limits: Limits, report: Report) -> str:
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
    for row in found:
        if row["dead"] > max(limits.dead_rows, 2 * row["live"]):
            vacuumed = "never" if row["vacuumed"] is None else f"{age(row['vacuumed'])} ago"
            report(
                f"{row['name']} has {row['dead']:,} dead rows beside {row['live']:,} live ones; "
                f"last vacuumed {vacuumed}",
                f"End old snapshots first, then: VACUUM {row['name']}",
                row,
            )
    return f"at most {found[0]['dead'] if found else 0:,} in a hot table"


def _autovacuum(alias: str, limits: Limits, report: Report) -> str:
    """Report if autovacuum is off, or track_counts, which it needs."""
    servers = (
        "SELECT name, setting FROM pg_settings "
        "WHERE name IN ('autovacuum', 'track_counts') AND setting <> 'on'"
    )
    for row in _rows(alias, servers):
        report(
            f"{row['name']} is {row['setting']} for the whole server",
            f"ALTER SYSTEM SET {row['name']} = on; SELECT pg_reload_conf()",
            {row["name"]: row["setting"]},
        )
    tables = (
        "SELECT relname::text AS name FROM pg_class "
        "WHERE relname LIKE 'pgqueue\\_%%' AND relkind = 'r' "
        "AND reloptions @> ARRAY['autovacuum_enabled=false'] ORDER BY relname"
    )
    for row in _rows(alias, tables):
        report(
            f"autovacuum is off for {row['name']}",
            f"ALTER TABLE {row['name']} RESET (autovacuum_enabled)",
            row,
        )
    return "on"


def _consumers(alias: str, limits: Limits, report: Report) -> str:
    live = Process.objects.live(limits.dead_after, using=alias)
    need_none = Queue.objects.using(alias).filter(Q(paused=True) | Q(sources__isnull=False))
    known = {name for process in live for name in process.queues}
    known.update(need_none.values_list("name", flat=True))
    for each in Message.objects.using(alias).metrics_all():
        if each.visible and each.queue_name not in known:
            report(
                f"queue {each.queue_name} has {counted(each.visible, exact=each.exact)} to read, "
                f"the oldest sent {age(each.oldest_age)} ago, and no live consumer",
                f"Start one: manage.py runconsumer {each.queue_name}",
                {"queue": each.queue_name, "visible": each.visible},
            )
    return f"{len(live)} live; every queue with messages to read has one"


def _subscriptions(alias: str) -> list[Queue]:
    found = Queue.objects.using(alias).exclude(source=None).select_related("source")
    return list(found.order_by("name"))


def _positions(alias: str, limits: Limits, report: Report) -> str:
    """Report subscriptions that cannot read, that are behind for long, or that lost messages."""
    found = _subscriptions(alias)
    for queue in found:
        source: Any = queue.source
        lag, values = queue.lag(MOST_COUNTED), {"queue": queue.name, "source": source.name}
        if lag is None:
            report(
                f"subscription {queue.name} has no position in this database, which was restored "
                f"or replicated from another one: its consumers read nothing",
                f"Set one, behind the last message that it read: "
                f"{position_lost(queue.opened).remedy}",
                values,
            )
            continue
        values |= {"unread": lag.messages, "seconds": lag.seconds, "lost": lag.lost}
        if lag.seconds is not None and lag.seconds > queue.longest_wait:
            kept = source.retention is not None and lag.seconds > source.retention.total_seconds()
            held = f", and {source.name} keeps them beyond its retention" if kept else ""
            report(
                f"subscription {queue.name} is {age(lag.seconds)} behind: "
                f"{counted(lag.messages, exact=not lag.is_estimate)} of queue {source.name} unread"
                f"{held}",
                f"Start more consumers of it, or leave the messages out: manage.py pgqueue_seek "
                f"{queue.name} --start now. If nobody needs it any more, drop it: manage.py "
                f"pgqueue_drop {queue.name}",
                values,
            )
        if lag.lost:
            report(
                f"subscription {queue.name} has lost {counted(lag.lost)}, which queue "
                f"{source.name} removed after the subscription's keep_for",
                f"Start more consumers of it, or let it keep messages for longer: manage.py "
                f"pgqueue_alter {queue.name} --keep-for none",
                values,
            )
    return f"{len(found)}; none is behind for long, or has lost messages"


def _dead_leases(alias: str, limits: Limits, report: Report) -> str:
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
        report(
            f"process {row['process_id']} is dead and holds {counted(row['leases'])}",
            "Start a consumer or run manage.py pgqueue_maintain: both release the messages. "
            "Otherwise they become readable when their visibility timeout ends.",
            row,
        )
    return "none held by a dead process"


def _clock(alias: str, limits: Limits, report: Report) -> str:
    before = dt.datetime.now(dt.timezone.utc)
    now = _now(alias)
    took = dt.datetime.now(dt.timezone.utc) - before
    apart = (now - (before + took / 2)).total_seconds()
    if abs(apart) > limits.clock + took.total_seconds():
        report(
            f"the server's clock is {abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'} "
            f"this host's",
            "Synchronise both with NTP. Delays given as datetimes are off by this difference.",
            {"seconds": apart},
        )
    return f"{abs(apart):.1f} s apart"


def _sizes(alias: str, limits: Limits, report: Report) -> str:
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
    total = 0
    for row in found:
        size = row["messages"] + row["archive"]
        total += size
        if row["endless"] and size > limits.unbounded:
            report(
                f"queue {row['name']} has {filesizeformat(size)} and keeps its archive for ever",
                "Set the retention of the queue, in the admin or on the Queue in Python.",
                row,
            )
    return f"{filesizeformat(total)} in {len(found)} queues"


def _attempts(alias: str, limits: Limits, report: Report) -> str:
    """Report queues with many more failed attempts than maintenance keeps."""
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
        report(
            f"queue {row['name']} has the errors of more than {many:,} failed attempts, although "
            f"ATTEMPTS_PER_QUEUE is {kept:,}",
            "Remove the oldest: run manage.py pgqueue_maintain. Consumers also remove them, at "
            "least once an hour, unless MAINTENANCE_SECONDS is None.",
            {"queue": row["name"], "kept": kept},
        )
    [row] = _rows(alias, "SELECT pg_total_relation_size('pgqueue_attempt') AS size")
    return f"{filesizeformat(row['size'])} of errors"


def _schedules(alias: str, limits: Limits, report: Report) -> str:
    now = _now(alias)
    running = Process.objects.using(alias).exists()
    declared = Process.objects.declared(using=alias)
    active = Schedule.objects.timed(alias).filter(ended_at=None)
    for schedule in active.filter(paused=False):
        values = {"schedule": schedule.name}
        wait = (moment(schedule.tick) - now).total_seconds()
        if -wait > limits.overdue:
            report(
                f"schedule {schedule} was due {age(-wait)} ago",
                "Start any consumer: it sends the message. For cron expressions, install cronsim.",
                values,
            )
        if (sooner := schedule.sooner(now)) is not None:
            report(
                f"schedule {schedule} is due in {age(wait)}, but its times say "
                f"{age((sooner - now).total_seconds())}: the server's clock was probably ahead, "
                f"and then set back",
                "Start a consumer: it corrects the next tick within ten seconds.",
                values,
            )
        if running and schedule.declared is not None and schedule.name not in declared:
            report(
                f"schedule {schedule} is declared by no running consumer",
                "Start the consumer whose code declares the schedule. If no code declares it any "
                "more, delete the schedule in the admin.",
                values,
            )
    for schedule in active.exclude(error=""):
        report(
            f"schedule {schedule} cannot be sent: {schedule.error}",
            "Correct the schedule (in the admin or the code) or its queue, as the error says.",
            {"schedule": schedule.name},
        )
    ended = Schedule.objects.using(alias).exclude(ended_at=None).count()
    rest = f"; {ended} ended for lack of a declaration" if ended else ""
    return f"{active.count() + ended}; none is late{rest}"


def _batches(alias: str, limits: Limits, report: Report) -> str:
    """Report callbacks that cannot be sent, and batches that nothing sealed in time."""
    found = batches.health(alias)
    for name, each in found:
        if each.failing:
            report(
                f"{_batches_of(each.failing, name)} cannot send the callback; batch "
                f"{each.newest_failing}, to queue {each.then_queue}: {each.error}",
                "Correct the queue of the callback, as the error says. Consumers try again.",
                {"queue": name, "batches": each.failing, "newest": each.newest_failing},
            )
        if each.abandoned:
            report(
                f"{_batches_of(each.abandoned, name)} abandoned in the last day, the newest is "
                f"batch {each.newest_abandoned}: members may be missing",
                "Find out why the sender did not call seal(), and send the missing messages. If it "
                "needs more time, pass a longer open_for to open_batch().",
                {"queue": name, "batches": each.abandoned, "newest": each.newest_abandoned},
            )
    number = sum(each.open for _name, each in found)
    return f"{number:,} in progress; none is abandoned or cannot send its callback"


def _batches_of(number: int, queue: str) -> str:
    return f"{number:,} batch{'' if number == 1 else 'es'} of queue {queue}"


def _exports(alias: str, limits: Limits, report: Report) -> str:
    """Report lakes whose exports fail or are late, or whose columns do not fit the bodies."""
    found = lakes.health(alias, 100_000)
    for lake in found:
        held = f"; retention keeps {counted(lake.held)} for it" if lake.held else ""
        values = {"lake": lake.path, "behind": lake.behind, "held": lake.held}
        command = f"manage.py pgqueue_export {lake.path}"
        if lake.failures:
            report(
                f"exports to {lake.path} fail (failures since the last success: {lake.failures}): "
                f"{lake.error}{held}",
                f"Run one and read its error: {command}. If nobody needs the lake any more, unset "
                f'"holds retention" in the admin.',
                values,
            )
        elif lake.is_late(limits.export):
            report(
                f"lake {lake.path} is {age(lake.seconds)} behind{held}",
                f"Run the export: {command}. Find out why it does not run regularly.",
                values,
            )
        if lake.misfits > lakes.MISFITS:
            report(
                f"{lake.misfits:.1%} of the bodies in the last run of lake {lake.path} do not fit "
                f"their columns",
                "Look at the column _corrupt_record, and change the schema: "
                f"{command} --body-schema QUEUE=evolve",
                {"lake": lake.path, "misfits": lake.misfits},
            )
    return f"{len(found)}; none fails or is late, and the bodies fit their columns"


def _objects(alias: str, limits: Limits, report: Report) -> str:
    for each in inspection.damage(connections[alias]):
        report(str(each), each.remedy, {"kind": each.kind, "name": each.name})
    return "triggers, functions and tables are as the migrations made them"


def _schema(alias: str, limits: Limits, report: Report) -> str:
    """Report roles that may plant functions where our statements find them, and planted ones."""
    with connections[alias].cursor() as cursor:
        roles, functions = planting.may_plant(cursor), planting.planted(cursor)
    for schema, role, owner, owner_needs in roles:
        first = f"GRANT CREATE ON SCHEMA {schema} TO {owner}; " if owner_needs else ""
        report(
            f"{'every role' if role == 'PUBLIC' else f'role {role}'} may create functions in "
            f"schema {schema}, which whoever sends or reads would call with rights of its own",
            f"{first}REVOKE CREATE ON SCHEMA {schema} FROM {role}",
            {"schema": schema, "role": role},
        )
    for kind, name, owner in functions:
        report(
            f"{kind.lower()} {name} of role {owner} has the name of one that our statements call, "
            f"and may be called in its place",
            f"Look at it, and at who called it. Then: DROP {kind} {name}",
            {"kind": kind, "name": name, "owner": owner},
        )
    return "only the owner creates functions where the queues' statements look them up"


def _locks(alias: str, limits: Limits, report: Report) -> str:
    """Report sessions that keep others waiting, or that have locked our tables."""
    for each in blockers(alias):
        tables = f" and has locked {', '.join(each.tables)}" if each.tables else ""
        who = " ".join(part for part in (each.user, each.application) if part)
        report(
            f"session {each.pid} ({who}, {each.state}) keeps {each.waiting} sessions "
            f"waiting{tables}, in a transaction open for {age(each.seconds)}: {each.statement}",
            f"Find out why it stays open, or end it: SELECT pg_terminate_backend({each.pid})",
            each._asdict(),
        )
    return "no session keeps others waiting"


CHECKS: dict[str, Check] = {
    # First, since a lock makes other checks fail.
    "locks": _locks,
    "objects": _objects,
    "schema": _schema,
    "snapshot": _snapshots,
    "dead rows": _dead_rows,
    "autovacuum": _autovacuum,
    "consumers": _consumers,
    "subscriptions": _positions,
    "leases": _dead_leases,
    "clock": _clock,
    "sizes": _sizes,
    "attempts": _attempts,
    "schedules": _schedules,
    "batches": _batches,
    "exports": _exports,
}
