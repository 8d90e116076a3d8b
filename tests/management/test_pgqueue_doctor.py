"""The command ``pgqueue_doctor``: each finding and its advice."""

from __future__ import annotations

import datetime as dt
import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_pgqueue import queue
from django_pgqueue.management import diagnosis
from django_pgqueue.management.diagnosis import Finding, Limits, examine
from django_pgqueue.models import Batch, ExportRun, Lake, Mark, Process, Queue, Schedule
from django_pgqueue.tables.process import ago
from tests.actors import begin, execute, rollback
from tests.working.running import Command


def doctor(*arguments: str) -> tuple[int, str]:
    """Run the doctor; returns exit code and output. Other tests' sessions and dead rows are
    ignored.
    """
    out = StringIO()
    of_others = ("--old-snapshot", "86400", "--dead-rows", "1000000000")
    try:
        call_command("pgqueue_doctor", *of_others, *arguments, stdout=out)
    except SystemExit as exit_:
        return int(exit_.code or 0), out.getvalue()
    return 0, out.getvalue()


def findings(check: str, **limits: Any) -> list[Finding]:
    return [each for each in examine("default", Limits(**limits)) if each.check == check]


def test_a_healthy_database(orders):
    code, out = doctor()

    assert code == 0, out
    assert [line.split(":")[0] for line in out.splitlines()] == [
        f"ok   {check}" for check in diagnosis.CHECKS
    ]


def test_a_trigger_that_is_gone(orders, sql):
    table = f"pgqueue_message_q{Queue.objects.get(name='orders').pk}"
    sql(f"DROP TRIGGER pgqueue_message_inserted ON {table}")

    [found] = findings("objects")

    assert found.text == f"trigger pgqueue_message_inserted of {table} is missing"
    assert found.action.startswith("CREATE TRIGGER pgqueue_message_inserted AFTER INSERT ON")


@pytest.fixture
def planter(db, sql):
    """A role that may create functions in the schema, as every role may in upgraded databases."""
    sql("CREATE ROLE pgqueue_test_planter; GRANT CREATE ON SCHEMA public TO pgqueue_test_planter")
    return "pgqueue_test_planter"


def test_a_role_that_may_plant_functions(orders, planter, sql):
    [found] = findings("schema")

    assert found.text.startswith(f"role {planter} may create functions in schema public")
    assert found.action == f"REVOKE CREATE ON SCHEMA public FROM {planter}"
    sql(found.action)
    assert not findings("schema")[0].is_problem


def test_every_role_may_plant_functions_in_an_upgraded_database(orders, sql):
    sql("GRANT CREATE ON SCHEMA public TO PUBLIC")

    [found] = findings("schema")

    assert found.text.startswith("every role may create functions")
    assert found.action == "REVOKE CREATE ON SCHEMA public FROM PUBLIC"


def test_the_owner_of_the_tables_keeps_its_right_when_all_others_lose_it(orders, planter, sql):
    sql(f"REVOKE CREATE ON SCHEMA public FROM {planter}; GRANT CREATE ON SCHEMA public TO PUBLIC")
    sql(f"ALTER TABLE pgqueue_message OWNER TO {planter}")

    [found] = findings("schema")

    first, then = found.action.split("; ")
    assert first == f"GRANT CREATE ON SCHEMA public TO {planter}"
    assert then == "REVOKE CREATE ON SCHEMA public FROM PUBLIC"
    sql(found.action)
    assert not findings("schema")[0].is_problem


PLANTED = [
    ("FUNCTION", "unnest(bigint[])", "RETURNS SETOF bigint LANGUAGE sql AS 'SELECT 1::bigint'"),
    (
        "FUNCTION",
        "pgqueue_wake(smallint)",
        "RETURNS boolean LANGUAGE sql AS 'SELECT true'",
    ),
    ("AGGREGATE", "max(bigint)", "(sfunc = int8larger, stype = bigint)"),
]


@pytest.mark.parametrize(("kind", "name", "rest"), PLANTED)
def test_a_function_that_was_planted(orders, planter, sql, kind, name, rest):
    sql(f"SET LOCAL ROLE {planter}; CREATE {kind} public.{name} {rest}; RESET ROLE")
    sql(f"REVOKE CREATE ON SCHEMA public FROM {planter}")

    [found] = findings("schema")

    assert found.text.startswith(f"{kind.lower()} public.{name} of role {planter} has the name")
    sql(found.action.partition("Then: ")[2])
    assert not findings("schema")[0].is_problem


def test_an_operator_that_was_planted(orders, planter, sql):
    sql(
        f"SET LOCAL ROLE {planter};"
        "CREATE FUNCTION public.evil(bigint, integer) RETURNS boolean LANGUAGE sql "
        "AS 'SELECT true';"
        "CREATE OPERATOR public.= (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = public.evil);"
        "RESET ROLE"
    )

    _may, found = findings("schema")

    assert found.text.startswith("operator public.= (bigint, integer) of role")
    sql(found.action.partition("Then: ")[2])
    assert len(findings("schema")) == 1


def test_a_projects_own_functions_are_no_finding(orders, planter, sql):
    """Neither those of the owner nor those with names of their own."""
    sql("CREATE FUNCTION public.unnest(text) RETURNS text LANGUAGE sql AS 'SELECT $1'")
    sql(
        f"SET LOCAL ROLE {planter}; CREATE FUNCTION public.tax(integer) RETURNS integer "
        "LANGUAGE sql AS 'SELECT $1'; RESET ROLE"
    )

    [found] = findings("schema")

    assert found.text.startswith(f"role {planter} may create functions")


def test_json_for_scripts(orders):
    orders.send(1)

    code, out = doctor("--json")

    result = json.loads(out)
    assert code == 1
    assert result["healthy"] is False
    [problem] = [each for each in result["findings"] if each["problem"]]
    assert problem["check"] == "consumers"
    assert problem["values"] == {"queue": "orders", "visible": 1}


def test_a_queue_with_work_and_no_consumer(orders):
    orders.send_batch([1, 2])

    code, out = doctor()

    assert code == 1
    assert "FAIL consumers: queue orders has 2 messages to read" in out
    assert "     Start one: manage.py runconsumer orders" in out


def test_a_paused_queue_and_dead_letters_need_no_consumer(orders):
    orders.send(1)
    Queue.objects.filter(name="orders").update(paused=True)
    queue("dead").create()
    queue("dead").send(1)
    queue("mails").create(dead_letter_queue="dead")

    assert not any(each.is_problem for each in findings("consumers"))


def test_a_consumer_that_lives(orders):
    orders.send(1)
    Process.objects.register(["orders"], version="1", using="default")

    assert [each.text for each in findings("consumers")] == [
        "1 live; every queue with messages to read has one"
    ]


def test_an_old_snapshot_and_who_holds_it(committed_orders, actor):
    actor.do(begin)
    [[pid]] = actor.do(execute, "SELECT pg_backend_pid() FROM pgqueue_queue LIMIT 1")
    actor.do(execute, "CREATE TEMP TABLE holds_a_transaction ()")

    found = findings("snapshot", snapshot=0.0)

    assert any(
        each.text.startswith(f"session {pid} ") and f"pg_terminate_backend({pid})" in each.action
        for each in found
    )
    actor.do(rollback)
    assert not any(
        each.text.startswith(f"session {pid} ") for each in findings("snapshot", snapshot=0.0)
    )


def test_dead_rows_of_a_hot_table(orders, monkeypatch, sql):
    rows = [{"name": "pgqueue_ready", "dead": 500_000, "live": 3, "vacuumed": None}]
    monkeypatch.setattr(diagnosis, "_rows", lambda *args: rows)

    [found] = diagnosis._run("dead rows", diagnosis._dead_rows, "default", Limits())

    assert found.text.startswith("pgqueue_ready has 500,000 dead rows beside 3 live ones")
    assert "last vacuumed never" in found.text
    assert found.action.endswith("VACUUM pgqueue_ready")
    [found] = diagnosis._run(
        "dead rows", diagnosis._dead_rows, "default", Limits(dead_rows=500_000)
    )
    assert not found.is_problem


def test_autovacuum_that_is_off_for_a_table(orders, sql):
    sql("ALTER TABLE pgqueue_ready SET (autovacuum_enabled = false)")

    [found] = findings("autovacuum")

    assert found.text == "autovacuum is off for pgqueue_ready"
    sql(found.action)
    assert [each.text for each in findings("autovacuum")] == ["on"]


def test_leases_of_a_dead_process(orders, sql):
    orders.send_batch([1, 2, 3])
    orders.read(qty=2)
    assert not findings("leases")[0].is_problem
    process = Process.objects.register(["orders"], version="1", using="default")
    sql("UPDATE pgqueue_deferred SET process_id = %s", [process.pk])
    assert not findings("leases")[0].is_problem

    dead = process.pk
    process.delete()

    [found] = findings("leases")
    assert found.text == f"process {dead} is dead and holds 2 messages"
    assert "pgqueue_maintain" in found.action


@pytest.mark.parametrize(("hours", "word"), [(-1, "behind"), (1, "ahead of")])
def test_a_clock_that_is_off(db, monkeypatch, hours, word):
    def server(alias: str) -> dt.datetime:
        return dt.datetime.now(dt.timezone.utc) + dt.timedelta(hours=hours)

    monkeypatch.setattr(diagnosis, "_now", server)

    [found] = findings("clock")

    assert f"s {word} this host's" in found.text
    assert "NTP" in found.action


def test_a_queue_that_grows_for_ever(orders):
    orders.send(1)

    [found] = findings("sizes", unbounded=0)
    assert found.text.endswith("and keeps its archive for ever")

    Queue.objects.filter(name="orders").update(retention=dt.timedelta(days=7))
    [found] = findings("sizes", unbounded=0)
    assert not found.is_problem


def test_attempts_that_maintenance_does_not_limit(orders, pgqueue, sql):
    assert findings("attempts")[0].text.endswith(" of errors")
    pgqueue(ATTEMPTS_PER_QUEUE=2)
    sql(
        "INSERT INTO pgqueue_attempt"
        " (queue_id, message_id, attempt, error_class, message, traceback) "
        "SELECT q.id, n, 1, '', '', '' FROM pgqueue_queue q, generate_series(1, 5) n"
    )

    [found] = findings("attempts", attempts=2)

    assert found.text.startswith("queue orders has the errors of more than 4 failed attempts")
    assert "pgqueue_maintain" in found.action
    assert not findings("attempts")[0].is_problem


def test_schedules_that_are_late_or_cannot_be_sent(orders):
    made = Schedule.objects.create(
        name="often", queue=Queue.objects.get(name="orders"), interval=dt.timedelta(minutes=1)
    )
    assert [each.text for each in findings("schedules")] == ["1; none is late"]
    now = dt.datetime.now(dt.timezone.utc)
    Schedule.objects.filter(pk=made.pk).update(
        next_run_at=now - dt.timedelta(hours=2), error="priority must be"
    )

    late, bad = findings("schedules")

    assert late.text == "schedule often was due 2 h ago"
    assert bad.text == "schedule often cannot be sent: priority must be"


def test_a_batch_whose_callback_cannot_be_sent(orders):
    queue("reports").create()
    with orders.batch(then=queue("reports").message(1)) as batch:
        batch.send(1)
    orders.archive(orders.read())
    queue("reports").drop()
    Batch.objects.count_members([batch.pk], using="default")

    [found] = findings("batches")

    assert found.text.startswith(
        f"1 batch of queue orders cannot send the callback; batch {batch.pk}, to queue reports: "
        "There is no queue 'reports'"
    )
    assert "Consumers try again" in found.action
    queue("reports").create()
    Batch.objects.count_members([batch.pk], using="default")
    assert findings("batches")[0].text.startswith("0 in progress")


def test_a_batch_that_nothing_sealed_in_time(orders):
    for _ in range(2):
        newest = orders.open_batch()
        newest.send(1)
    Batch.objects.update(open_until=ago(dt.timedelta(minutes=1)))
    Batch.objects.due(using="default")

    [found] = findings("batches")

    assert found.text.startswith(
        f"2 batches of queue orders abandoned in the last day, the newest is batch {newest.pk}"
    )
    assert "open_for" in found.action
    Batch.objects.update(sealed_at=ago(dt.timedelta(days=1)))
    assert findings("batches")[0].text.startswith("2 in progress; none is abandoned")


def test_a_server_that_is_down_is_one_line():
    with Command("postgresql://postgres@127.0.0.1:1/none", "pgqueue_doctor") as command:
        assert command.wait() == 1
        assert command.output.count("Connection refused") == 1
        assert "See whether the server of DATABASES['default'] is up" in command.output
        assert "Traceback" not in command.output


def test_a_database_without_tables_is_one_line(sql):
    sql("SET LOCAL search_path = pg_catalog")

    with pytest.raises(CommandError, match=r"Make the tables first: manage\.py migrate"):
        doctor()


def test_a_connection_that_breaks_ends_the_doctor_with_one_line(orders, monkeypatch):
    def end(alias: str, limits: Limits, report: Any) -> str:
        diagnosis._rows(alias, "SELECT pg_terminate_backend(pg_backend_pid())")
        return "never"

    monkeypatch.setitem(diagnosis.CHECKS, "clock", end)

    with pytest.raises(CommandError, match="See whether the server of DATABASES"):
        doctor()


def test_a_check_that_fails_keeps_no_other_from_it(orders, monkeypatch):
    def slow(alias: str, limits: Limits, report: Any) -> str:
        diagnosis._rows(alias, "SELECT pg_sleep(60)")
        return "never"

    monkeypatch.setitem(diagnosis.CHECKS, "clock", slow)

    [found] = findings("clock", timeout=0.05)
    assert found.text.startswith("could not be checked: canceling statement")
    assert findings("sizes", timeout=5.0)


def test_a_lake_whose_exports_fail_or_are_late(orders):
    orders.send(1)
    orders.archive(orders.read())
    lake = Lake.objects.create(path="/lake")
    Lake.objects.update(exported_at=ago(dt.timedelta(days=2)))

    [late] = findings("exports")
    ExportRun.objects.create(lake=lake, state="FAILED", error="no space\nTraceback: …")
    [failing] = findings("exports")

    assert late.text == "lake /lake is 2 d behind"
    assert failing.text == "exports to /lake fail (failures since the last success: 1): no space"
    assert "manage.py pgqueue_export /lake" in late.action
    ExportRun.objects.update(state="DONE")
    [found] = findings("exports", export=3 * 86400)
    assert not found.is_problem
    ExportRun.objects.update(manifest={"misfits": 1, "typed": 8})
    [misfits] = findings("exports", export=3 * 86400)
    assert misfits.text == (
        "12.5% of the bodies in the last run of lake /lake do not fit their columns"
    )


def test_a_session_that_blocks_others_is_named_with_its_statement(committed_orders):
    other = connection.copy()
    other.set_autocommit(False)
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid(), 'hunter2'")
            [pid, _secret] = cursor.fetchone()
            cursor.execute("LOCK TABLE pgqueue_queue IN ACCESS EXCLUSIVE MODE")
            cursor.execute("SELECT pg_sleep(1.1), 'hunter2'")

        [found, *_later] = examine("default", Limits(timeout=0.2))
    finally:
        other.close()

    assert found.check == "locks"
    assert found.text.startswith(f"session {pid} (")
    assert "has locked pgqueue_queue, in a transaction open for" in found.text
    assert found.text.endswith("SELECT pg_sleep(1.1), '…'")
    assert found.action.endswith(f"SELECT pg_terminate_backend({pid})")


def test_a_deploy_is_marked_by_a_command(db):
    out = StringIO()
    call_command("pgqueue_mark", "  v42 ", "--json", stdout=out)

    mark = Mark.objects.get()
    assert (mark.text, mark.is_release) == ("v42", False)
    assert json.loads(out.getvalue())["text"] == "v42"
    for wrong in ("", " ", "x" * 101, "a\x1b[2J"):
        with pytest.raises(CommandError, match="Give 1 to 100 printable characters"):
            call_command("pgqueue_mark", wrong)
