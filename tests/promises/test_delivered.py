"""Leases, receipts and deliveries, while many read and settle as fast as they can."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

from django_pgqueue.models import ArchivedMessage, Message, Queue, queue
from tests.conftest import run_sql
from tests.promises import players
from tests.promises.consumers import KINDS, handler_of
from tests.promises.draining import drain
from tests.promises.full_speed import IN_FLIGHT
from tests.promises.oracles import deliveries, held_by_two, over_the_rate, settled_late
from tests.promises.pages import promise
from tests.promises.players import read_and_end
from tests.waiting import until

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

EVERY_WAY = [way for way in players.WAYS if way != "leave"]
FAULTS = [None, "cut_connections", "time_out_statements"]


@promise("During a lease no other reader has the message.")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("qty", [1, [1, 3, 40]], ids=["single", "batches"])
def test_no_message_is_read_during_its_lease(full_speed, qty, fault):
    Message.objects.create_queue("orders", max_deliveries=1000)
    queue("orders").send_batch(range(1000))
    full_speed.threads(partial(read_and_end, ways=EVERY_WAY, qty=qty))
    full_speed.threads(partial(read_and_end, ways=["leave"], vt=0.03), number=1)
    full_speed.threads(players.send, number=1)
    if fault:
        getattr(full_speed, fault)()

    full_speed.run()

    notes = full_speed.notes()
    assert held_by_two(notes) == []
    assert any(len(reads) > 1 for reads in deliveries(notes).values())


@promise("During a lease no other reader has the message.")
@pytest.mark.parametrize("kind", [*KINDS, "killed processes"])
def test_no_handler_runs_beside_another_of_its_message(full_speed, consume, kind):
    Message.objects.create_queue("orders", max_deliveries=10_000)
    queue("orders").send_batch(range(1000))
    if kind == "killed processes":
        full_speed.processes(partial(read_and_end, qty=[1, 20], vt=0.5, ways=EVERY_WAY))
        full_speed.kill_processes()
        full_speed.run()
        assert held_by_two(full_speed.notes()) == []
        return
    handler = handler_of(kind, full_speed.journal)
    started = [consume(handlers=[handler], options={"workers": 6}) for _ in range(2)]

    full_speed.run()
    for each in started:
        each.stop()

    running: Counter[int] = Counter()
    for note in full_speed.notes():
        if note["event"] in ("read", "ends"):
            running[note["id"]] += 1 if note["event"] == "read" else -1
            assert running[note["id"]] <= 1


@promise("During a lease no other reader has the message.")
@pytest.mark.parametrize("function", ["read", "read_grouped", "pop"])
def test_no_message_is_read_twice_by_pgmqs_functions(full_speed, committed_pgmq, function):
    Message.objects.create_queue("orders", max_deliveries=10_000)
    queue("orders").send_batch(range(3000))
    if function == "pop":
        full_speed.threads(players.pop_by_pgmq)
    else:
        full_speed.threads(partial(players.read_by_pgmq, function=function, qty=20))

    full_speed.run()

    notes = full_speed.notes()
    assert held_by_two(notes) == []
    if function == "pop":
        assert {len(reads) for reads in deliveries(notes).values()} == {1}


@promise(
    "A settlement is fenced by its receipt: a late reader cannot settle a message that another "
    "reader has leased since.",
    "It learns this from lost or LeaseLost.",
)
@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "groups"])
@pytest.mark.parametrize("qty", [1, [1, 3, 40]], ids=["single", "batches"])
def test_a_late_reader_settles_nothing(full_speed, qty, grouped):
    Message.objects.create_queue("orders", max_deliveries=10_000)
    group = [f"group {n % 9}" if grouped else None for n in range(3000)]
    queue("orders").send_batch(range(3000), group=group)
    ways = [way for way in EVERY_WAY if way != "cancel"]
    full_speed.threads(partial(read_and_end, ways=ways, qty=qty, vt=0.01, work=0.03))

    full_speed.run()

    notes = full_speed.notes()
    assert settled_late(notes) == []
    assert any(note["lost"] for note in full_speed.notes("ended"))


# Until settled


@promise(
    "Every committed message is delivered until it is settled: archived, deleted, failed or "
    "cancelled, or until it expires.",
    "No message gets stuck: a lease expires by itself, and a retry has a time.",
)
@pytest.mark.parametrize(
    ("groups", "fault"),
    [(0, None), (5, None), (0, "cut_connections"), (5, "kill_processes")],
)
def test_every_message_is_delivered_until_it_is_settled(full_speed, fault, groups):
    Message.objects.create_queue("orders", max_deliveries=10_000)
    orders = queue("orders")
    full_speed.threads(partial(players.send, groups=groups), 3)
    full_speed.threads(partial(players.send, groups=groups, expires=0.05), 1)
    full_speed.threads(partial(read_and_end, ways=[*EVERY_WAY, "leave"], qty=[1, 5, 40], vt=0.3), 3)
    full_speed.processes(partial(read_and_end, ways=EVERY_WAY, qty=[1, 40], vt=0.3), 2)
    if fault:
        getattr(full_speed, fault)()

    full_speed.run()
    last = drain(orders)

    found = deliveries(full_speed.notes())
    deleted = {
        note["id"]
        for note in full_speed.notes("ends")
        if note["way"] == "delete" and note["id"] in found
    }
    ended = dict(ArchivedMessage.objects.values_list("pk", "state"))
    stored = {pk for (pk,) in run_sql("SELECT id FROM pgqueue_message")}
    assert stored == ended.keys()
    assert {pk for pk, state in ended.items() if state != "EXPIRED"} <= found.keys() | set(last)
    assert found.keys() - stored <= deleted


# max_deliveries


@promise(
    "A message is delivered at most max_deliveries times, 20 by default.",
    "Then it goes to the dead-letter queue, or to the archive as FAILED.",
)
@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({}, None),
        ({"max_deliveries": 3}, "cut_connections"),
        ({"max_deliveries": 3}, "time_out_statements"),
        ({"limit": 6}, None),
    ],
)
def test_no_message_is_delivered_more_often_than_max_deliveries(full_speed, settings, fault):
    Message.objects.create_queue("orders", **settings)
    dead = Message.objects.create_queue("dead")
    if not settings:
        Queue.objects.filter(name="orders").update(dead_letter_queue=dead)
    orders, most = queue("orders"), settings.get("max_deliveries", 20)
    orders.send_batch(range(60))
    again = partial(read_and_end, ways=["retry", "set_vt", "leave"], vt=0.005)
    full_speed.threads(partial(again, qty=1), 4)
    full_speed.threads(partial(again, qty=[5, 40]), 4)
    if fault:
        getattr(full_speed, fault)()

    full_speed.run()

    def ended() -> bool:
        orders.read(qty=100, vt=0)
        return orders.metrics().length == 0

    until(ended, 60)
    found = deliveries(full_speed.notes())
    assert max(len(reads) for reads in found.values()) <= most
    assert max(read["read_ct"] for reads in found.values() for read in reads) <= most
    failed = Message.objects.metrics("dead").length if not settings else 0
    assert failed or ArchivedMessage.objects.filter(state="FAILED").count() == 60
    assert failed in (0, 60)


@promise("A released delivery is not counted, also when a deploy interrupts the handler.")
def test_a_released_delivery_is_not_counted(full_speed):
    Message.objects.create_queue("orders", max_deliveries=1)
    queue("orders").send_batch(range(20))
    full_speed.threads(partial(read_and_end, ways=["release"], qty=[1, 20]))

    full_speed.run(least=1)

    notes = full_speed.notes("read")
    assert {note["read_ct"] for note in notes} == {1}
    assert max(len(reads) for reads in deliveries(notes).values()) > 1
    assert run_sql("SELECT count(*) FROM pgqueue_live") == [(20,)]


# Limits


@promise("A queue's limits and rates are never exceeded, over all processes.")
def test_limits_and_rates_hold_over_all_processes(full_speed):
    Message.objects.create_queue("orders", max_deliveries=10_000, limit=3, rate="300/s", burst=5)
    queue("orders").send_batch(range(3000))
    full_speed.processes(partial(read_and_end, qty=[1, 2, 5], ways=EVERY_WAY), 3)
    seen = full_speed.observe(IN_FLIGHT)

    full_speed.run(least=50)

    assert max(seen) <= 3
    assert over_the_rate([note["read_at"] for note in full_speed.notes("read")], 300, 5) == []


ELSEWHERE: dict[str, Any] = {
    "A message is delivered again if its lease expired or its consumer died before the outcome was "
    "written.": [
        "tests/worker/test_processes.py::test_a_killed_consumers_leases_are_rescued_before_their_timeout",
        "tests/acceptance/chaos/test_faults.py::test_consumers_killed_at_any_moment",
    ],
    "Consumers extend leases while handlers run and until outcomes are written.": [
        "tests/worker/test_leases.py::test_a_lease_is_extended_while_its_handler_runs",
        "tests/worker/test_announcer.py::"
        "test_outcomes_are_written_and_reading_stops_while_a_receiver_does_not_return",
    ],
    "So a slow handler, log or receiver of signals alone causes no second delivery.": [
        "tests/worker/test_leases.py::test_a_lease_is_extended_while_its_handler_runs",
        "tests/worker/test_announcer.py::test_slow_receivers_cause_no_second_delivery",
    ],
    "Only a cancel takes a message from whoever holds it, even if it is called with a receipt.": [
        "tests/worker/test_cancel.py::test_the_outcome_of_a_cancelled_run_changes_nothing",
        "tests/worker/test_cancel.py::test_cancelling_takes_ids_messages_and_receipts",
    ],
    "A lease is committed without a flush, so a server crash may undo the leases of the last "
    "moments (under a second).": [
        "tests/acceptance/test_unflushed.py::test_what_only_moves_a_lease_is_not_flushed"
    ],
    "Their messages are delivered again, and the undone deliveries are not counted.": [
        "tests/acceptance/test_unflushed.py::"
        "test_leases_that_a_crash_takes_are_delivered_again_and_their_receipts_are_no_good"
    ],
}
EXPLAINED = ["So a handler that crashes the server within this time can exceed max_deliveries."]
