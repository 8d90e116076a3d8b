"""Sends, unique keys and transactions, while many send and read as fast as they can."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

from django_pgqueue import bare
from django_pgqueue.models import Message, queue
from tests.conftest import run_sql
from tests.promises import players
from tests.promises.draining import is_empty
from tests.promises.full_speed import Worker
from tests.promises.oracles import deliveries
from tests.promises.pages import promise
from tests.waiting import until

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

HOLDS = "While a message holds its unique key, no send adds a second one."
FREE = "The key is free when the message has started..."

#: The messages that hold the key, for each ``until``. An expired message is as good as gone.
HOLDING = {
    "done": "SELECT count(*) FROM pgqueue_live",
    "started": "SELECT count(*) FROM pgqueue_live WHERE first_read_at IS NULL",
}


# Transactions


@pytest.fixture
def orders(committed: None) -> Any:
    Message.objects.create_queue("orders", max_deliveries=10_000)
    run_sql("CREATE TABLE promised (id bigint PRIMARY KEY, kept boolean)")
    yield queue("orders")
    run_sql("DROP TABLE promised")


class RolledBack(Exception):
    """Ends a transaction or a savepoint."""


def send_in_transactions(worker: Worker) -> None:
    """Send in transactions that commit or roll back, some messages within a savepoint.

    Each message's id is inserted into a table by the same transaction.
    """
    try:
        with worker.connection.transaction():
            _send(worker, worker.draw.choice([1, 3, 30]))
            try:
                with worker.connection.transaction():
                    _send(worker, worker.draw.choice([1, 30]))
                    if worker.draw.random() < 0.5:
                        raise RolledBack
            except RolledBack:
                pass
            if worker.draw.random() < 0.3:
                raise RolledBack
    except RolledBack:
        pass


def _send(worker: Worker, qty: int) -> None:
    if qty == 1:
        ids = [bare.send(worker.queue, "one")]
    else:
        ids = bare.send_batch(worker.queue, ["many"] * qty)
    worker.connection.execute("INSERT INTO promised (id) SELECT unnest(%s::bigint[])", [ids])


def read_what_was_sent(worker: Worker) -> None:
    """Read, and see whether the sender's transaction has committed."""
    found = bare.read(worker.queue, qty=20)
    ids = [message.id for message in found]
    [(committed,)] = worker.connection.execute(
        "SELECT count(*) FROM promised WHERE id = ANY(%s)", [ids]
    ).fetchall()
    worker.note("looked", found=len(ids), committed=committed)
    bare.archive(worker.queue, [message.receipt for message in found])


@promise(
    "A message exists if, and only if, the transaction that sent it commits.",
    "No reader sees it before.",
    "Rolling back a savepoint removes its messages.",
)
@pytest.mark.parametrize("fault", [None, "cut_connections", "time_out_statements"])
def test_exactly_the_messages_of_committed_transactions_are_there(orders, full_speed, fault):
    full_speed.threads(send_in_transactions, 5)
    full_speed.threads(read_what_was_sent, 3)
    if fault:
        getattr(full_speed, fault)()

    full_speed.run()

    looked = full_speed.notes("looked")
    assert sum(note["found"] for note in looked)
    assert [note for note in looked if note["found"] != note["committed"]] == []
    committed = run_sql("SELECT id FROM promised ORDER BY id")
    assert committed == run_sql("SELECT id FROM pgqueue_message ORDER BY id")
    there = "SELECT id FROM pgqueue_live UNION ALL SELECT id FROM pgqueue_archive ORDER BY id"
    assert run_sql(there) == committed


# Unique keys


ENDS = ("archive", "delete", "cancel", "fail", "retry", "release", "set_vt")


@promise(HOLDS)
@pytest.mark.parametrize("fault", [None, "cut_connections"])
@pytest.mark.parametrize("on_conflict", ["skip", "replace", "delay"])
@pytest.mark.parametrize("until_", ["done", "started"])
def test_a_key_has_one_message_at_a_time(orders, full_speed, until_, on_conflict, fault):
    options: dict[str, Any] = {"until": until_, "on_conflict": on_conflict}
    if on_conflict == "delay":
        options["delay"] = 0.005
    full_speed.threads(partial(players.send_with_key, **options), 4)
    full_speed.threads(partial(players.send_with_key, batch=True, **options), 1)
    full_speed.threads(partial(players.read_and_end, ways=ENDS, vt=0.5), 3)
    seen = full_speed.observe(HOLDING[until_])
    if fault:
        getattr(full_speed, fault)()

    full_speed.run()

    # Beside a message that a read is taking, one more may be sent: it counts as in flight already.
    most = 2 if until_ == "started" and on_conflict != "skip" else 1
    assert 1 <= max(seen) <= most
    if not fault:
        notes = full_speed.notes("sent")
        written = {note["id"] for note in notes if note["conflict"] != "skipped"}
        assert {note["id"] for note in notes} == written, "a duplicate gets the id of a message"
        assert len(written) > 1


@promise(HOLDS)
@pytest.mark.parametrize("fault", [None, "kill_processes"])
def test_within_its_time_a_key_is_sent_once_over_all_processes(orders, full_speed, fault):
    full_speed.threads(partial(players.send_with_key, keys=50, until=3600), 4)
    full_speed.threads(partial(players.send_with_key, keys=50, until=3600, batch=True), 1)
    full_speed.processes(partial(players.send_with_key, keys=50, until=3600), number=2)
    full_speed.threads(partial(players.read_and_end, ways=["archive", "delete"]), 1)
    if fault:
        full_speed.kill_processes()

    full_speed.run()

    sent = [pk for (pk,) in run_sql("SELECT id FROM pgqueue_claim")]
    assert len(sent) == 50
    assert set(deliveries(full_speed.notes())) <= set(sent)
    assert run_sql("SELECT id FROM pgqueue_message WHERE id <> ALL(%s)", [sent]) == []


@promise("Send again with the same unique key to have the message once.")
@pytest.mark.parametrize("until_", ["done", 3600])
def test_a_send_that_is_repeated_until_it_succeeds_is_sent_once(orders, full_speed, until_):
    def send_until_it_succeeds(worker: Worker) -> None:
        # The memory outlives a broken connection.
        key = worker.memory.setdefault("key", f"{id(worker)}-{worker.memory.get('number', 0)}")
        bare.send(worker.queue, key, unique=key, until=until_)
        worker.note("sent", key=key)
        worker.memory["number"] = worker.memory.get("number", 0) + 1
        del worker.memory["key"]

    full_speed.threads(send_until_it_succeeds, 6)
    full_speed.cut_connections()

    full_speed.run()

    found = Counter(run_sql("SELECT unique_key FROM pgqueue_message"))
    sent = {(note["key"],) for note in full_speed.notes("sent")}
    assert full_speed.cut
    assert set(found.values()) == {1}
    assert sent <= found.keys()
    # The last sends were given up in the middle.
    assert len(found.keys() - sent) <= 6


@promise(FREE)
@pytest.mark.parametrize("fault", ["cut_connections", "kill_processes"])
@pytest.mark.parametrize("until_", ["done", "started"])
def test_no_key_is_left_held(orders, full_speed, until_, fault):
    full_speed.threads(partial(players.send_with_key, keys=20, until=until_), 2)
    full_speed.threads(partial(players.send_with_key, keys=20, until=until_, expires=0.02), 1)
    full_speed.threads(partial(players.read_and_end, ways=ENDS, vt=0.3), 2)
    full_speed.processes(partial(players.send_with_key, keys=20, until=until_), 1)
    full_speed.processes(partial(players.read_and_end, ways=ENDS, vt=0.3), 1)
    if fault:
        getattr(full_speed, fault)()

    full_speed.run()

    until(lambda: not orders.purge() and is_empty())
    for key in range(20):
        assert orders.send("again", unique=f"k{key}", until=until_).conflict is None


ELSEWHERE = {
    "A message commits with its transaction and is as durable as your other data: "
    "synchronous_commit and replication decide.": [
        "tests/acceptance/test_crash.py::test_a_logged_queue_keeps_all_that_was_committed",
        "tests/acceptance/test_unflushed.py::test_sends_and_outcomes_are_flushed",
    ],
    "The exception is a debounced message of a group after its max_wait.": [
        "tests/engine/send/test_once.py::test_a_message_of_a_group_is_not_replaced_after_max_wait"
    ],
}
EXPLAINED = ["A send that raised may have been committed, if the connection broke in the middle."]
