"""The order of messages, while many read, settle and give back as fast as they can."""

from __future__ import annotations

import random
from collections import defaultdict
from functools import partial

import pytest

from django_pgqueue import bare
from django_pgqueue.models import BoundQueue, Message, queue
from tests.conftest import run_sql
from tests.promises.consumers import KINDS, handler_of
from tests.promises.draining import drain
from tests.promises.full_speed import IN_FLIGHT_OF_A_GROUP
from tests.promises.oracles import at_once, out_of_order, out_of_turn
from tests.promises.pages import promise
from tests.promises.players import read_and_end, read_by_pgmq, read_in_line, send

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

ONE_AT_A_TIME = (
    "In a FIFO group messages are delivered strictly one at a time, across all consumers."
)
NEXT = "The next is delivered when the one before it is settled, even after ten attempts."
GROUPS = 12

MIXED = ["archive", "archive", "fail", "delete", "retry", "retry later", "release", "set_vt"]
READS = {
    "one": partial(read_and_end, ways=MIXED),
    "many": partial(read_and_end, ways=MIXED, qty=[1, 3, 40]),
    "expiring": partial(read_and_end, ways=["archive", "leave"], qty=[1, 3], vt=0.02),
    "locked": partial(read_and_end, ways=["archive", "retry"], in_transaction=True, work=0.001),
    "grouped": read_in_line,
    "in rounds": partial(read_in_line, read=bare.read_grouped_rr),
    "ten attempts": partial(read_and_end, ways=["retry"] * 15 + ["archive"]),
}


def made(number: int = 2000) -> BoundQueue:
    """The queue "orders" with messages in twelve groups."""
    Message.objects.create_queue("orders", max_deliveries=10_000, visibility_timeout=5)
    orders = queue("orders")
    orders.send_batch(range(number), group=[f"group {n % GROUPS}" for n in range(number)])
    return orders


def ids() -> list[tuple[str, int]]:
    return [(group, pk) for group, pk in run_sql("SELECT group_key, id FROM pgqueue_message")]


@promise(ONE_AT_A_TIME, NEXT)
@pytest.mark.parametrize(
    ("read", "fault"),
    [
        *((read, None) for read in READS),
        *((read, "cut_connections") for read in ("many", "grouped", "locked")),
        *((read, "time_out_statements") for read in ("many", "grouped")),
    ],
)
def test_messages_of_a_group_are_delivered_in_order_and_one_at_a_time(full_speed, read, fault):
    orders = made()
    sent = ids()
    full_speed.threads(READS[read])
    seen = full_speed.observe(IN_FLIGHT_OF_A_GROUP)
    if fault:
        getattr(full_speed, fault)()

    full_speed.run()

    notes = full_speed.notes()
    if read not in ("grouped", "in rounds"):  # one reader holds followers together with their head
        assert max(seen) <= 1
    if read != "expiring":  # its readers go on after the end of their leases
        # A locked reader that is cut off goes on without its transaction, until it settles.
        last = "ended" if read == "locked" else "ends"
        assert at_once(notes, by="group", last=last) == 1
    assert out_of_order(notes) == []
    assert out_of_turn(notes, sent) == []
    if read == "ten attempts":
        assert max(note["read_ct"] for note in full_speed.notes("read")) > 10
    if not fault:
        drain(orders)


@promise(ONE_AT_A_TIME, NEXT)
def test_groups_keep_their_order_over_processes_that_are_killed(full_speed):
    made()
    sent = ids()
    full_speed.processes(partial(read_in_line, vt=0.5), 2)
    full_speed.processes(partial(read_and_end, ways=MIXED, vt=0.5, qty=[1, 3]), 1)
    full_speed.kill_processes()

    full_speed.run()

    notes = full_speed.notes()
    assert full_speed.killed
    assert out_of_order(notes) == []
    assert out_of_turn(notes, sent) == []


@promise(ONE_AT_A_TIME)
def test_groups_keep_their_order_while_messages_are_sent(full_speed):
    orders = made(50)
    full_speed.threads(partial(send, groups=GROUPS), 1)  # so that the ids are in order
    full_speed.threads(READS["many"], 3)
    full_speed.threads(read_in_line, 3)

    full_speed.run()

    notes = full_speed.notes()
    assert at_once(notes, by="group") == 1
    assert out_of_order(notes) == []
    drain(orders)


@promise(ONE_AT_A_TIME)
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"ACK_FIRST"}))
def test_all_kinds_of_handlers_run_one_of_a_group_at_a_time(full_speed, consume, kind):
    orders = made()
    handler = handler_of(kind, full_speed.journal)
    started = [consume(handlers=[handler], options={"workers": 6}) for _ in range(2)]

    full_speed.run()
    for each in started:
        each.stop()

    notes = full_speed.notes()
    assert at_once(notes, by="group") == 1
    assert out_of_order(notes) == []
    drain(orders)


@promise(ONE_AT_A_TIME)
@pytest.mark.parametrize("function", ["read", "read_grouped_head"])
def test_pgmqs_functions_deliver_one_of_a_group_at_a_time(full_speed, committed_pgmq, function):
    made()
    full_speed.threads(partial(read_by_pgmq, function=function, qty=5))
    seen = full_speed.observe(IN_FLIGHT_OF_A_GROUP)

    full_speed.run()

    notes = full_speed.notes()
    assert max(seen) <= 1
    assert at_once(notes, by="group") == 1
    assert out_of_order(notes) == []


@promise("Without groups, reads take the highest priority first, then the lowest id.")
@pytest.mark.parametrize("qty", [1, [1, 5, 40]], ids=["single", "batches"])
def test_a_reader_gets_the_highest_priority_then_the_lowest_id(full_speed, qty):
    Message.objects.create_queue("orders")
    draw = random.Random(7)
    priorities = [draw.choice([-5, 0, 0, 0, 9]) for _ in range(3000)]
    for priority in sorted(set(priorities)):
        queue("orders").send_batch(range(priorities.count(priority)), priority=priority)
    full_speed.threads(partial(read_and_end, ways=["archive"], qty=qty))

    full_speed.run(until=lambda: run_sql("SELECT count(*) FROM pgqueue_live") == [(0,)])

    taken: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for note in full_speed.notes("read"):
        taken[note["by"]].append((-note["priority"], note["id"]))
    assert sum(map(len, taken.values())) == 3000
    for reader in taken.values():
        assert reader == sorted(reader)


ELSEWHERE = {
    "Ids follow the order of sends, not of commits.": [
        "tests/acceptance/test_concurrency.py::test_a_late_commit_with_a_lower_id_is_not_lost"
    ],
}
EXPLAINED = [
    "ACK_FIRST settles it before its handler starts, so handlers of one group may overlap.",
    "Several consumers, retries and delays change the order in which messages are done.",
    "Rely on fairness, not on order.",
    "With a group_limit above one, or a group_rate, messages of a group have no order.",
    "If two transactions send at the same time, either one's messages may come first.",
    "To read the tables as a log, use transaction ids.",
]
