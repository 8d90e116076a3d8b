"""Reads that start after this process's last position: no earlier message is forgotten."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from django_pgqueue.engine.read import positions, reading
from django_pgqueue.engine.rows import deliveries
from django_pgqueue.models import BoundQueue, LiveMessage, Message, Queue
from tests.actors import begin, call, commit, execute
from tests.conftest import rolled_back, run_sql
from tests.engine.plans.plans import watched
from tests.messages import bodies

pytestmark = pytest.mark.django_db(transaction=True)

QTY = 10


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """No read sweeps from the front merely because time has passed."""
    monkeypatch.setattr(positions, "SWEEP_INTERVAL", 3600)


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """The statements that ran: read_ready starts at a position, read searches everything."""
    ran: list[str] = []

    def note(execute: Any, statement: str, *rest: Any) -> Any:
        if "SKIP LOCKED" in statement:
            promotes = "Process rechecks" in statement
            reads = "read" if "exhausted" in statement else "read_ready"
            ran.append("promote" if promotes else reads)
        return execute(statement, *rest)

    with connection.execute_wrapper(note):
        yield ran


@pytest.fixture
def begun(committed_orders: BoundQueue, never: None) -> BoundQueue:
    """A queue with a backlog, of which this process has read the first few batches."""
    committed_orders.send_batch(range(100))
    for _ in range(3):
        assert len(committed_orders.read(qty=QTY)) == QTY
    return committed_orders


def test_batches_from_a_backlog_come_in_order_and_complete(committed_orders, statements):
    committed_orders.send_batch(range(95))

    batches = []
    while batch := committed_orders.read(qty=QTY):
        batches.append(bodies(batch))

    assert [len(batch) for batch in batches] == [10] * 9 + [5]
    assert [body for batch in batches for body in batch] == list(range(95))
    assert statements[:10] == ["read", *["read_ready"] * 9]


def test_a_message_read_behind_the_position_tells_what_any_other_does(begun):
    [message] = begun.read(qty=1, vt=60)

    row = LiveMessage.objects.get(pk=message.id)
    assert (message.read_ct, message.attempts, message.group) == (1, 0, None)
    assert (message.vt, message.first_read_at) == (row.vt, row.first_read_at)
    assert (message.vt - message.first_read_at).total_seconds() == 60
    assert begun.archive(message) == [message.id]


def test_without_time_zones_its_dates_are_as_django_reads_them(begun, settings):
    settings.USE_TZ = False
    settings.TIME_ZONE = "Asia/Tokyo"

    [message] = begun.read(qty=1)

    row = LiveMessage.objects.get(pk=message.id)
    assert message.vt.tzinfo is None
    assert (message.vt, message.first_read_at) == (row.vt, row.first_read_at)


def test_a_higher_priority_comes_first_though_lower_ones_were_read(begun):
    begun.send("urgent", priority=1)

    assert bodies(begun.read(qty=2)) == ["urgent", 30]
    assert bodies(begun.read(qty=1)) == [31]


def test_a_lower_priority_comes_when_the_higher_ones_are_read(begun):
    begun.send_batch(["whenever"] * 5, priority=-1)

    assert len(begun.read(qty=70)) == 70
    assert bodies(begun.read(qty=10)) == ["whenever"] * 5


def test_what_is_due_again_comes_before_what_is_ready(begun):
    [message] = begun.read()
    begun.set_vt(message, 0)

    again = begun.read(qty=2)

    assert (again[0].id, again[0].read_ct) == (message.id, 2)
    assert bodies(again) == [30, 31]


def test_a_message_that_committed_late_is_found_when_a_read_comes_back_short(
    committed_orders, actor, never
):
    actor.do(begin)
    late = actor.do(call, "send", "orders", "late")
    committed_orders.send_batch(range(40))
    for _ in range(3):
        committed_orders.read(qty=QTY)
    actor.do(commit)

    fourth, fifth = committed_orders.read(qty=QTY), committed_orders.read(qty=QTY)

    assert len(fourth) == QTY
    assert [message.id for message in fifth] == [late]


def test_a_message_that_committed_late_is_found_by_the_next_read_from_the_start(
    committed_orders, actor, monkeypatch
):
    actor.do(begin)
    actor.do(call, "send", "orders", "late")
    committed_orders.send_batch(range(100))
    for _ in range(3):
        committed_orders.read(qty=QTY)
    actor.do(commit)

    monkeypatch.setattr(positions, "SWEEP_INTERVAL", 0)
    monkeypatch.setattr(positions, "SWEEP_SHARE", 0)

    assert bodies(committed_orders.read(qty=2)) == ["late", 30]


@pytest.mark.parametrize(("took", "rest"), [(0.0, 1.0), (0.1, 2.0), (0.25, 5.0), (60.0, 5.0)])
def test_reads_from_the_start_are_at_most_five_seconds_apart_however_long_one_took(
    committed_orders, monkeypatch, took, rest
):
    now = 0.0
    monkeypatch.setattr(positions.time, "monotonic", lambda: now)
    committed_orders.send_batch(range(100))
    position = positions.position_in(Message.objects.resolve("orders").opened)
    committed_orders.read(qty=QTY)
    assert position.bounds() is positions._START

    found = Message.objects.resolve("orders").opened.run(
        "read/read_ready",
        {
            "vt": dt.timedelta(60),
            "qty": QTY,
            "process_id": None,
            **positions._START,
        },
        **reading.EACH,
    )
    began, now = now, now + took
    position.advance(positions._START, QTY, deliveries(found), began)

    now = began + rest - 0.001
    assert position.bounds() is not positions._START
    now = began + rest
    assert position.bounds() is positions._START


def test_groups_are_read_in_order_beside_a_position(begun):
    begun.send_batch(["a1", "a2"], group="a")

    seen = []
    while batch := begun.read(qty=QTY):
        seen += bodies(batch)
        begun.archive(batch)

    assert [body for body in seen if body in ("a1", "a2")] == ["a1", "a2"]
    assert len(seen) == 72


def test_the_next_head_of_a_group_is_read_behind_the_position(committed_orders, never, statements):
    committed_orders.send_batch(["a1", "a2"], group="a")
    committed_orders.send_batch(range(49), group=[f"g{n}" for n in range(49)])
    first = committed_orders.read(qty=QTY)
    assert bodies(first) == ["a1", *range(9)]
    assert bodies(committed_orders.read(qty=QTY)) == [*range(9, 19)]
    committed_orders.archive(first)
    statements.clear()

    following = [bodies(committed_orders.read(qty=QTY)) for _ in range(3)]

    assert following == [[*range(19, 29)], [*range(29, 39)], [*range(39, 49)]]
    assert statements == ["read_ready"] * 3
    assert bodies(committed_orders.read(qty=QTY)) == ["a2"]


def test_a_new_group_gets_its_head_behind_the_position(committed_orders, never, statements):
    committed_orders.send_batch(range(40), group=[f"g{n}" for n in range(40)])
    for _ in range(3):
        assert len(committed_orders.read(qty=QTY)) == QTY
    committed_orders.send("new", group="new")
    statements.clear()

    seen = [bodies(committed_orders.read(qty=5)) for _ in range(2)]

    assert seen == [[*range(30, 35)], [*range(35, 40)]]
    assert statements == ["read_ready", "promote", "read_ready", "read_ready"]
    assert bodies(committed_orders.read()) == ["new"]


def test_the_first_group_gets_its_head_by_a_read_from_the_start(begun, statements):
    begun.send("a1", group="a")
    statements.clear()

    seen = [*bodies(begun.read(qty=QTY)), *bodies(begun.read(qty=QTY))]

    # From then on the process knows of groups.
    assert statements == ["read_ready", "read", "promote", "read", "read_ready"]
    assert len(seen) == 2 * QTY
    assert not run_sql("SELECT 1 FROM pgqueue_recheck")


def test_a_read_that_is_rolled_back_moves_no_position(begun):
    with rolled_back():
        given_back = begun.read(qty=QTY, in_transaction=True)

    assert bodies(begun.read(qty=QTY)) == bodies(given_back)


def test_a_queue_that_is_made_again_is_read_from_the_start(begun):
    before = positions.position_in(Message.objects.resolve("orders").opened)
    pk = Message.objects.resolve("orders").pk
    begun.drop()

    Queue(id=pk, name="orders").save()

    again = Message.objects.resolve("orders")
    assert again.pk == pk
    assert positions.position_in(again.opened) is not before
    assert positions.position_in(again.opened) is positions.position_in(
        Message.objects.resolve("orders").opened
    )


@pytest.mark.parametrize("groups", [None, [f"g{n}" for n in range(20_000)]])
def test_dead_rows_under_an_old_snapshot_cost_a_read_nothing(
    committed_orders, actor, never, groups
):
    committed_orders.send("read before the snapshot")
    actor.do(begin)
    actor.do(execute, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    actor.do(execute, "SELECT pg_current_xact_id()")
    committed_orders.send_batch(range(20_000), group=groups)
    while run_sql("SELECT 1 FROM pgqueue_recheck LIMIT 1"):
        committed_orders.read(qty=1)
    assert len(committed_orders.read(qty=9000)) == 9000
    for _ in range(3):
        assert committed_orders.archive(committed_orders.read(qty=3000))
    # As after a restart of the process: reads from the start find the position again.
    positions._positions.clear()
    for _ in range(2):
        assert len(committed_orders.read(qty=QTY)) == QTY

    queue = Message.objects.resolve("orders")
    behind = positions.position_in(queue.opened).bounds()
    assert behind

    assert buffers(queue, behind) < 1000
    # Without a starting position, the read passes over the dead rows.
    assert buffers(queue, positions._START) > 2 * buffers(queue, behind)


def buffers(queue: Queue, bounds: dict[str, Any]) -> int:
    """The number of buffers that a read with these bounds touches."""
    vt = dt.timedelta(seconds=30)
    params = {"vt": vt, "qty": QTY, "process_id": None, **bounds}
    with rolled_back(), watched(connection) as plans:
        rows = queue.opened.run("read/read_ready", params, **reading.EACH)
        assert len(rows) == QTY
    return plans[0].buffers
