"""psycopg prepares frequent statements, unless a pooler may exchange the session."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_pgqueue.database import runner as cursors
from django_pgqueue.engine import runner as engine_runner
from django_pgqueue.models import BoundQueue, Message, Queue
from tests.conftest import rolled_back, run_sql

pytestmark = pytest.mark.django_db(transaction=True)

OFTEN = cursors.THRESHOLD + 2


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A connection without prepared statements, whose plans do not end."""
    monkeypatch.setattr(engine_runner, "PLAN_SECONDS", float("inf"))
    connection.close()
    yield
    connection.close()


def prepared() -> list[str]:
    """Our statements that the server has prepared for this connection."""
    texts = run_sql("SELECT statement FROM pg_prepared_statements ORDER BY statement")
    return [text for (text,) in texts if "pgqueue_" in text]


def send(orders: BoundQueue, times: int = OFTEN) -> None:
    for number in range(times):
        orders.send(number)


def test_a_statement_that_runs_often_is_prepared(committed_orders):
    send(committed_orders, cursors.THRESHOLD - 1)
    before = prepared()
    send(committed_orders, 3)

    assert before == []
    [text] = prepared()
    assert text.startswith("-- Insert one message")
    assert len(committed_orders.read(qty=100)) == OFTEN


def test_a_session_that_ended_before_its_first_statement_raises_djangos_error(committed):
    connection.ensure_connection()
    pid = connection.connection.info.backend_pid
    other = connection.copy()
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    other.close()

    with pytest.raises(OperationalError):
        cursors.preparing_cursor(connections["default"], "SELECT 1")
    connection.close()


def test_prepared_statements_give_the_same_results(committed_orders):
    for number in range(OFTEN * 2):
        pk = committed_orders.send({"number": number}, headers={"h": 1}, priority=1)
        [message] = committed_orders.read(vt=60)
        settle = [committed_orders.archive, committed_orders.delete][number % 2]

        assert (message.id, message.body, message.headers) == (pk, {"number": number}, {"h": 1})
        assert (message.read_ct, message.priority) == (1, 1)
        assert committed_orders.set_vt(message, 30) == [pk]
        assert settle(message) == [pk]
        assert committed_orders.set_vt(message, 30).lost == [message.receipt]
    assert len(prepared()) >= 4


@pytest.mark.parametrize(
    ("often", "slow", "seconds", "plans"),
    [
        (False, False, 10, 1),
        (False, False, 299, 1),
        (False, False, 300, 2),
        (True, False, 9, 1),
        (True, False, 10, 2),
        (False, True, 9, 1),
        (False, True, 10, 2),
    ],
)
def test_a_plan_of_seldom_and_fast_runs_is_used_longer(
    committed_orders, monkeypatch, often, slow, seconds, plans
):
    monkeypatch.undo()
    monkeypatch.setattr(engine_runner, "SLOW", 3600)
    began = 10.0 * engine_runner.LONGEST_PLAN_SECONDS
    monkeypatch.setattr(engine_runner.time, "monotonic", lambda: began)
    send(committed_orders, engine_runner.ENOUGH if often else OFTEN)
    if slow:
        monkeypatch.setattr(engine_runner, "SLOW", -1)
        send(committed_orders, 1)
        monkeypatch.setattr(engine_runner, "SLOW", 3600)
    monkeypatch.setattr(engine_runner.time, "monotonic", lambda: began + seconds)
    send(committed_orders)

    assert len(prepared()) == plans
    assert len(set(prepared())) == plans


def test_a_statement_that_was_cancelled_gets_a_new_plan(monkeypatch):
    """Each of its runs may take longer than statement_timeout because of its plan."""
    monkeypatch.undo()
    texts: list[str] = []

    class Cancelled:
        def execute(self, text: str, params: Any) -> None:
            texts.append(text)
            raise psycopg.errors.QueryCanceled

    began = 10.0 * engine_runner.LONGEST_PLAN_SECONDS
    with monkeypatch.context() as patch:
        patch.setattr(engine_runner.time, "monotonic", lambda: began)
        plan = engine_runner.Plan("SELECT 1")
        for seconds in (0, 10):
            patch.setattr(engine_runner.time, "monotonic", lambda: began + seconds)  # noqa: B023
            with pytest.raises(psycopg.errors.QueryCanceled):
                plan.run(Cancelled(), None)

    assert len(set(texts)) == 2


def test_a_plan_of_an_empty_table_is_no_trap(committed_orders, monkeypatch):
    monkeypatch.undo()
    clock, ahead = time.monotonic, [0.0]
    monkeypatch.setattr(engine_runner.time, "monotonic", lambda: clock() + ahead[0])

    def plans() -> dict[str, int]:
        found = run_sql(
            "SELECT statement, generic_plans FROM pg_prepared_statements "
            "WHERE statement LIKE '-- Lease up to qty ready messages%'"
        )
        return {text.rpartition("-- ")[2]: generic for text, generic in found}

    run_sql("VACUUM ANALYZE pgqueue_ready, pgqueue_message")
    for _ in range(2 * OFTEN):
        send(committed_orders, 2)
        committed_orders.archive(committed_orders.read(qty=2))
    [(old, generic)] = plans().items()
    run_sql(
        "INSERT INTO pgqueue_message (queue_id, body) "
        "SELECT %s, '1' FROM generate_series(1, 100000)",
        [Queue.objects.get().pk],
    )

    committed_orders.read(qty=2)  # slow
    ahead[0] = engine_runner.PLAN_SECONDS
    for _ in range(OFTEN):
        committed_orders.read(qty=2)

    assert generic > 0
    [again] = [number for text, number in plans().items() if text != old]
    assert again == 0


def test_nothing_is_prepared_where_a_pooler_may_be(committed_orders, monkeypatch):
    monkeypatch.setattr(cursors, "_is_direct", lambda session: False)

    send(committed_orders)

    assert prepared() == []


def test_a_pooler_answers_with_another_process_id(db):
    connection.ensure_connection()

    class Pooled:
        info = type("Info", (), {"backend_pid": connection.connection.info.backend_pid + 1})

        def execute(self, statement: str) -> Any:
            return connection.connection.execute(statement)

    assert cursors._is_direct(connection.connection)
    assert not cursors._is_direct(Pooled())


@pytest.mark.parametrize("how", ["the setting", "server-side cursors", "a threshold of its own"])
def test_a_project_can_turn_off_prepared_statements(committed_orders, how, monkeypatch, settings):
    if how == "the setting":
        settings.PGQUEUE = {"PREPARE_STATEMENTS": False}
    elif how == "server-side cursors":
        monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", True)
    else:
        connection.ensure_connection()
        connection.connection.prepare_threshold = 1000

    send(committed_orders)

    assert prepared() == []


def test_the_applications_own_statements_are_not_prepared(committed_orders):
    send(committed_orders)
    for _ in range(OFTEN):
        Queue.objects.count()
        run_sql("SELECT 1 FROM pgqueue_queue")

    [text] = prepared()
    assert text.startswith("-- Insert one message")


@pytest.mark.parametrize("command", ["DEALLOCATE ALL", "DISCARD ALL", "DISCARD PLANS"])
def test_plans_that_the_application_throws_away_are_made_again(committed_orders, command):
    send(committed_orders)
    connection.connection.execute(command)

    send(committed_orders)

    assert len(committed_orders.read(qty=100)) == 2 * OFTEN


def test_in_a_transaction_too_and_its_end_is_the_applications(committed_orders):
    with rolled_back():
        send(committed_orders)
    with transaction.atomic():
        send(committed_orders)

    assert len(committed_orders.read(qty=100)) == OFTEN


def test_execute_wrappers_see_our_statements(committed_orders):
    seen: list[str] = []

    def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(sql)
        return execute(sql, params, many, context)

    send(committed_orders)
    with connection.execute_wrapper(watch), CaptureQueriesContext(connection) as captured:
        committed_orders.send("watched")

    assert len(seen) == len(captured) == 1
    assert "watched" in captured[0]["sql"]


def test_a_lost_connection_is_djangos_to_mend(committed_orders):
    send(committed_orders)
    connections["default"].close()

    send(committed_orders)

    assert Message.objects.metrics("orders").ready == 2 * OFTEN
    assert isinstance(connection.connection, psycopg.Connection)


def test_a_statement_keeps_its_cursor_beside_those_of_others():
    first = cursors.preparing_cursor(connections["default"], "SELECT 1")
    other = cursors.preparing_cursor(connections["default"], "SELECT 2")

    assert first is not None
    assert other is not first
    assert cursors.preparing_cursor(connections["default"], "SELECT 1") is first


def test_cursors_are_few_and_hold_no_batch(committed_orders):
    for number in range(cursors.CURSORS + 1):
        cursors.preparing_cursor(connections["default"], f"SELECT {number}")
    assert len(cursors._cursors[connections["default"]]) == cursors.CURSORS
    committed_orders.send_batch([1, 2])

    assert len(committed_orders.read(qty=2)) == 2

    kept = cursors._cursors[connections["default"]].values()
    assert 0 < len(kept) <= cursors.CURSORS
    # A cursor keeps its result until its next statement.
    assert [cursor.rowcount for cursor in kept if not cursor.closed and cursor.rowcount > 1] == []


def test_a_session_opened_anew_gets_a_cursor_of_its_own(committed_orders):
    before = cursors.preparing_cursor(connections["default"], "SELECT 1")
    connection.close()

    committed_orders.send(1)

    after = cursors.preparing_cursor(connections["default"], "SELECT 1")
    assert after is not None
    assert after is not before
    assert after.connection is connection.connection


def test_threads_that_share_a_connection_share_no_cursor(committed_orders):
    cursors.preparing_cursor(connections["default"], "SELECT 1")
    connection.inc_thread_sharing()
    try:
        one, other = (
            cursors.preparing_cursor(connections["default"], "SELECT 1"),
            cursors.preparing_cursor(connections["default"], "SELECT 1"),
        )
    finally:
        connection.dec_thread_sharing()

    assert one is not None
    assert one is not other
