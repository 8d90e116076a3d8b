"""The rights of each ``pgqueue_grants --queue`` role on each table, by queue."""

from __future__ import annotations

import datetime as dt
from functools import partial

import pytest
from django.db import DatabaseError, IntegrityError
from django.utils import timezone

from django_pgqueue import queue
from django_pgqueue.ddl.grants import KINDS
from django_pgqueue.engine.names import MESSAGE
from django_pgqueue.engine.sqlstates import sqlstate
from django_pgqueue.errors import UntrustedSource
from django_pgqueue.models import (
    Attempt,
    AuditEntry,
    Batch,
    BatchPart,
    BulkAction,
    GroupSetting,
    Message,
    Note,
    PendingWait,
    Queue,
    Schedule,
    Step,
)
from django_pgqueue.queues.bulk import Kind
from tests.conftest import rolled_back, run_sql
from tests.management.calling import call
from tests.management.roles import acting, refused

pytestmark = pytest.mark.usefixtures("committed")

INSUFFICIENT_PRIVILEGE = "42501"

#: The letters mean SELECT, INSERT, UPDATE and DELETE: on rows of the role's queue / of another
#: queue. The number sign is the queue's id. docs/grants.md has the same table.
RIGHTS = """
table                   sender      consumer    operator    analyst     spark
pgqueue_queue           S/S         S/S         SU/SU       S/S         S/S
pgqueue_binding         S/S         S/S         SIUD/SIUD   S/S         S/S
pgqueue_message         -/-         -/-         -/-         -/-         -/-
pgqueue_message_q#      I/-         SID/-       SID/-       S/-         SID/-
pgqueue_archive         -/-         -/-         -/-         -/-         -/-
pgqueue_archive_q#      -/-         SI/-        SID/-       S/-         SI/-
pgqueue_ready           I/I         SIUD/SIUD   SIUD/SIUD   S/S         SIUD/SIUD
pgqueue_deferred        I/I         SIUD/SIUD   SIUD/SIUD   S/S         SIUD/SIUD
pgqueue_waiting         I/I         SIUD/SIUD   SIUD/SIUD   S/S         SIUD/SIUD
pgqueue_recheck         I/I         SIUD/SIUD   SIUD/SIUD   S/S         SIUD/SIUD
pgqueue_lease           -/-         SIUD/SIUD   SIUD/SIUD   S/S         SIUD/SIUD
pgqueue_cursor          -/-         SIUD/SIUD   SIUD/SIUD   S/S         SIUD/SIUD
pgqueue_group           -/-         SIUD/SIUD   SIUD/SIUD   S/S         SIUD/SIUD
pgqueue_group_setting   -/-         S/S         SIUD/SI     S/S         S/S
pgqueue_claim           SIUD/SIUD   SIUD/SIUD   SIUD/SIUD   S/S         SIUD/SIUD
pgqueue_unlogged        S/S         SI/SI       SI/SI       S/S         SI/SI
pgqueue_process         -/-         SIUD/SIUD   SIUD/SIUD   S/S         SIUD/SIUD
pgqueue_history         -/-         SIU/SIU     SIU/SIU     S/S         SIU/SIU
pgqueue_mark            -/-         SI/SI       SIUD/SIUD   S/S         SI/SI
pgqueue_acknowledgement -/-         -/-         SIUD/SIUD   S/S         S/S
pgqueue_attempt         -/-         SID/-       SID/-       S/-         SID/-
pgqueue_step            -/-         SIUD/-      SIUD/-      S/-         SIUD/-
pgqueue_note            -/-         SIUD/-      SIUD/-      S/-         SIUD/-
pgqueue_wait            -/-         SIUD/SIUD   SIUD/SIUD   S/S         SIUD/SIUD
pgqueue_signal          -/-         SIUD/SIUD   SIUD/SIUD   S/S         SIUD/SIUD
pgqueue_batch           SI/-        SID/-       SID/-       S/-         SID/-
pgqueue_batch_part      SI/-        SIUD/-      SIUD/-      S/-         SIUD/-
pgqueue_schedule        -/-         SIU/-       SIUD/-      S/-         SIU/-
pgqueue_bulk_action     -/-         -/-         SIUD/-      S/-         S/-
pgqueue_bulk_action_part -/-         -/-         SIUD/-      S/-         S/-
pgqueue_audit           -/-         -/-         S/-         S/-         S/-
pgqueue_rollup          -/-         -/-         S/S         S/S         SIUD/SIUD
pgqueue_rollup_run      -/-         -/-         S/S         S/S         SIUD/SIUD
pgqueue_lake            -/-         -/-         S/S         S/S         SIUD/SIUD
pgqueue_export_run      -/-         -/-         S/S         S/S         SIUD/SIUD
pgqueue_purge_mark      -/-         -/-         S/S         S/S         S/S
pgqueue_maintenance     -/-         -/-         -/-         -/-         -/-
pgqueue_staging         -/-         -/-         -/-         -/-         SIUD/SIUD
pgqueue_spark_txn       -/-         -/-         -/-         -/-         SIUD/SIUD
pgqueue_stream          -/-         -/-         -/-         -/-         SIUD/SIUD
pgqueue_refusal         -/-         -/-         -/-         -/-         SIUD/SIUD
"""
_HEAD, *_ROWS = (line.split() for line in RIGHTS.strip().splitlines())
#: The columns of a message that a role may set; the server sets the others.
SENT = ("id", "queue_id", "scheduled_at", "priority", "group_key", "unique_key", "headers", "body")
#: The tables whose rows are parts of another table's row.
_PARTS = {
    "pgqueue_bulk_action_part": ("pgqueue_bulk_action", "bulk_action_id"),
    "pgqueue_batch_part": ("pgqueue_batch", "batch_id"),
}


@pytest.fixture
def one_of_each(queues: None) -> None:
    """Create rows for two queues in every table whose rows belong to a queue."""
    for name in ("orders", "mails"):
        found = Queue.objects.get(name=name)
        queue(name).archive(queue(name).send("done"))
        pk = queue(name).send("waits")
        Attempt.objects.create(queue=found, message_id=pk, attempt=1)
        Step.objects.create(queue=found, message_id=pk, name="charge")
        Note.objects.create(queue=found, message_id=pk)
        PendingWait.objects.create(queue=found, message_id=pk, name="sleep", until=timezone.now())
        Schedule.objects.create(name=name, queue=found, interval=dt.timedelta(days=1))
        GroupSetting.objects.create(queue=found, group_key="g", limit=5)
        BulkAction.objects.begin(found, Kind.PURGE, [pk], {})
        BatchPart.objects.create(batch=Batch.objects.create(queue=found), first=0, ids=[pk])


def statements(table: str, name: str) -> dict[str, str]:
    """A statement for each right, on a queue's rows. The INSERT repeats an existing row."""
    pk = Queue.objects.get(name=name).pk
    table, rows = table.replace("#", str(pk)), f"queue_id = {pk}"
    if table == "pgqueue_queue":
        rows = f"id = {pk}"
    elif table in _PARTS:
        whole, column = _PARTS[table]
        [(of,)] = run_sql(f"SELECT id FROM {whole} WHERE queue_id = %s", [pk])
        rows = f"{column} = {of}"
    found = run_sql(
        "SELECT attname::text FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0",
        [table],
    )
    columns = [column for (column,) in found]
    if rows.split()[0] not in columns:
        rows = "true"  # a table whose rows have no queue
    is_message = table.startswith(MESSAGE)
    listed = ", ".join(f'"{column}"' for column in (SENT if is_message else columns))
    [(row,)] = run_sql(f"SELECT (SELECT to_jsonb(t)::text FROM {table} t WHERE {rows} LIMIT 1)")
    literal = (row or "{}").replace("'", "''")
    return {
        "S": f"SELECT * FROM {table} WHERE {rows}",
        "I": f"INSERT INTO {table} ({listed}) OVERRIDING SYSTEM VALUE SELECT {listed} "
        f"FROM jsonb_populate_record(NULL::{table}, '{literal}') WHERE {row is not None}",
        "U": f'UPDATE {table} SET "{columns[0]}" = "{columns[0]}" WHERE {rows}',
        "D": f"DELETE FROM {table} WHERE {rows}",
    }


def may(statement: str, *, has_rows: bool) -> bool:
    """Whether a statement is permitted and finds existing rows."""
    try:
        with rolled_back():
            touched = f"WITH t AS ({statement} RETURNING 1) SELECT count(*) FROM t"
            [(count,)] = run_sql(
                f"SELECT count(*) FROM ({statement}) t" if statement[0] == "S" else touched
            )
    except IntegrityError:
        return True  # it was permitted: the row exists already
    except DatabaseError as error:
        if sqlstate(error) != INSUFFICIENT_PRIVILEGE:
            raise
        return False
    return bool(count) or not has_rows


@pytest.mark.parametrize("kind", KINDS)
def test_a_role_of_one_queue_may_do_what_the_table_says(role, one_of_each, kind):
    call("pgqueue_grants", "--role", role, "--for", kind, "--queue", "orders", "--apply")
    asked = {
        (table, name): statements(table, name)
        for table, *_ in _ROWS
        for name in ("orders", "mails")
    }
    has_rows = {place: "WHERE True" in each["I"] for place, each in asked.items()}

    found = {}
    with acting(role):
        for place, each in asked.items():
            allowed = [right for right, sql in each.items() if may(sql, has_rows=has_rows[place])]
            found[place] = "".join(allowed) or "-"

    column = _HEAD.index(kind)
    assert {row[0]: f"{found[row[0], 'orders']}/{found[row[0], 'mails']}" for row in _ROWS} == {
        row[0]: row[column] for row in _ROWS
    }


def test_the_table_has_every_table_of_the_queues(one_of_each):
    made = run_sql(
        "SELECT relname::text FROM pg_class WHERE relname ~ '^pgqueue_' AND relkind IN ('r', 'p') "
        "AND relname !~ '_q[0-9]+'"
    )

    listed = {table for table, *_ in _ROWS}
    assert {name for (name,) in made} == {table for table in listed if "#" not in table}


@pytest.mark.parametrize("kind", ["consumer", "operator", "analyst"])
def test_a_role_of_all_queues_sees_the_rows_of_all_and_of_later_ones(role, one_of_each, kind):
    call("pgqueue_grants", "--role", role, "--for", kind, "--apply")
    later = Message.objects.create_queue("later")
    Attempt.objects.create(queue=later, message_id=1, attempt=1)
    Schedule.objects.create(name="later", queue=later, interval=dt.timedelta(days=1))

    with acting(role):
        assert Attempt.objects.count() == Schedule.objects.count() == 3


def test_roles_add_to_the_audit_log_and_rewrite_nothing(role, one_of_each):
    call("pgqueue_grants", "--role", role, "--for", "consumer", "--queue", "orders", "--apply")
    run_sql("DELETE FROM pgqueue_audit WHERE operation <> 'purge'")
    [(begun,)] = run_sql("SELECT id FROM pgqueue_audit WHERE queue_name = 'orders'")

    with acting(role):
        assert queue("orders").purge() == 1
        for forged in (
            "INSERT INTO pgqueue_audit (operation, who, place, role) VALUES ('a', 'b', 'c', 'd')",
            "INSERT INTO pgqueue_audit (operation, who, place, at) VALUES ('a', 'b', 'c', now())",
            "UPDATE pgqueue_audit SET who = 'bob'",
            "DELETE FROM pgqueue_audit",
            "TRUNCATE pgqueue_audit",
            "SELECT who FROM pgqueue_audit",
        ):
            assert refused(partial(run_sql, forged))
        # A count changes until its operation has ended: of its own entries, and of its queues.
        changed = run_sql("UPDATE pgqueue_audit SET count = 7 RETURNING id")

    assert changed == [(begun,)]
    purged = AuditEntry.objects.filter(role=role).get()
    assert (purged.operation, purged.queue_name, purged.count) == ("purge", "orders", 1)


def test_a_role_that_may_not_write_the_audit_log_does_nothing_that_it_records(role, one_of_each):
    """Rights that were granted by hand, without those on the log."""
    run_sql(f"GRANT SELECT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
    run_sql(f"REVOKE ALL ON pgqueue_audit FROM {role}")
    entries = AuditEntry.objects.count()
    length = queue("orders").metrics().length

    with acting(role):
        assert refused(queue("orders").purge)
        assert refused(partial(queue("orders").alter, paused=True))
        assert refused(partial(run_sql, "UPDATE pgqueue_queue SET paused = true"))

    assert AuditEntry.objects.count() == entries
    assert queue("orders").metrics().length == length > 0
    assert not Queue.objects.filter(paused=True).exists()


def test_a_consumer_sends_due_schedules_of_its_own_queue_only(role, one_of_each):
    call("pgqueue_grants", "--role", role, "--for", "consumer", "--queue", "orders", "--apply")
    Schedule.objects.update(next_run_at=dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc))

    with acting(role):
        assert Schedule.objects.send_due(using="default") == 1
        assert Schedule.objects.send_due(using="default") == 0

    assert queue("orders").metrics().length == 2
    assert Schedule.objects.send_due(using="default") == 1
    assert queue("mails").metrics().length == 2


def test_a_consumer_that_also_sends_to_another_queue_declares_schedules_there(role, one_of_each):
    call("pgqueue_grants", "--role", role, "--for", "consumer", "--queue", "orders", "--apply")
    call("pgqueue_grants", "--role", role, "--for", "sender", "--queue", "mails", "--apply")

    with acting(role):
        declare = Schedule.objects.declare
        assert declare("digest", "mails", using="default", interval=dt.timedelta(days=1))
        assert not declare("purge", "clicks", using="default", interval=dt.timedelta(days=1))

    assert Schedule.objects.get(name="digest").queue.name == "mails"
    assert not Schedule.objects.filter(name="purge").exists()


def test_a_consumer_cannot_have_a_message_scheduled_for_another_queue(role, one_of_each):
    call("pgqueue_grants", "--role", role, "--for", "consumer", "--queue", "orders", "--apply")
    mails = Queue.objects.get(name="mails")

    with acting(role):
        theirs = Schedule(name="forged", queue=mails, interval=dt.timedelta(days=1), body="forged")
        assert refused(theirs.save)
        mine = Schedule.objects.get(name="orders")
        mine.queue = mails
        assert refused(mine.save)


def test_an_operator_of_one_queue_cannot_have_others_act_on_another(role, one_of_each):
    """A bulk action runs with the rights of the process that drives it."""
    call("pgqueue_grants", "--role", role, "--for", "operator", "--queue", "orders", "--apply")
    orders, mails = Queue.objects.get(name="orders"), Queue.objects.get(name="mails")
    theirs = BulkAction.objects.get(queue=mails)

    with acting(role):
        begin = BulkAction.objects.begin
        assert begin(orders, Kind.REPLAY, [1], {}).pk
        assert begin(orders, Kind.REPLAY, [1], {"target": "dead"}).pk
        assert refused(lambda: begin(orders, Kind.REPLAY, [1], {"target": "mails"}))
        assert refused(lambda: begin(orders, Kind.REPLAY, [1], {"target": "MAILS"}))
        assert refused(lambda: begin(mails, Kind.PURGE, [1], {}))
        assert refused(lambda: theirs.parts.create(ids=[2]))


# One dead-letter queue for several queues


def forge(role: str, source: str) -> None:
    """Insert a dead letter whose header names a source to which the role may not send."""
    dead = Queue.objects.get(name="dead").pk
    header = f'{{"x-dead-letter": {{"source": "{source}"}}}}'
    with acting(role):
        run_sql(
            f"INSERT INTO pgqueue_message_q{dead} (queue_id, headers, body) "
            f"VALUES (%s, %s, '{{\"amount\": 1000}}')",
            [dead, header],
        )


@pytest.mark.parametrize("kind", ["consumer", "sender"])
def test_a_redrive_does_not_trust_a_header_of_a_role_that_may_not_send_to_its_source(
    role, one_of_each, kind
):
    names = ["orders"] if kind == "consumer" else ["orders", "dead"]
    named = [word for name in names for word in ("--queue", name)]
    call("pgqueue_grants", "--role", role, "--for", kind, *named, "--apply")
    queue("orders").read()[0].reject("no")
    forge(role, "mails")

    with pytest.raises(UntrustedSource, match=rf"{role}.*redrive\(to='mails'"):
        queue("dead").redrive()

    assert queue("mails").metrics().length == 1
    assert [message.body for message in queue("orders").peek()] == ["waits"]
    assert queue("dead").redrive(to="mails") == 1


def test_a_bulk_action_that_redrives_a_forged_letter_fails_until_it_is_gone(role, one_of_each):
    call("pgqueue_grants", "--role", role, "--for", "consumer", "--queue", "orders", "--apply")
    queue("orders").read()[0].reject("no")
    forge(role, "mails")
    dead = Queue.objects.get(name="dead")
    ids = [message.pk for message in queue("dead").peek(qty=9)]
    redriving = BulkAction.objects.begin(dead, Kind.REDRIVE, ids, {})

    BulkAction.objects.drive(using="default", only=[redriving.pk])

    redriving.refresh_from_db()
    assert redriving.state == BulkAction.FAILED
    assert "redrive(to='mails'" in redriving.error
    assert queue("mails").metrics().length == 1
    queue("dead").delete(ids[1:])
    assert redriving.resume()
    BulkAction.objects.drive(using="default", only=[redriving.pk])
    redriving.refresh_from_db()
    assert (redriving.state, redriving.done, redriving.passed) == (BulkAction.DONE, 1, 1)


def test_a_role_that_may_send_to_both_queues_hinders_no_redrive(role, one_of_each):
    named = ["--queue", "orders", "--queue", "mails"]
    call("pgqueue_grants", "--role", role, "--for", "sender", *named, "--queue", "dead", "--apply")
    queue("orders").read()[0].reject("no")
    forge(role, "mails")

    assert queue("dead").redrive() == 2


def test_a_right_of_public_counts_as_that_of_a_role(one_of_each):
    dead = Queue.objects.get(name="dead").pk
    queue("orders").read()[0].reject("no")
    run_sql(f"GRANT INSERT ON pgqueue_message_q{dead} TO PUBLIC")

    with pytest.raises(UntrustedSource, match="PUBLIC"):
        queue("dead").redrive()
