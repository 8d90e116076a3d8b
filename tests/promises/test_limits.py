"""Limits and rates, while many take, settle and give back messages as fast as they can."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from django_pgqueue import bare
from django_pgqueue.handlers import autodiscover, handlers
from django_pgqueue.models import BoundQueue, Message, Queue, queue
from tests.conftest import run_sql
from tests.promises import players
from tests.promises.consumers import KINDS, handler_of
from tests.promises.full_speed import IN_FLIGHT, IN_FLIGHT_OF_A_GROUP
from tests.promises.oracles import at_once, over_the_rate, settled_late
from tests.promises.pages import promise
from tests.promises.players import read_and_end
from tests.tasks.framework import HAS_TASKS
from tests.waiting import until

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

LIMIT = "A limit is never exceeded."
RATE = "A rate is never exceeded."
ANY_TIME = "In any time T at most rate..."
MANY = 3000

#: The ways to read and settle, in threads.
READS: dict[str, Callable[[Any], object]] = {
    "one": partial(read_and_end, ways=["archive", "retry"]),
    "one, back": partial(read_and_end, ways=["archive", "release", "retry later", "set_vt"]),
    "many": partial(read_and_end, qty=[1, 3, 20], ways=["archive", "fail", "retry"]),
    "expiring": partial(read_and_end, qty=[1, 3], vt=0.02, ways=["archive", "leave"]),
    "locked": partial(read_and_end, in_transaction=True, work=0.002),
    "grouped": partial(read_and_end, read=bare.read_grouped, qty=[1, 3, 20]),
    "in rounds": partial(read_and_end, read=bare.read_grouped_rr, qty=[1, 3, 20]),
}


GROUPS = ["group 0", "group 1", "group 2"]


def made(*, groups: Sequence[str | None] = (None, *GROUPS), **settings: Any) -> BoundQueue:
    """The queue "orders" with many messages in these groups."""
    Message.objects.create_queue("orders", max_deliveries=10_000, **settings)
    orders = queue("orders")
    orders.send_batch(range(MANY), group=[groups[n % len(groups)] for n in range(MANY)])
    return orders


def expect_all_slots_free(orders: BoundQueue, limit: int) -> None:
    """Once all leases have ended, as many messages as the limit can be in flight."""
    found: list[int] = []

    def fill() -> bool:
        found.extend(message.id for message in orders.read(qty=limit, vt=60))
        return len(found) >= limit

    until(fill)
    assert len(found) == limit


# The whole queue


@promise(
    LIMIT,
    "The database counts what is in flight while no other read of the queue can lease...",
    "A retried or delayed message holds no slot while it waits, so failing messages do not block "
    "others.",
)
@pytest.mark.parametrize("read", [read for read in READS if read != "locked"])  # refused
def test_a_limit_holds_for_all_kinds_of_reads(full_speed, read):
    orders = made(limit=4)
    full_speed.threads(READS[read])
    seen = full_speed.observe(IN_FLIGHT)

    full_speed.run()

    notes = full_speed.notes()
    assert max(seen) <= 4
    assert read == "expiring" or at_once(notes) <= 4
    if read != "expiring":
        expect_all_slots_free(orders, 4)


@promise(LIMIT)
@pytest.mark.parametrize("fault", [None, "kill_processes"])
def test_a_limit_holds_over_all_processes(full_speed, fault):
    made(limit=3)
    full_speed.processes(
        partial(read_and_end, qty=[1, 3], vt=0.5, ways=["archive", "retry", "release"]), number=3
    )
    seen = full_speed.observe(IN_FLIGHT)
    if fault:
        full_speed.kill_processes()

    full_speed.run()

    assert max(seen) <= 3
    assert at_once(full_speed.notes()) <= 3
    assert not fault or full_speed.killed


@promise(LIMIT, "There is no counter that could be wrong after a crash...")
@pytest.mark.parametrize("fault", ["cut_connections", "time_out_statements"])
def test_a_limit_holds_and_no_slot_is_lost_whatever_is_cut_off(full_speed, fault):
    orders = made(limit=4)
    full_speed.threads(
        partial(read_and_end, qty=[1, 3], vt=0.3, ways=["archive", "retry", "release"])
    )
    seen = full_speed.observe(IN_FLIGHT)
    getattr(full_speed, fault)()

    full_speed.run()

    assert max(seen) <= 4
    assert at_once(full_speed.notes()) <= 4
    expect_all_slots_free(orders, 4)


@promise(LIMIT)
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"ACK_FIRST", "locked"}))  # refused
def test_a_limit_holds_for_all_kinds_of_handlers(full_speed, consume, kind):
    orders = made(limit=4)
    handler = handler_of(kind, full_speed.journal)
    started = [consume(handlers=[handler], options={"workers": 6}) for _ in range(2)]
    seen = full_speed.observe(IN_FLIGHT)

    full_speed.run()
    for each in started:
        each.stop()

    assert max(seen) <= 4
    assert at_once(full_speed.notes()) <= 4
    expect_all_slots_free(orders, 4)


# Groups


@promise(LIMIT)
@pytest.mark.parametrize("read", READS)
def test_a_limit_of_groups_holds_for_all_kinds_of_reads(full_speed, read):
    made(group_limit=2)
    full_speed.threads(READS[read])
    seen = full_speed.observe(IN_FLIGHT_OF_A_GROUP)

    full_speed.run()

    assert max(seen) <= 2
    assert read == "expiring" or at_once(full_speed.notes(), by="group") <= 2


@promise(LIMIT)
@pytest.mark.parametrize("kind", ["NACK_ON_ERROR", "TRANSACTIONAL", "locked"])
def test_a_limit_of_groups_holds_for_all_kinds_of_handlers(full_speed, consume, kind):
    made(group_limit=2)
    handler = handler_of(kind, full_speed.journal)
    started = [consume(handlers=[handler], options={"workers": 6}) for _ in range(2)]
    seen = full_speed.observe(IN_FLIGHT_OF_A_GROUP)

    full_speed.run()
    for each in started:
        each.stop()

    assert max(seen) <= 2
    assert at_once(full_speed.notes(), by="group") <= 2


@promise(LIMIT)
@pytest.mark.skipif(not HAS_TASKS, reason="needs Django's Tasks")
@pytest.mark.parametrize("setting", ["limit", "group_limit"])
def test_a_limit_holds_for_tasks(full_speed, consume, committed_backend, setting):
    from tests.promises import tasks

    tasks.at_once.clear()
    Queue.objects.filter(name="default").update(**{setting: 3})
    Queue.objects.forget_all()
    group = "a" if setting == "group_limit" else None
    for number in range(400):
        tasks.overlap.using(group=group).enqueue(number)
    autodiscover()
    for _ in range(2):
        consume(handlers=handlers(["default"]), options={"workers": 6})
    seen = full_speed.observe(IN_FLIGHT)

    full_speed.run(least=0, until=lambda: len(tasks.at_once) >= 400)

    assert max(seen) <= 3
    assert max(tasks.at_once) == 3


@promise(LIMIT)
def test_a_limit_of_one_group_holds_while_it_changes(full_speed):
    orders = made(groups=GROUPS, group_limit=4)
    one = orders.group("group 1")
    one.limit(2)
    full_speed.threads(READS["many"])
    seen = full_speed.observe(
        "SELECT count(*) FROM pgqueue_deferred WHERE state = 'PROCESSING' AND group_key = 'group 1'"
    )

    def change() -> None:
        one.limit(random.choice([1, 2]))
        time.sleep(0.01)

    full_speed.beside(change)
    full_speed.run(until=lambda: any(n["group"] == "group 1" for n in full_speed.notes("read")))

    assert max(seen) <= 2


@promise(LIMIT)
def test_no_message_of_a_group_starts_while_the_group_is_paused(full_speed):
    one = made(groups=GROUPS, group_limit=2).group("group 1")
    pauses: list[tuple[int, int]] = []
    full_speed.threads(READS["many"], 6)

    def change() -> None:
        one.pause()
        paused = server_clock()
        time.sleep(0.05)
        pauses.append((paused, server_clock()))
        one.resume()
        time.sleep(0.05)

    full_speed.beside(change)
    full_speed.run(
        until=lambda: (
            pauses and any(note["group"] == "group 1" for note in full_speed.notes("read"))
        )
    )

    starts = [note["read_at"] for note in full_speed.notes("read") if note["group"] == "group 1"]
    assert starts
    assert pauses
    assert [at for at in starts for paused, until in pauses if paused < at < until] == []


def server_clock() -> int:
    [(now,)] = run_sql("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    return int(now)


# Rates


@promise(RATE, ANY_TIME, "A start is a delivery.", "A retry, a message that was released...")
@pytest.mark.parametrize("read", sorted(READS.keys() - {"locked"}))
def test_a_rate_holds_for_all_kinds_of_reads(full_speed, read):
    made(rate="150/s", burst=4)
    full_speed.threads(READS[read])

    full_speed.run(least=50)

    starts = [note["read_at"] for note in full_speed.notes("read")]
    assert over_the_rate(starts, 150, 4) == []


@promise(RATE, ANY_TIME)
@pytest.mark.parametrize("fault", ["kill_processes", "cut_connections", "time_out_statements"])
def test_a_rate_holds_over_processes_whatever_is_cut_off(full_speed, fault):
    made(rate="150/s", burst=4)
    full_speed.processes(partial(read_and_end, qty=[1, 3], vt=0.5))
    getattr(full_speed, fault)()

    full_speed.run(least=50)

    starts = [note["read_at"] for note in full_speed.notes("read")]
    assert over_the_rate(starts, 150, 4) == []


@promise(RATE, ANY_TIME)
@pytest.mark.parametrize("settings", [{"group_limit": 3}, {}])
@pytest.mark.parametrize("read", ["one", "many", "expiring", "grouped"])
def test_a_rate_of_groups_holds_for_all_kinds_of_reads(full_speed, read, settings):
    made(groups=GROUPS, group_rate="60/s", **settings)
    full_speed.threads(READS[read])

    full_speed.run(until=lambda: {note["group"] for note in full_speed.notes("read")} == {*GROUPS})

    for group in GROUPS:
        starts = [note["read_at"] for note in full_speed.notes("read") if note["group"] == group]
        assert over_the_rate(starts, 60, 3 if settings else 1) == []
        assert starts


@promise(RATE)
@pytest.mark.parametrize("kind", ["NACK_ON_ERROR", "TRANSACTIONAL", "batch"])
def test_rates_hold_for_all_kinds_of_handlers(full_speed, consume, kind):
    made(rate="150/s", burst=4, group_rate="40/s")
    handler = handler_of(kind, full_speed.journal)
    started = [consume(handlers=[handler], options={"workers": 6}) for _ in range(2)]

    full_speed.run(least=50)
    for each in started:
        each.stop()

    notes = full_speed.notes("read")
    assert over_the_rate([note["read_at"] for note in notes], 150, 4) == []
    starts = [note["read_at"] for note in notes if note["group"] == "group 1"]
    assert over_the_rate(starts, 40, 1) == []


# Leases


@promise(
    "From such a queue a consumer fetches only as many messages as its handlers can start at once.",
    "So a delivery is the start of a handler, and no process holds slots for messages in its "
    "buffer.",
)
def test_a_consumer_holds_slots_for_running_handlers_only(full_speed, consume, held):
    made(limit=50)
    consume(held.work, options={"workers": 3})
    seen = full_speed.observe(IN_FLIGHT)
    held.until_begun()

    full_speed.run(least=1)

    assert max(seen) == 3


@promise("The old handler cannot settle its message.")
def test_a_handler_that_outlives_its_lease_settles_nothing_that_another_has(full_speed):
    made(limit=20)
    full_speed.threads(partial(read_and_end, vt=0.02, work=0.05, ways=["archive", "retry", "fail"]))

    full_speed.run()

    notes = full_speed.notes()
    assert settled_late(notes) == []
    assert any(note["lost"] for note in notes if note["event"] == "ended")


# PGMQ's functions


@promise(LIMIT, RATE)
@pytest.mark.parametrize("function", ["read", "read_grouped", "read_grouped_rr", "read_with_poll"])
def test_limits_and_rates_hold_for_pgmqs_functions(full_speed, committed_pgmq, function):
    made(limit=4, rate="200/s", burst=4, group_limit=2)
    more = ", 1, 10" if function == "read_with_poll" else ""  # polls for a second, every 10 ms
    full_speed.threads(partial(players.read_by_pgmq, function=function, qty=2, more=more))
    seen = full_speed.observe(IN_FLIGHT)
    seen_of_a_group = full_speed.observe(IN_FLIGHT_OF_A_GROUP)

    full_speed.run(least=50)

    notes = full_speed.notes("read")
    assert max(seen) <= 4
    assert max(seen_of_a_group) <= 2
    assert over_the_rate([note["read_at"] for note in notes], 200, 4) == []


ELSEWHERE = {
    "Consumers extend leases as long as they run: this needs a process that hangs, or lost the "
    "database.": ["tests/worker/test_leases.py::test_a_lease_is_extended_while_its_handler_runs"],
    "A server crash may undo the leases of the last moments, and with them the slots and starts.": [
        "tests/acceptance/test_crash.py::test_limits_hold_after_a_crash"
    ],
    "If a process hangs for longer than its lease, its message, or another one in its place, is "
    "delivered elsewhere while the old handler may still work.": [
        "tests/acceptance/chaos/test_faults.py::test_consumers_stopped_past_their_leases"
    ],
    "On a queue with limit or group_limit, or with a group that has its own limit, it is refused "
    "with InvalidArgument.": [
        "tests/worker/test_limits.py::test_ack_first_is_refused_on_a_queue_with_a_limit"
    ],
    "If the limit comes later, the consumer stops reading from the queue and logs this error.": [
        "tests/worker/test_limits.py::test_ack_first_stops_when_its_queue_gets_a_limit"
    ],
    "Rates hold.": ["tests/worker/test_limits.py::test_ack_first_keeps_a_rate"],
}
EXPLAINED = [
    'A consumer with ack_policy="ACK_FIRST" cannot keep a limit: a message leaves the queue, and '
    "its slot, before its handler starts.",
    "An expired lease may leave a handler running.",
    "Their handlers may still run when other messages start.",
]
