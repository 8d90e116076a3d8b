"""A step beside another session, in a forced order: a value is stored by who holds the message."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from django_pgqueue.errors import LeaseLost
from django_pgqueue.models import BoundQueue, Message, queue
from tests.actors import begin, call, commit, rollback
from tests.conftest import run_sql
from tests.flows.doing import DOING, again, atomic, note, orders_by, plain
from tests.subscriptions.gates import blocked, settle

pytestmark = pytest.mark.django_db(transaction=True)

doing = pytest.mark.parametrize(("do", "table"), DOING.values(), ids=DOING)


@dataclass
class Case:
    """A message in flight, alone or in a batch, in a queue or a subscription."""

    name: str = "orders"
    qty: int = 1

    @property
    def queue(self) -> BoundQueue:
        return queue(self.name)

    def leased(self) -> list[Message]:
        """The messages of one lease."""
        if self.name == "audit":
            queue("audit").subscribe(to="orders", start="earliest")
        elif self.qty > 1:  # a queue's first read leases each alone
            queue("orders").send_batch([{}] * self.qty * 2)
            queue("orders").archive(queue("orders").read(qty=self.qty))
        queue("orders").send_batch([{}] * self.qty)
        messages = self.queue.read(qty=self.qty)
        found = run_sql("SELECT cardinality(ids) FROM pgqueue_lease")
        assert found == ([(self.qty,)] if self.qty > 1 else [])
        return messages

    def stored(self, message: Message) -> list[object]:
        """What is stored of a message: the values of its steps, and its note."""
        found = [step.value for step in self.queue.steps(message.id)]
        return [*found, *filter(None, [self.queue.note(message.id)])]


CASES = {"alone": Case(), "in a batch": Case(qty=20), "of a subscription": Case("audit", 20)}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@pytest.fixture(autouse=True)
def _queue(committed_orders):
    pass


# A late worker


@doing
@cases
def test_a_store_that_began_before_the_next_read_stores_nothing(actor, gate, case, do, table):
    [late, *_] = case.leased()
    closed = gate(table, "INSERT")
    closed.stops(actor)

    storing = actor.start(do, late, "late")
    blocked(storing)
    holder = again(late)
    closed.open()

    with pytest.raises(LeaseLost):
        storing.result(10)
    assert case.stored(late) == []
    assert do(holder, "holder") == "holder"
    assert case.stored(late) == ["holder"]
    if do is atomic:
        assert orders_by() == ["holder"]


@doing
@cases
def test_a_store_waits_for_a_read_that_is_leasing_its_message(actors, gate, case, do, table):
    worker, reader = actors(2)
    [late, *_] = case.leased()
    begins_in_a_row(late)
    case.queue.set_vt(late.id, 0)
    closed = gate("pgqueue_deferred", "UPDATE")
    closed.stops(reader)

    reading = reader.start(call, "read", case.name, qty=50)
    blocked(reading)
    storing = worker.start(do, late, "late")
    blocked(storing, 2)
    closed.open()

    [holder] = [each for each in reading.result(10) if each.id == late.id]
    with pytest.raises(LeaseLost):
        storing.result(10)
    assert do(holder, "holder") == "holder"
    assert "late" not in case.stored(late)


@doing
def test_a_store_waits_for_a_read_that_is_rolled_back(actors, do, table):
    worker, reader = actors(2)
    case = Case()
    [message] = case.leased()
    reader.do(begin)
    reader.do(call, "set_vt", "orders", message.id, 0)
    assert reader.do(call, "read", "orders", in_transaction=True)

    storing = worker.start(do, message, "worker")
    blocked(storing)
    reader.do(rollback)

    assert storing.result(10) == "worker"
    assert case.stored(message) == ["worker"]


@pytest.mark.parametrize("do", [plain, note])
@pytest.mark.parametrize("way", ["archive", "delete", "cancel"])
def test_a_store_waits_for_the_end_of_its_message_and_stores_nothing(actors, do, way):
    worker, other = actors(2)
    case = Case()
    [message] = case.leased()
    other.do(begin)
    assert other.do(settle, way, "orders", [message.receipt]) == [message.id]

    storing = worker.start(do, message, "worker")
    blocked(storing)
    other.do(commit)

    with pytest.raises(LeaseLost):
        storing.result(10)
    assert case.stored(message) == []


def test_a_worker_whose_batch_is_read_while_it_looks_for_its_lease_calls_nothing(actor, gate):
    case = Case(qty=20)
    [late, *_] = case.leased()
    closed = gate("pgqueue_lease", "DELETE")
    closed.stops(actor)

    storing = actor.start(plain, late, "late")
    blocked(storing)
    holder = again(late)
    closed.open()

    with pytest.raises(LeaseLost):
        storing.result(10)
    assert plain(holder, "holder") == "holder"
    assert orders_by() == ["holder"]


# A reader


@doing
def test_a_read_skips_a_message_while_a_value_of_it_is_stored(actor, gate, do, table):
    case = Case()
    [message] = case.leased()
    case.queue.set_vt(message, 0)
    closed = gate(table, "INSERT", "AFTER")
    closed.stops(actor)

    storing = actor.start(do, message, "first")
    blocked(storing)
    assert case.queue.read() == case.queue.read_grouped() == []
    closed.open()

    assert storing.result(10) == "first"
    [later] = case.queue.read()
    if do is note:
        assert later.last_note() == "first"
    else:
        assert do(later, "second") == "first"
        assert orders_by() == ["first"]


# The same delivery


@cases
@pytest.mark.parametrize("do", [plain, note])
@pytest.mark.parametrize("most", [1, 20], ids=["of its message", "of its lease"])
def test_a_store_waits_for_an_extension_and_succeeds(actors, case, do, most):
    worker, keeper = actors(2)
    messages = case.leased()
    receipts = [each.receipt for each in messages[-most:]]
    keeper.do(begin)
    assert len(keeper.do(call, "set_vt", case.name, receipts, 3000)) == len(receipts)

    storing = worker.start(do, messages[-1], "worker")
    blocked(storing)
    keeper.do(commit)

    assert storing.result(10) == "worker"
    assert case.stored(messages[-1]) == ["worker"]
    assert in_flight_for_long() == len(receipts)
    assert len(case.queue.archive(messages)) == case.qty


@pytest.mark.parametrize("case", [CASES["in a batch"], CASES["of a subscription"]], ids=str)
def test_a_store_waits_for_an_ack_of_others_of_its_batch_and_succeeds(actors, case):
    worker, other = actors(2)
    messages = case.leased()
    receipts = [each.receipt for each in messages[5:15]]
    other.do(begin)
    assert len(other.do(settle, "archive", case.name, receipts)) == len(receipts)

    storing = worker.start(plain, messages[-1], "worker")
    blocked(storing)
    other.do(commit)

    assert storing.result(10) == "worker"
    assert case.stored(messages[-1]) == ["worker"]


@cases
@doing
def test_an_extension_waits_for_a_store_and_succeeds(actors, gate, case, do, table):
    worker, keeper = actors(2)
    messages = case.leased()
    receipts = [each.receipt for each in messages]
    begins_in_a_row(messages[0])
    closed = gate(table, "INSERT", "AFTER")
    closed.stops(worker)

    storing = worker.start(do, messages[0], "worker")
    blocked(storing)
    extending = keeper.start(call, "set_vt", case.name, receipts, 3000)
    blocked(extending, 2)
    closed.open()

    assert storing.result(10) == "worker"
    assert len(extending.result(10)) == case.qty
    assert in_flight_for_long() == case.qty
    assert "worker" in case.stored(messages[0])


@pytest.mark.parametrize("do", [plain, atomic])
def test_a_delivery_that_does_a_step_again_beside_its_lost_commit_keeps_the_first(actors, gate, do):
    lost, worker = actors(2)
    case = Case()
    [message] = case.leased()
    closed = gate("pgqueue_step", "INSERT", "AFTER")
    closed.stops(lost)

    first = lost.start(do, message, "first")
    blocked(first)
    second = worker.start(do, message, "second")
    blocked(second, 2)
    closed.open()

    assert first.result(10) == second.result(10) == "first"
    assert case.stored(message) == ["first"]
    assert orders_by() == (["first"] if do is atomic else ["first", "second"])


def test_a_step_waits_while_a_message_of_its_batch_leaves_the_source(actors):
    worker, source = actors(2)
    case = CASES["of a subscription"]
    messages = case.leased()
    source.do(begin)
    assert source.do(settle, "delete", "orders", [messages[5].id]) == [messages[5].id]

    storing = worker.start(plain, messages[10], "worker")
    blocked(storing)
    source.do(commit)

    assert storing.result(10) == "worker"
    assert len(case.queue.archive(messages)) == case.qty


def begins_in_a_row(message: Message) -> None:
    """Do a step, for which a message gets a lease of its own."""
    assert message.step("before", str, "before") == "before"


def in_flight_for_long() -> int:
    """How many messages are leased until after their first lease would have ended."""
    left = "vt > statement_timestamp() + interval '2000 seconds'"
    [(alone,)] = run_sql(f"SELECT count(*) FROM pgqueue_deferred WHERE {left}")
    [(together,)] = run_sql(
        f"SELECT coalesce(sum(cardinality(ids)), 0) FROM pgqueue_lease WHERE {left}"
    )
    return int(alone + together)
