"""What runs often on one connection is prepared; what gets lost of that is run without."""

from __future__ import annotations

import datetime as dt
import logging
import zoneinfo
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import (
    DataError,
    IntegrityError,
    NotSupportedError,
    OperationalError,
    connection,
    connections,
    transaction,
)
from django.db.backends.postgresql.base import Cursor
from django.test.utils import CaptureQueriesContext

from django_pgqueue import arguments, queue, signals
from django_pgqueue.errors import QueueNotFound
from django_pgqueue.models import ArchivedMessage, BoundQueue, LiveMessage, Message, Queue
from django_pgqueue.models.operations import prepared
from django_pgqueue.models.operations.base import Ahead
from django_pgqueue.queries import fence
from tests.actors import Actor, call
from tests.conftest import run_sql

pytestmark = pytest.mark.django_db(transaction=True)

OFTEN = prepared.FROM_RUN


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A connection on which nothing is prepared yet, no database given up, and a long second."""
    monkeypatch.setattr(prepared, "_stopped", set())
    monkeypatch.setattr(prepared, "KEPT_SECONDS", 3600.0)
    connection.close()
    yield
    connection.close()


@pytest.fixture
def stopped() -> Iterator[list[str]]:
    """The databases that were given up."""
    heard: list[str] = []

    def listen(sender: str, **kwargs: Any) -> None:
        heard.append(sender)

    signals.preparing_stopped.connect(listen)
    yield heard
    signals.preparing_stopped.disconnect(listen)


def kept() -> list[str]:
    """The operations that this connection has prepared."""
    names = run_sql("SELECT name FROM pg_prepared_statements ORDER BY prepare_time, name")
    return [name.removeprefix("pgqueue_").rpartition("_")[0] for (name,) in names]


def send(orders: BoundQueue, times: int = OFTEN) -> list[int]:
    return [orders.send(number) for number in range(times)]


def exchange(orders: BoundQueue, times: int = OFTEN) -> list[Message]:
    """Work through so many messages, each with the ack of the one before; the last ones read."""
    done: list[Message] = []
    for _ in range(times):
        orders.send("more")
        _, done = orders.archive_and_read(done)
    return done


# What is prepared


def test_a_statement_is_prepared_at_its_fifth_run(committed_orders: BoundQueue) -> None:
    send(committed_orders, OFTEN - 1)
    before = kept()
    send(committed_orders, 3)

    assert (before, kept()) == ([], ["send"])
    assert len(committed_orders.read(qty=100)) == OFTEN + 2


def test_each_operation_says_the_same_prepared(committed_orders: BoundQueue) -> None:
    for number in range(OFTEN * 3):
        pk = committed_orders.send({"number": number}, headers={"h": 1}, priority=1, group=None)
        [message] = committed_orders.read(vt=60)
        settle = [committed_orders.archive, committed_orders.delete][number % 2]

        assert (message.id, message.body, message.headers) == (pk, {"number": number}, {"h": 1})
        assert (message.read_ct, message.priority) == (1, 1)
        assert committed_orders.set_vt(message, 30) == [pk]
        assert settle(message) == [pk]
        assert settle(message).lost == [message.receipt]

    assert {"send_full", "archive", "delete", "set_vt"} < set(kept())


def test_values_of_other_types_are_prepared_besides(committed_orders: BoundQueue) -> None:
    for _ in range(OFTEN + 1):
        committed_orders.send("sooner", priority=1)
    for delay in (60, 60):
        committed_orders.send("later", delay=delay)

    assert kept() == ["send_full", "send_full"]
    assert LiveMessage.objects.filter(state="SCHEDULED").count() == 2


def test_an_ack_and_the_next_read_are_prepared_too(committed_orders: BoundQueue) -> None:
    done = exchange(committed_orders, OFTEN * 3)

    assert {"archive", "read_ready"} & set(kept())
    assert "archive" in kept()
    assert ArchivedMessage.objects.count() == OFTEN * 3 - 1
    assert [message.id for message in done] == [LiveMessage.objects.get().id]


def test_what_fails_as_one_statement_fails_whole(
    committed_orders: BoundQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A lease that the server has no date for, so that the second of the two fails.
    monkeypatch.setattr(arguments, "_LONGEST", dt.timedelta.max)
    [message] = exchange(committed_orders, OFTEN * 3)
    archiving = {"ids": [message.id], "read_ct": 1, "receipts": None, "ran": 0}
    ahead = Ahead("archive", archiving, fence(archiving))
    committed_orders.send("next")
    found = Message.objects.resolve("orders")

    with pytest.raises(DataError, match="out of range"):
        Message.objects.lease(found, vt=dt.timedelta(days=999_999_999), ahead=ahead)

    assert {"archive", "read_ready"} <= set(kept())
    assert ahead.rows is None
    assert LiveMessage.objects.get(pk=message.pk).state == "PROCESSING"
    assert committed_orders.archive(message) == [message.id]


@pytest.mark.parametrize("failing", ["prepared", "first"])
def test_errors_are_djangos_and_the_statement_stays_usable(
    committed_orders: BoundQueue, failing: str, stopped: list[str]
) -> None:
    send(committed_orders, OFTEN if failing == "prepared" else OFTEN - 1)
    values = {**dict.fromkeys(["at", "after", "group", "dedup_key", "headers"]), "priority": 0}

    for _ in range(3):
        with pytest.raises(DataError):
            Message.objects._run("send", "orders", None, {**values, "body": "no JSON"})
    send(committed_orders)

    assert kept() == ["send"]
    assert stopped == []


def test_what_a_queue_has_prepared_does_not_outlive_it(
    committed_orders: BoundQueue, actor: Actor
) -> None:
    send(committed_orders)

    actor.do(call, "drop_queue", "orders")
    with pytest.raises(QueueNotFound):
        send(committed_orders)
    actor.do(call, "create_queue", "orders")

    assert len(send(committed_orders)) == OFTEN
    assert len(committed_orders.read(qty=100)) == OFTEN


# What serves any queue


@pytest.fixture
def round_about(committed: None, monkeypatch: pytest.MonkeyPatch) -> list[BoundQueue]:
    """Queues none of which is met often, as when a process goes round among very many."""
    names = [f"queue-{number}" for number in range(3)]
    for name in names:
        Message.objects.create_queue(name)
    Message.objects.create_queue("quick", unlogged=True)
    Message.objects.create_queue("split", partition_interval=dt.timedelta(days=1))
    often = prepared.Prepared._is_often
    monkeypatch.setattr(
        prepared.Prepared, "_is_often", lambda self, key: often(self, key) and key[0] is None
    )
    return [queue(name) for name in (*names, "quick", "split")]


def test_whoever_goes_round_has_statements_for_any_queue(round_about: list[BoundQueue]) -> None:
    sent = [(each.name, each.send(place)) for place, each in enumerate(round_about * OFTEN)]
    read = [(each.name, [message.id for message in each.read(qty=100)]) for each in round_about]

    assert kept() == ["send"]
    assert read == [
        (each.name, [pk for name, pk in sent if name == each.name]) for each in round_about
    ]


def test_for_any_queue_each_operation_says_the_same(round_about: list[BoundQueue]) -> None:
    for turn in range(OFTEN + 3):
        for each in round_about:
            bodies = [{"turn": turn, "place": place} for place in range(40)]
            one = each.send("one", priority=1, headers={"h": turn})
            [ignored, *rest] = each.send_batch(bodies, headers={"h": 1})
            each.send("once", dedup_key=str(turn))
            first = each.read(qty=1)
            batch = each.read(qty=41)
            held = [message.receipt for message in batch]

            assert [(m.id, m.body, m.headers) for m in first] == [(one, "one", {"h": turn})]
            assert [m.body for m in batch] == [*bodies, "once"]
            assert [m.id for m in batch[:40]] == [ignored, *rest]
            assert {m.read_ct for m in batch} == {1}
            assert each.archive(first[0]) == [one]
            assert each.archive(held[30:]) == [receipt.id for receipt in held[30:]]
            assert each.set_vt(held[0], 60) == [held[0].id]
            assert each.delete(held[1]) == [held[1].id]
            name = each.name
            assert Message.objects.fail(name, {held[2]: "no"}) == [held[2].id]
            assert Message.objects.retry(name, {held[3]: 0}) == [held[3].id]
            assert Message.objects.release(name, [held[4]]) == [held[4].id]
            again = each.read(qty=10)
            assert [(m.id, m.read_ct) for m in again] == [(held[4].id, 1), (held[3].id, 2)] or [
                (m.id, m.read_ct) for m in again
            ] == [(held[3].id, 2), (held[4].id, 1)]
            left = [*held[5:30], held[0], *(m.receipt for m in again)]
            assert each.archive(left) == sorted(receipt.id for receipt in left)
            assert each.metrics().length == 0

    often = {"archive", "archive_part", "fail", "read", "retry", "release", "send_full", "set_vt"}
    assert often | {"send_once", "send_batch", "unfold"} <= set(kept())
    texts = run_sql("SELECT statement FROM pg_prepared_statements")
    assert not [text for (text,) in texts if "_q" in text]


def test_for_any_queue_an_ack_and_the_next_read_go_as_one(round_about: list[BoundQueue]) -> None:
    done: dict[str, list[Message]] = {each.name: [] for each in round_about}
    for _ in range(OFTEN * 2):
        for each in round_about:
            each.send_batch(range(40))
            settled, messages = each.archive_and_read(done[each.name], qty=20)
            assert settled == [message.id for message in done[each.name]]
            assert len(messages) == 20
            done[each.name] = messages

    assert {"archive_batch", "read_ready"} <= set(kept())
    archived = ArchivedMessage.objects.count()
    assert archived == len(round_about) * 20 * (OFTEN * 2 - 1)


def test_a_queue_that_is_gone_is_missed_by_statements_for_any(
    round_about: list[BoundQueue], actor: Actor, stopped: list[str]
) -> None:
    gone = round_about[0]
    for each in round_about * OFTEN:
        each.send_batch([1, 2])
        each.archive(each.read())
    [message] = gone.read()

    actor.do(call, "drop_queue", gone.name)
    for attempt in (lambda: gone.send(1), lambda: gone.send_batch([1]), lambda: gone.read()):
        with pytest.raises(QueueNotFound):
            attempt()
    actor.do(call, "create_queue", gone.name)

    assert gone.archive(message).lost == [message.receipt]
    assert gone.send("again") > message.id
    assert [each.body for each in gone.read()] == ["again"]
    assert stopped == []


def test_a_queue_that_is_gone_is_not_taken_for_an_empty_one_for_long(
    round_about: list[BoundQueue], actor: Actor
) -> None:
    gone = round_about[0]
    for each in round_about * OFTEN:
        assert each.read() == []

    actor.do(call, "drop_queue", gone.name)
    here = prepared.prepared_on(connections["default"])
    assert here is not None
    here._kept_until = 0.0  # the second is over
    for each in round_about[1:] * OFTEN:
        assert each.read() == []

    assert "read" in kept()
    with pytest.raises(QueueNotFound):
        gone.read()


def test_what_the_tables_refuse_is_no_loss(
    round_about: list[BoundQueue], stopped: list[str]
) -> None:
    for each in round_about * OFTEN:
        each.send(1, priority=1)
    values = {**dict.fromkeys(["at", "after", "group", "headers"]), "body": "1", "priority": 101}

    with pytest.raises(IntegrityError, match="priority"):
        Message.objects._run("send_full", round_about[0].name, None, values)

    assert "send_full" in kept()
    assert stopped == []


def test_a_read_by_condition_keeps_to_its_queue(round_about: list[BoundQueue]) -> None:
    for each in round_about:
        each.send_batch([{"kind": "a"}, {"kind": "b"}] * OFTEN)
    found = [
        message.body
        for _ in range(OFTEN)
        for each in round_about
        for message in each.read(conditional={"kind": "b"})
    ]

    assert found == [{"kind": "b"}] * len(round_about) * OFTEN
    assert kept() == []


# How long a plan is kept


def test_a_plan_is_made_anew_when_its_second_is_over(committed_orders: BoundQueue) -> None:
    run_sql("CREATE TEMP TABLE probe (id bigint PRIMARY KEY)")
    run_sql("ANALYZE probe; SET plan_cache_mode = force_generic_plan")
    statement = prepared.Statement("probe", "SELECT id FROM probe WHERE id = %(id)s")
    statement.fetch(connections["default"], {"id": 1})
    [(name,)] = run_sql("SELECT name FROM pg_prepared_statements")

    def plan() -> str:
        return "\n".join(line for (line,) in run_sql(f"EXPLAIN EXECUTE {name} (1)"))

    run_sql("INSERT INTO probe SELECT generate_series(1, 50000)")
    send(committed_orders)
    before = plan()
    here = prepared.prepared_on(connections["default"])
    assert here is not None
    here._kept_until = 0.0
    send(committed_orders)

    assert "Seq Scan" in before
    assert "Index" in plan()


def test_what_runs_less_often_than_that_is_not_prepared(
    committed_orders: BoundQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "KEPT_SECONDS", 0.0)
    send(committed_orders, OFTEN * 2)

    assert kept() == []


# What is not prepared


def test_in_a_transaction_nothing_is(committed_orders: BoundQueue) -> None:
    send(committed_orders, OFTEN - 1)
    with transaction.atomic():
        send(committed_orders)
    transaction.set_autocommit(False)
    try:
        send(committed_orders)
        transaction.commit()
    finally:
        transaction.set_autocommit(True)

    assert kept() == []


def test_by_the_setting_nothing_is(committed_orders: BoundQueue, settings: Any) -> None:
    settings.PGQUEUE = {"PREPARE_STATEMENTS": False}
    send(committed_orders)

    assert kept() == []


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        (None, "DISABLE_SERVER_SIDE_CURSORS", True),
        ("OPTIONS", "prepare_threshold", 3),
        ("OPTIONS", "server_side_binding", True),
        ("OPTIONS", "cursor_factory", type("Counting", (Cursor,), {})),
    ],
    ids=lambda value: str(value),
)
def test_where_the_connection_is_somebody_elses_matter_nothing_is(
    committed_orders: BoundQueue,
    monkeypatch: pytest.MonkeyPatch,
    place: str | None,
    key: str,
    value: Any,
) -> None:
    known = connection.settings_dict
    monkeypatch.setitem(known[place] if place else known, key, value)
    connection.close()
    send(committed_orders)

    assert "send" not in kept()


def test_a_log_of_queries_shows_the_values(committed_orders: BoundQueue) -> None:
    send(committed_orders)
    with CaptureQueriesContext(connection) as queries:
        committed_orders.send("to be seen")

    assert ["to be seen" in query["sql"] for query in queries] == [True]


def test_wrappers_see_statements_and_values(committed_orders: BoundQueue) -> None:
    [message] = exchange(committed_orders, OFTEN * 3)
    seen: list[tuple[str, Any]] = []

    def watch(execute: Any, statement: str, params: Any, many: bool, context: Any) -> Any:
        seen.append((statement, params))
        return execute(statement, params, many, context)

    with connection.execute_wrapper(watch):
        committed_orders.send("seen")
        committed_orders.archive_and_read(message)

    (sending, sent), (both, given) = seen
    assert "INSERT INTO pgqueue_message" in sending
    assert sent["body"] == '"seen"'
    assert "INSERT INTO pgqueue_archive" in both
    assert given["ids"] == f"{{{message.id}}}"


def test_two_statements_go_as_one_also_where_the_server_binds(
    committed_orders: BoundQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", True)
    connection.close()
    pk = committed_orders.send(1)
    committed_orders.send(2)
    [message] = committed_orders.read()
    archiving = {"ids": [pk], "read_ct": 1, "receipts": None, "ran": 0}
    ahead = Ahead("archive", archiving, fence(archiving))

    with CaptureQueriesContext(connections["default"]) as queries:
        following = Message.objects.lease(Message.objects.resolve("orders"), ahead=ahead)

    assert (ahead.rows, [each.body for each in following]) == ([(message.id,)], [2])
    assert len(queries) == 1


# What gets lost


@pytest.mark.parametrize("loss", ["DEALLOCATE ALL", "DISCARD ALL"])
def test_a_lost_statement_runs_once_without_and_preparing_ends(
    committed_orders: BoundQueue,
    stopped: list[str],
    caplog: pytest.LogCaptureFixture,
    loss: str,
) -> None:
    send(committed_orders)
    run_sql(loss)

    with caplog.at_level(logging.WARNING, "django_pgqueue"):
        send(committed_orders, OFTEN * 2)

    assert len(committed_orders.read(qty=100)) == OFTEN * 3
    assert (kept(), stopped) == ([], ["default"])
    [warning] = caplog.messages
    assert "DISABLE_SERVER_SIDE_CURSORS" in warning
    assert "PREPARE_STATEMENTS" in warning


def test_a_lost_exchange_runs_once_without(
    committed_orders: BoundQueue, stopped: list[str]
) -> None:
    [message] = exchange(committed_orders, OFTEN * 3)
    committed_orders.send("next")
    run_sql("DEALLOCATE ALL")

    settled, [following] = committed_orders.archive_and_read(message)

    assert (settled, following.read_ct) == ([message.id], 1)
    assert ArchivedMessage.objects.count() == OFTEN * 3
    assert stopped == ["default"]


def test_the_second_of_two_is_lost_and_the_first_undone(
    committed_orders: BoundQueue, stopped: list[str]
) -> None:
    [message] = exchange(committed_orders, OFTEN * 3)
    names = run_sql("SELECT name FROM pg_prepared_statements WHERE name LIKE 'pgqueue_read%'")
    for (name,) in names:
        run_sql(f"DEALLOCATE {name}")

    settled, messages = committed_orders.archive_and_read(message)

    assert (settled, settled.lost, messages) == ([message.id], [], [])
    assert stopped == ["default"]


def test_a_name_that_is_taken_is_a_loss(committed_orders: BoundQueue, stopped: list[str]) -> None:
    send(committed_orders)
    [(name,)] = run_sql("SELECT name FROM pg_prepared_statements")
    connection.close()
    run_sql(f"PREPARE {name} AS SELECT 1")

    send(committed_orders)

    assert len(committed_orders.read(qty=100)) == OFTEN * 2
    assert stopped == ["default"]


def test_a_plan_whose_columns_changed_is_a_loss(committed: None) -> None:
    run_sql("CREATE TEMP TABLE shape AS SELECT 1 AS side")
    connection.ensure_connection()
    statement = prepared.Statement("shape", "SELECT *, %(given)s::integer FROM shape")
    assert [statement.fetch(connections["default"], {"given": 2}) for _ in range(2)] == [
        [(1, 2)],
        [(1, 2)],
    ]

    run_sql("ALTER TABLE shape ALTER side TYPE text")
    with pytest.raises(NotSupportedError) as caught:
        statement.fetch(connections["default"], {"given": 2})

    assert prepared.lost(caught.value)


def test_a_new_session_begins_anew(committed_orders: BoundQueue, stopped: list[str]) -> None:
    send(committed_orders)
    connection.close()
    before = kept()
    send(committed_orders)

    assert (before, kept(), stopped) == ([], ["send"], [])


def test_a_broken_session_is_djangos_matter(
    committed_orders: BoundQueue, actor: Actor, stopped: list[str]
) -> None:
    send(committed_orders)
    [(pid,)] = run_sql("SELECT pg_backend_pid()")
    run_sql_elsewhere(f"SELECT pg_terminate_backend({pid})")

    with pytest.raises(OperationalError):
        committed_orders.send("lost")
    connection.close_if_unusable_or_obsolete()

    assert len(send(committed_orders)) == OFTEN
    assert stopped == []


def run_sql_elsewhere(statement: str) -> None:
    parameters = connection.get_connection_params()
    wanted = {
        key: parameters[key] for key in ("dbname", "host", "port", "user") if parameters.get(key)
    }
    with psycopg.connect(**wanted, autocommit=True) as other:
        other.execute(statement)


# Bounds


def test_only_so_many_are_prepared_and_the_idle_one_gives_way(
    committed: None, monkeypatch: pytest.MonkeyPatch, stopped: list[str]
) -> None:
    monkeypatch.setattr(prepared, "MOST", 3)  # one of them for any queue
    for name in ("one", "two", "three"):
        Message.objects.create_queue(name)
    tables = {
        name: Queue.objects.resolve(name).tables["message"] for name in ("one", "two", "three")
    }

    def prepared_for() -> set[str]:
        texts = run_sql("SELECT statement FROM pg_prepared_statements")
        return {name for name, table in tables.items() for (text,) in texts if f"{table} " in text}

    for _ in range(OFTEN):
        for name in tables:
            queue(name).send(1)
    first = prepared_for()
    monkeypatch.setattr(prepared, "IDLE_SECONDS", 0.0)
    for _ in range(30):
        queue("two").send(1)
        queue("three").send(1)

    assert (first, prepared_for()) == ({"one", "two"}, {"two", "three"})
    assert [queue(name).metrics().length for name in tables] == [OFTEN, OFTEN + 30, OFTEN + 30]
    assert stopped == []


def test_a_large_result_is_not_held(committed: None) -> None:
    statement = prepared.Statement("many", "SELECT generate_series(1, %(number)s)")
    connection.ensure_connection()

    held = []
    for number in (1, 5000):
        assert len(statement.fetch(connections["default"], {"number": number})) == number
        held.append(statement._cursor is not None)

    assert held == [True, False]


def test_times_are_in_the_zone_of_each_connection(
    committed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    statement = prepared.Statement("moment", "SELECT %(moment)s::timestamptz")
    tokyo = zoneinfo.ZoneInfo("Asia/Tokyo")

    connection.ensure_connection()
    zones = []
    for zone in (connection.timezone, tokyo, connection.timezone):
        monkeypatch.setitem(vars(connections["default"]), "timezone", zone)
        [(moment,)] = statement.fetch(connections["default"], {"moment": "2026-01-01 12:00"})
        zones.append(moment.tzinfo)

    assert zones == [dt.timezone.utc, tokyo, dt.timezone.utc]
