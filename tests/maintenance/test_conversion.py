"""Converts a queue in use to partitions by time, or to another interval."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, connection, transaction

from django_pgqueue import queue
from django_pgqueue.errors import InvalidArgument, QueueBusy, QueueConverting, QueueNotFound
from django_pgqueue.maintenance import conversion
from django_pgqueue.maintenance.partitions import find_partitions
from django_pgqueue.models import ArchivedMessage, BoundQueue, Message, Queue
from tests.actors import begin, call, convert_until, execute, rollback
from tests.conftest import run_sql
from tests.messages import everything

DAY = dt.timedelta(days=1)
HOUR = dt.timedelta(hours=1)

pytestmark = pytest.mark.usefixtures("committed")

MADE = """
    SELECT relname::text FROM pg_class
    WHERE relname ~ '^pgqueue_.*_new$'
    UNION ALL SELECT proname::text FROM pg_proc WHERE proname ~ '^pgqueue_.*_q[0-9]+$'
    UNION ALL SELECT conname::text FROM pg_constraint WHERE conname ~ '^pgqueue_bound'
    UNION ALL SELECT tgname::text FROM pg_trigger WHERE tgname ~ '^pgqueue_bound'
"""


def tables(name: str = "orders", kind: str = "message") -> list[tuple[str, str]]:
    """A queue's tables that hold rows, with their partition bounds."""
    return run_sql(
        "SELECT relname::text, pg_get_expr(relpartbound, oid) "
        "FROM pg_partition_tree(%s::regclass) JOIN pg_class ON oid = relid "
        "WHERE isleaf ORDER BY oid",
        [f"pgqueue_{kind}_q{Message.objects.resolve(name).pk}"],
    )


def in_every_state(name: str = "orders", **settings: Any) -> BoundQueue:
    Message.objects.create_queue(name, **settings)
    made = queue(name)
    sent = made.send_batch(list(range(10)), headers={"h": 1})
    made.send_batch(["first", "second"], group="g")
    made.send("later", delay=600)
    made.archive(sent[:3])
    made.read(qty=2, vt=600)
    made.send({"once": True}, unique="k")
    return made


def works(orders: BoundQueue) -> None:
    """Check that a queue works, whichever table its messages are in."""
    pk = Message.objects.resolve(orders.name).pk
    before = orders.metrics().ready
    sent = [orders.send({"n": 1}), *orders.send_batch([2, 3])]
    [(partition,)] = run_sql(
        "SELECT tableoid::regclass FROM pgqueue_message WHERE id = %s", sent[:1]
    )
    for table in ("pgqueue_message", f"pgqueue_message_q{pk}", partition):
        sent += run_sql(f"INSERT INTO {table} (queue_id) VALUES (%s) RETURNING id", [pk])[0]
    Message.objects.bulk_create([Message(queue_id=pk)])
    assert orders.metrics().ready == before + len(sent) + 1
    read: list[int] = []
    while batch := orders.read(qty=None):  # a group's next message comes after its head
        assert len(orders.archive(batch)) == len(batch)
        read += [message.id for message in batch]
    assert set(sent) <= set(read)
    assert len(read) == len(set(read))
    group = [orders.send(n, group="works") for n in range(2)]
    assert [message.id for message in orders.read(qty=9)] == group[:1]
    orders.delete(group)


def test_a_queue_is_partitioned_where_django_uses_no_time_zones(settings):
    settings.USE_TZ = False
    orders = in_every_state()

    assert orders.repartition(DAY)
    assert orders.repartition(HOUR)

    works(orders)


@pytest.mark.parametrize("kind", [{}, {"unlogged": True}], ids=["logged", "unlogged"])
def test_a_queue_is_partitioned_and_keeps_every_message_where_it_was(kind):
    orders = in_every_state(**kind)
    before = everything()

    assert orders.repartition(DAY) is True

    assert everything() == before
    assert Queue.objects.get().partition_interval == DAY
    for table in ("message", "archive"):
        (first, bounds), *_ = tables(kind=table)
        assert "_until_" in first
        assert bounds.startswith("FOR VALUES FROM (MINVALUE) TO ")
        assert len(tables(kind=table)) >= 6
    assert run_sql(MADE) == []
    works(orders)


def test_a_queue_that_was_partitioned_can_be_dropped():
    orders = in_every_state()
    for interval in (DAY, HOUR, DAY, 60):
        assert orders.repartition(interval) is True

    assert Message.objects.drop_queue("orders") is True

    assert run_sql("SELECT count(*) FROM pgqueue_message") == [(0,)]


def test_partitions_are_for_good_and_the_error_tells_what_serves():
    orders = in_every_state(partition_interval=DAY)
    before = tables()

    with pytest.raises(
        InvalidArgument,
        match=r"Make a new queue without partitions, .* queue\('orders'\)\.redrive\(to=...\)",
    ):
        orders.repartition(None)

    assert tables() == before
    # It moves the number of messages that it reports:
    waiting = orders.metrics()
    Message.objects.create_queue("plain")
    assert orders.redrive(to="plain") == waiting.length - waiting.in_flight
    works(queue("plain"))


def test_new_partitions_follow_the_first_without_a_gap():
    orders = in_every_state()

    orders.repartition(DAY)

    with connection.cursor() as cursor:
        found = [each for each in find_partitions(cursor, Queue.objects.get().pk) if each.has_range]
    assert [each.end for each in found[:-1]] == [each.start for each in found[1:]]
    assert found[0].start is None
    now = run_sql("SELECT statement_timestamp()")[0][0]
    assert now + dt.timedelta(minutes=9) < found[0].end <= now + dt.timedelta(minutes=70)
    assert found[-1].end > now + 3 * DAY


def test_maintenance_goes_on_with_the_partitions():
    orders = in_every_state(retention=DAY)
    orders.repartition(HOUR)
    orders.purge()

    maintained = queue("orders").maintain()

    assert maintained.queue_name == "orders"
    works(orders)


def test_what_is_in_a_partition_stays_there_when_the_interval_changes():
    orders = in_every_state(partition_interval=DAY)
    before = everything()
    today = next(table for table, bounds in tables() if "FROM" in bounds)

    assert orders.repartition(HOUR) is True

    assert everything() == before
    assert Queue.objects.get().partition_interval == HOUR
    assert today in [table for table, _ in tables()]
    works(orders)


def test_partitions_with_messages_of_the_future_stay_when_the_interval_changes():
    orders = in_every_state(partition_interval=DAY)
    pk = Queue.objects.get().pk
    run_sql(
        "INSERT INTO pgqueue_message (queue_id, enqueued_at) "
        "VALUES (%s, statement_timestamp() + '2 days'), (%s, statement_timestamp() + '99 days')",
        [pk, pk],
    )
    before = everything()

    orders.repartition(HOUR)

    assert everything() == before
    works(orders)


def test_what_is_so_already_changes_nothing():
    orders = in_every_state(partition_interval=DAY)
    before = tables()

    assert orders.repartition(86400) is False
    assert tables() == before
    assert in_every_state("plain").repartition(None) is False


def test_progress_tells_what_is_done():
    orders = in_every_state()
    said: list[tuple[int, int]] = []
    run_sql("SELECT pg_stat_force_next_flush()")

    orders.repartition(DAY, progress=lambda *rows: said.append(rows))

    assert said == sorted(said)
    done, total = said[-1]
    assert done == total == Message.objects.count() + ArchivedMessage.objects.count()


# Refusals


@pytest.mark.parametrize("interval", [0, -1, 0.5, "1 day", True, float("nan"), 10**30])
def test_an_interval_that_is_none_is_refused(interval):
    orders = in_every_state()

    with pytest.raises(InvalidArgument, match="partition_interval"):
        orders.repartition(interval)

    assert len(tables()) == 1


def test_it_is_refused_inside_a_transaction():
    orders = in_every_state()

    with pytest.raises(RuntimeError, match="durable"), transaction.atomic():
        orders.repartition(DAY)

    assert len(tables()) == 1


def test_messages_dated_in_the_future_are_named_and_nothing_is_changed():
    orders = in_every_state()
    run_sql(
        "INSERT INTO pgqueue_message (queue_id, enqueued_at) VALUES (%s, '2200-01-01')",
        [Queue.objects.get().pk],
    )

    with pytest.raises(InvalidArgument, match="enqueued_at is"):
        orders.repartition(DAY)

    assert len(tables()) == 1
    assert run_sql(MADE) == []


def test_a_second_conversion_at_the_same_time_is_refused(actor):
    orders = in_every_state()
    pk = Queue.objects.get().pk
    actor.do(begin)
    actor.do(execute, "SELECT pg_advisory_xact_lock(%s, %s)", [conversion._CONVERTING, pk])

    with pytest.raises(QueueConverting, match="being converted"):
        orders.repartition(DAY)

    actor.do(rollback)
    assert orders.repartition(DAY) is True


@pytest.fixture
def late_closes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[psycopg.Connection[Any]]]:
    """Connections closed by the test stay open on the server until the test's end."""
    closed: list[psycopg.Connection[Any]] = []
    with monkeypatch.context() as patched:
        patched.setattr(psycopg.Connection, "close", lambda self: closed.append(self))
        yield closed
    for session in closed:
        session.close()


def test_the_next_call_does_not_wait_until_the_server_ends_the_session_of_the_last(late_closes):
    orders = in_every_state()

    convert_until("build", "orders", DAY)
    assert orders.repartition(DAY) is True
    assert orders.repartition(HOUR) is True

    assert [session.closed for session in late_closes] == [False] * 3


def test_a_queue_that_is_dropped_meanwhile_leaves_nothing_behind():
    orders = in_every_state()

    def drop(done: int, total: int) -> None:
        Message.objects.drop_queue("orders")

    with pytest.raises(QueueNotFound):
        orders.repartition(DAY, progress=drop)

    assert run_sql(MADE) == []


# Concurrent sessions


@pytest.mark.parametrize(
    "made", [{}, {"partition_interval": DAY}], ids=["into partitions", "other partitions"]
)
def test_a_long_transaction_makes_it_give_up_and_no_other_session_wait(made, actor, settings):
    settings.PGQUEUE = {"LOCK_SECONDS": 0.5}
    orders = in_every_state(**made)
    before = everything()
    actor.do(begin)
    actor.do(execute, "SELECT count(*) FROM pgqueue_message")

    with pytest.raises(QueueBusy, match="pg_stat_activity"):
        orders.repartition(HOUR if made else DAY)

    assert everything() == before
    sent = orders.send("on it goes")
    actor.do(rollback)
    assert orders.repartition(HOUR if made else DAY) is True
    assert Message.objects.filter(pk=sent).exists()
    assert run_sql(MADE) == []
    works(orders)


# Interrupted


STEPS = [
    (None, DAY, "bounds.add_bound"),
    (None, DAY, "bounds.validate_bound"),
    (None, DAY, "build"),
    (None, DAY, "switch_tables"),
    (DAY, HOUR, "replace_partitions"),
]


#: Every object that an interrupted conversion may leave, without the numbers in its name.
BOUND = {"pgqueue_bound", "pgqueue_bound_"}

Interrupted = tuple[BoundQueue, dt.timedelta | None]


@pytest.fixture(params=STEPS, ids=lambda step: step[2])
def interrupted(request: pytest.FixtureRequest, committed: None) -> Interrupted:
    """A queue whose conversion stopped right before a step, and the interval it was to get."""
    made, wanted, step = request.param
    orders = in_every_state(partition_interval=made)
    convert_until(step, "orders", wanted)
    return orders, wanted


def test_interrupted_at_any_step_the_queue_works_and_the_next_call_goes_on(interrupted):
    orders, wanted = interrupted
    assert {re.sub("(_q)?[0-9]+$", "", name) for (name,) in run_sql(MADE)} <= BOUND
    works(orders)
    before = everything()

    orders.repartition(wanted)

    assert everything() == before
    assert Queue.objects.get().partition_interval == wanted
    assert run_sql(MADE) == []
    works(orders)


def test_what_was_begun_can_be_cleared_away(interrupted):
    orders, _ = interrupted
    before = everything()

    orders.repartition(Queue.objects.get().partition_interval)

    assert everything() == before
    assert run_sql(MADE) == []
    works(orders)


@pytest.mark.usefixtures("interrupted")
def test_a_queue_whose_conversion_was_interrupted_can_be_dropped():
    assert Message.objects.drop_queue("orders") is True

    assert run_sql(MADE) == []


def test_sends_go_on_when_the_bound_passes_of_a_conversion_that_never_went_on(monkeypatch):
    monkeypatch.setattr(conversion, "MARGIN", dt.timedelta(0))
    monkeypatch.setattr(conversion, "LONGEST_STEP", dt.timedelta(seconds=1))
    orders = in_every_state()
    convert_until("switch_tables", "orders", DAY)
    [(bound,)] = run_sql(
        "SELECT substring(conname FROM '[0-9]+')::text FROM pg_constraint "
        "WHERE conname ~ '^pgqueue_bound' LIMIT 1"
    )
    until = dt.datetime.strptime(bound, "%Y%m%d%H%M%S").replace(tzinfo=dt.timezone.utc)
    run_sql("SELECT pg_sleep(extract(epoch FROM %s - clock_timestamp()) + 0.01)", [until])

    works(orders)
    sent = [orders.send("after"), *orders.send_batch(list(range(600)))]

    assert Message.objects.get(pk=sent[0]).enqueued_at < until
    assert {message.id for message in orders.read(qty=None)} >= set(sent)
    monkeypatch.undo()
    assert orders.repartition(DAY) is True
    works(orders)


# Rights


def test_who_may_use_the_queue_may_use_it_afterwards():
    orders = in_every_state()
    run_sql("DROP ROLE IF EXISTS pgqueue_sender")
    run_sql("CREATE ROLE pgqueue_sender")
    try:
        table = f"pgqueue_message_q{Queue.objects.get().pk}"
        run_sql(f"GRANT SELECT, INSERT ON {table} TO pgqueue_sender")
        for interval in (DAY, HOUR):
            orders.repartition(interval)
            for right in ("SELECT", "INSERT"):
                assert run_sql(
                    "SELECT has_table_privilege('pgqueue_sender', %s, %s)", [table, right]
                ) == [(True,)]
            assert run_sql(
                "SELECT has_table_privilege('pgqueue_sender', %s, 'DELETE')", [table]
            ) == [(False,)]
    finally:
        run_sql("DROP OWNED BY pgqueue_sender")
        run_sql("DROP ROLE pgqueue_sender")


def test_triggers_by_row_act_in_every_partition_afterwards():
    orders = in_every_state()
    table = Queue.objects.get().tables["message"]
    run_sql(
        "CREATE FUNCTION pg_temp.seen() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'seen'; END $$"
    )
    run_sql(
        f"CREATE TRIGGER seen AFTER INSERT ON {table} FOR EACH ROW "
        "WHEN (NEW.priority = 7) EXECUTE FUNCTION pg_temp.seen()"
    )
    for interval in (DAY, HOUR):
        orders.repartition(interval)
        orders.send(1)
        with pytest.raises(DatabaseError, match="seen"):
            orders.send(1, priority=7)


# Settings


def test_saving_a_queue_that_was_read_before_does_not_undo_the_conversion():
    orders = in_every_state()
    stale = Queue.objects.get()

    orders.repartition(DAY)
    stale.paused = True
    stale.save()

    stale.refresh_from_db()
    assert (stale.paused, stale.partition_interval) == (True, DAY)


def test_other_processes_go_on_with_what_they_remember_of_the_queue(actor):
    orders = in_every_state()
    for _ in range(8):  # enough times that its statements are prepared
        actor.do(call, "send", "orders", 1)
        actor.do(call, "read", "orders")

    for interval in (DAY, HOUR):
        orders.repartition(interval)
        for _ in range(8):
            sent = actor.do(call, "send", "orders", 1)
            [message] = actor.do(call, "read", "orders")
            assert actor.do(call, "archive", "orders", [message]) == [message.id]
        assert Message.objects.filter(pk=sent).exists()
