"""A role that may only send cannot act with other roles' rights."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from django_pgqueue.maintenance import bounds
from django_pgqueue.models import BoundQueue, Message
from tests.conftest import run_sql

SENDER = "pgqueue_test_sender"


@pytest.fixture
def as_sender(db: None) -> Callable[..., list[tuple[Any, ...]]]:
    """Run statements as a role with only a sender's rights, as on the schema page."""
    # Anyone may create objects in public, as by default before PostgreSQL 15.
    run_sql(f"CREATE ROLE {SENDER}; GRANT USAGE, CREATE ON SCHEMA public TO {SENDER}")

    def run(statement: str, params: Any = None) -> list[tuple[Any, ...]]:
        run_sql(f"SET LOCAL ROLE {SENDER}")
        rows = run_sql(statement, params)
        run_sql("RESET ROLE")
        return rows

    return run


def let_send(queue: BoundQueue) -> str:
    """Grant a sender's rights; returns the queue's message table."""
    tables = Message.objects.resolve(queue.name).tables
    run_sql(
        f"GRANT INSERT, SELECT ON pgqueue_message, {tables['message']} TO {SENDER};"
        f"GRANT SELECT ON pgqueue_queue TO {SENDER};"
        f"GRANT INSERT ON pgqueue_ready, pgqueue_deferred, pgqueue_waiting, pgqueue_recheck "
        f"TO {SENDER};"
        f"GRANT USAGE ON pgqueue_message_id_seq TO {SENDER};"
        f"GRANT USAGE, UPDATE ON {tables['wake']} TO {SENDER}"
    )
    return str(tables["message"])


def leave_conversion(queue: BoundQueue) -> int:
    """Interrupt a conversion, so that a bound with its function remains."""
    number = Message.objects.resolve(queue.name).pk
    until = dt.datetime(2030, 1, 1, tzinfo=dt.timezone.utc)
    with connection.cursor() as cursor:
        bounds.add_bound(cursor, number, "pgqueue_message", until)
    return number


def test_a_sender_needs_no_more_than_the_documented_rights(orders, as_sender):
    message = let_send(orders)
    number = Message.objects.resolve("orders").pk

    as_sender(f"INSERT INTO {message} (queue_id, body) VALUES (%s, '1')", [number])
    as_sender("INSERT INTO pgqueue_message (queue_id, group_key) VALUES (%s, 'g')", [number])

    assert orders.metrics().length == 2


@pytest.mark.parametrize("table", ["pgqueue_ready", "pgqueue_message", "pgqueue_queue"])
def test_a_temporary_table_of_a_sender_gets_no_rights_from_a_conversion(orders, as_sender, table):
    message = let_send(orders)
    number = leave_conversion(orders)
    database = connection.settings_dict["NAME"]
    run_sql(
        f"GRANT TEMPORARY ON DATABASE {database} TO {SENDER}; GRANT SELECT ON {table} TO {SENDER}"
    )
    as_sender(f"CREATE TEMPORARY TABLE {table} (LIKE public.{table})")
    as_sender(
        f"CREATE FUNCTION pg_temp.take_over() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"ALTER ROLE {SENDER} SUPERUSER; RETURN NULL; END $$"
    )
    as_sender(
        f"CREATE TRIGGER take_over AFTER INSERT ON pg_temp.{table} "
        f"FOR EACH ROW EXECUTE FUNCTION pg_temp.take_over()"
    )

    as_sender(f"INSERT INTO public.{message} (queue_id, body) VALUES (%s, '1')", [number])
    run_sql(f"INSERT INTO public.{message} (queue_id, body) VALUES (%s, '2')", [number])

    assert run_sql("SELECT rolsuper FROM pg_roles WHERE rolname = %s", [SENDER]) == [(False,)]
    assert run_sql("SELECT count(*) FROM public.pgqueue_ready") == [(2,)]


def test_no_function_runs_with_the_rights_of_its_owner(orders):
    leave_conversion(orders)

    definers = run_sql("SELECT proname FROM pg_proc WHERE prosecdef AND proname LIKE 'pgqueue%'")

    assert definers == []


def test_a_function_of_a_sender_is_not_called_by_a_superuser_who_sends(orders, as_sender):
    """Operators for inexactly matching types would be looked up in the caller's schemas."""
    takes_over = f"ALTER ROLE {SENDER} SUPERUSER"
    operators = [
        ("double precision", "*", "integer", "double precision"),
        ("bigint", "-", "numeric", "bigint"),
        ("text", "||", "integer", "text"),
        ("timestamptz", "<=", "timestamptz", "boolean"),
        ("integer", "=", "integer", "boolean"),
        ("bigint", "=", "bigint", "boolean"),
        ("public.pgqueue_time", "<=", "timestamptz", "boolean"),
        ("public.pgqueue_time", ">", "timestamptz", "boolean"),
    ]
    for number, (left, operator, right, result) in enumerate(operators):
        name = f"evil_{number}"
        as_sender(
            f"CREATE FUNCTION public.{name}({left}, {right}) RETURNS {result} LANGUAGE plpgsql "
            f"AS $$ BEGIN {takes_over}; RETURN NULL; END $$"
        )
        as_sender(
            f"CREATE OPERATOR public.{operator} "
            f"(LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = public.{name})"
        )
    run_sql("SET LOCAL search_path = public")

    orders.send(1)
    orders.send(2, delay=60)
    orders.send_batch([3, 4], group="g")
    [*messages] = orders.read(qty=9, in_transaction=True)
    orders.archive([message.receipt for message in messages])

    assert run_sql("SELECT rolsuper FROM pg_roles WHERE rolname = %s", [SENDER]) == [(False,)]


def test_sending_works_whatever_the_search_path(orders):
    number = Message.objects.resolve("orders").pk
    run_sql("SET LOCAL search_path = pg_temp")

    run_sql(f"INSERT INTO public.pgqueue_message (queue_id) VALUES ({number})")
    run_sql(f"INSERT INTO public.pgqueue_message_q{number} (queue_id) VALUES ({number})")
    run_sql("INSERT INTO public.pgqueue_message (queue_id, group_key) VALUES (%s, 'g')", [number])

    run_sql("SET LOCAL search_path = public")
    assert orders.metrics().length == 3


def test_a_temporary_table_of_a_sender_is_no_live_table(orders):
    run_sql("CREATE TEMPORARY TABLE pgqueue_ready (LIKE public.pgqueue_ready)")

    Message.objects.create(queue_id=Message.objects.resolve("orders").pk, body=1)

    assert run_sql("SELECT count(*) FROM public.pgqueue_ready") == [(1,)]
    run_sql("DROP TABLE pg_temp.pgqueue_ready")


def test_a_function_that_only_triggers_and_operators_call_is_not_public(orders):
    leave_conversion(orders)
    functions = run_sql(
        "SELECT proname, has_function_privilege('public', oid, 'EXECUTE') "
        "FROM pg_proc WHERE proname LIKE 'pgqueue%'"
    )

    public = {name for name, is_public in functions if is_public}
    called = (
        *("claim_key", "claim_keys", "clear_lost", "go_on", "holder", "holds_key", "may"),
        *("claim_new_keys", "first_heads", "next_heads", "replace", "sent", "wake"),
        *("admit", "admitted", "alive_groups", "apply_limits", "close_slots", "empty_slots"),
        *("end_slots", "fill_groups", "fill_slots", "fill_some", "fill_usual", "follow_on"),
        *("give_slots", "group_rule", "leased", "lock_slots", "look_at_slots", "may_start"),
        *("need_read_committed", "recheck_id", "slots_freed", "slots_of", "spacing"),
        *("audit", "drop_audited", "fall_asleep", "started", "usual_groups"),
        *("leave_lease", "own_snapshot", "passed", "reader_asleep", "shows"),
    )
    assert public == {f"pgqueue_{name}" for name in called}


def test_a_bound_of_a_conversion_has_no_search_path_of_its_callers(orders):
    number = leave_conversion(orders)
    until = dt.datetime(2030, 1, 1, tzinfo=dt.timezone.utc)

    late = run_sql(
        f"INSERT INTO pgqueue_message_q{number} (queue_id, enqueued_at) "
        f"VALUES ({number}, '2031-01-01Z') RETURNING enqueued_at"
    )

    assert late == [(until - dt.timedelta(microseconds=1),)]


def test_a_sender_may_be_kept_from_choosing_ids_and_times(orders, as_sender):
    message = let_send(orders)
    number = Message.objects.resolve("orders").pk
    run_sql(
        f"REVOKE INSERT, SELECT ON pgqueue_message, {message} FROM {SENDER};"
        f"GRANT INSERT (queue_id, scheduled_at, priority, group_key, unique_key, headers, body) "
        f"ON {message} TO {SENDER}"
    )

    as_sender(f"INSERT INTO {message} (queue_id, body) VALUES (%s, '1')", [number])

    assert orders.metrics().length == 1
    for column, value in {"id": "7", "enqueued_at": "now()", "enqueued_xid": "7"}.items():
        with pytest.raises(DatabaseError, match="permission denied"), transaction.atomic():
            as_sender(f"INSERT INTO {message} (queue_id, {column}) VALUES ({number}, {value})")
