"""Messages read as a batch share one lease, and can still be settled one by one."""

from __future__ import annotations

import datetime as dt
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from django_pgqueue.engine.read import positions
from django_pgqueue.models import ArchivedMessage, BoundQueue, LiveMessage, Message, Queue
from django_pgqueue.tables.process import Process
from django_pgqueue.types import BatchReceipt, Receipt
from tests.actors import begin, call, commit
from tests.conftest import rolled_back, run_sql
from tests.leasing import lease, run_out
from tests.messages import SETTLE, ids

pytestmark = pytest.mark.django_db(transaction=True)

QTY = 20


def leases(table: str = "pgqueue_lease") -> list[list[int]]:
    """The messages left in each lease."""
    return [ids for (ids,) in run_sql(f"SELECT ids FROM {table} ORDER BY head")]


def stored(messages: list[Message]) -> list[Receipt]:
    """Receipts as stored by a client: only their fields, without the batch."""
    return [Receipt(*message.receipt) for message in messages]


def where() -> dict[int, tuple[str, int]]:
    """The state and delivery count of every live message."""
    return {m.id: (m.state, m.read_ct) for m in LiveMessage.objects.all()}


def the_queue() -> Queue:
    return Queue.objects.resolve("orders")


def change(**settings: Any) -> None:
    queue = the_queue()
    for name, value in settings.items():
        setattr(queue, name, value)
    queue.save()


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """No read sweeps from the front merely because time has passed."""
    monkeypatch.setattr(positions, "SWEEP_INTERVAL", 3600)


@pytest.fixture
def backlog(committed_orders: BoundQueue, never: None) -> BoundQueue:
    """A queue from which this process has read before, so that it knows of a backlog."""
    committed_orders.send_batch(range(10 * QTY))
    first = committed_orders.read(qty=QTY)
    assert leases() == []
    committed_orders.archive(first)
    return committed_orders


@pytest.fixture
def batch(backlog: BoundQueue) -> list[Message]:
    messages = backlog.read(qty=QTY, vt=60)
    assert leases() == [ids(messages)]
    return messages


def test_a_batch_is_held_until_its_timeout(backlog, batch):
    assert [(m.body, m.read_ct, m.attempts) for m in batch] == [
        (body, 1, 0) for body in range(QTY, 2 * QTY)
    ]
    assert {(m.vt - m.first_read_at).total_seconds() for m in batch if m.first_read_at} == {60}
    held = LiveMessage.objects.filter(id__in=ids(batch))
    assert {(m.state, m.vt, m.read_ct) for m in held} == {("PROCESSING", batch[0].vt, 1)}
    assert not {m.id for m in backlog.read(qty=9 * QTY)} & set(ids(batch))


def test_a_batch_that_is_done_is_archived_by_its_lease(backlog, batch):
    with CaptureQueriesContext(connection) as queries:
        assert backlog.archive(batch) == ids(batch)

    assert len(queries) == 1
    assert leases() == []
    for done in ArchivedMessage.objects.filter(id__in=ids(batch)):
        assert (done.state, done.read_ct, done.attempts) == ("COMPLETED", 1, 0)
        assert done.first_read_at == done.last_read_at == batch[0].first_read_at
        assert done.enqueued_at == batch[0].enqueued_at
    assert not set(ids(batch)) & set(where())


def test_the_rest_of_a_batch_stays_leased_when_most_of_it_is_done(backlog, batch):
    most, rest = batch[3:], batch[:3]

    assert backlog.archive(most) == ids(most)
    assert leases() == [ids(rest)]
    assert backlog.archive(most).lost == [m.receipt for m in most]
    assert backlog.archive(rest) == ids(rest)
    assert leases() == []
    assert ArchivedMessage.objects.filter(id__in=ids(batch)).count() == QTY


def test_results_of_a_batch_are_archived_by_its_lease(backlog, batch):
    most, rest, whole = batch[3:], batch[:3], backlog.read(qty=QTY)

    for some in (most, whole):
        # The first message has no result.
        results = {m.receipt: {"body": m.body} for m in some[1:]}
        with CaptureQueriesContext(connection) as queries:
            assert backlog.complete([m.receipt for m in some], results=results) == ids(some)
        assert len(queries) == 1

    assert leases() == [ids(rest)]
    done = [*most, *whole]
    found = ArchivedMessage.objects.in_bulk(ids(done))
    expected = {m.id: None if m in (most[0], whole[0]) else {"body": m.body} for m in done}
    assert {pk: each.result for pk, each in found.items()} == expected


def test_one_message_of_a_batch_is_one_by_itself(backlog, batch):
    assert backlog.archive(batch[5]) == [batch[5].id]

    assert leases() == []
    others = LiveMessage.objects.filter(id__in=ids(batch))
    assert {(d.read_ct, d.state, d.vt) for d in others} == {(1, "PROCESSING", batch[0].vt)}
    assert others.count() == QTY - 1
    rest = [m for m in batch if m is not batch[5]]
    assert backlog.archive(rest) == ids(rest)


def test_messages_of_a_batch_are_acked_one_after_the_other(backlog, batch):
    with CaptureQueriesContext(connection) as queries:
        for message in batch:
            assert backlog.archive(message) == [message.id]

    # The first operation unfolds the lease; the others find separate rows.
    assert len(queries) == QTY + 2
    assert ArchivedMessage.objects.filter(id__in=ids(batch)).count() == QTY


def archived_of(wanted: list[int]) -> list[int]:
    found = ArchivedMessage.objects.filter(id__in=wanted).order_by("id")
    return list(found.values_list("id", flat=True))


AFTER: dict[str, tuple[str, int] | None] = {
    "archive": None,
    "delete": None,
    "set_vt": ("PROCESSING", 1),
    "retry": ("RETRYABLE", 1),
    "release": ("SCHEDULED", 0),
    "fail": None,
    "complete": None,
}


@pytest.mark.parametrize("known", [BatchReceipt, Receipt], ids=["of the read", "stored"])
@pytest.mark.parametrize("count", [2, QTY - 2, QTY], ids=["few", "most", "all"])
@pytest.mark.parametrize("operation", SETTLE)
def test_every_operation_finds_what_is_in_a_batch(backlog, batch, operation, count, known):
    these = batch[:count]
    receipts = [m.receipt for m in these] if known is BatchReceipt else stored(these)

    settled = SETTLE[operation](backlog, receipts)

    assert (list(settled), settled.lost) == (ids(these), [])
    now = where()
    assert {now.get(pk) for pk in ids(these)} == {AFTER[operation]}
    others = ids(batch[count:])
    assert [now[pk] for pk in others] == [("PROCESSING", 1)] * len(others)
    gone = operation in ("archive", "fail", "complete")
    assert archived_of(ids(batch)) == (ids(these) if gone else [])
    stays = Message.objects.filter(id__in=ids(batch)).count()
    assert stays == (QTY - count if operation == "delete" else QTY)


@pytest.mark.parametrize("operation", ["archive", "delete", "set_vt"])
def test_an_operator_finds_what_is_in_a_batch_by_its_id(backlog, batch, operation):
    these = ids(batch[4:6])

    assert SETTLE[operation](backlog, these) == these

    assert {where().get(pk) for pk in these} == {AFTER[operation]}
    rest = batch[:4] + batch[6:]
    assert backlog.archive(rest) == ids(rest)


def test_deleting_by_the_orm_takes_a_message_out_of_its_batch(backlog, batch):
    Message.objects.filter(id=batch[0].id).delete()

    settled = backlog.archive(batch)

    assert (settled, settled.lost) == (ids(batch[1:]), [batch[0].receipt])


def test_a_dead_letter_of_a_batch_goes_with_its_id(backlog):
    dead = Message.objects.create_queue("dead")
    change(dead_letter_queue=dead)
    batch = backlog.read(qty=QTY)
    assert len(leases()) == 1

    backlog.fail({batch[0].receipt: "no"})

    [letter] = Message.objects.read("dead")
    assert (letter.id, letter.headers["x-dead-letter"]["read_ct"]) == (batch[0].id, 1)


def test_a_receipt_of_a_batch_is_a_receipt_as_any_other(batch):
    receipt = batch[0].receipt

    assert receipt == Receipt(*receipt)
    assert {receipt} == {Receipt(*receipt)}
    assert str(receipt) == str(Receipt(*receipt))
    assert repr(receipt) == repr(Receipt(*receipt))
    copy = pickle.loads(pickle.dumps(receipt))
    assert copy == receipt


def test_a_copy_of_a_receipt_from_another_process_settles_too(backlog, batch, actor):
    assert actor.do(call, "archive", "orders", [m.receipt for m in batch[:3]]) == ids(batch[:3])
    assert backlog.archive(batch[3:]) == ids(batch[3:])


# An expired batch


def test_a_batch_that_ran_out_is_read_again_before_what_is_ready(backlog, batch):
    run_out()

    again = backlog.read(qty=QTY)

    assert ids(again) == ids(batch)
    assert {m.read_ct for m in again} == {2}
    settled = backlog.archive(batch)
    assert (settled, settled.lost) == ([], [m.receipt for m in batch])
    assert backlog.archive(again) == ids(again)


def test_a_batch_that_ran_out_may_be_done_until_it_is_read_again(backlog, batch):
    run_out()

    assert backlog.archive(batch[:8]) == ids(batch[:8])
    again = backlog.read(qty=2)
    settled = backlog.archive(batch[8:])
    assert settled.lost == [m.receipt for m in batch if m.id in ids(again)]
    assert settled == [m.id for m in batch[8:] if m.id not in ids(again)]


def test_batches_that_ran_out_are_read_to_the_last_message(backlog):
    held = [message for _ in range(5) for message in backlog.read(qty=QTY)]
    assert len(leases()) == 5
    run_out()

    again: list[Message] = []
    while batch := backlog.read(qty=30):
        again += [message for message in batch if message.read_ct == 2]

    assert sorted(ids(again)) == ids(held)
    assert not {pk for lease in leases() for pk in lease} & set(ids(held))


@pytest.mark.parametrize("how", ["read", "pop", "read_grouped", "read_grouped_rr", "conditional"])
def test_every_read_finds_a_batch_that_ran_out(backlog, how):
    backlog.purge()
    backlog.send_batch([{"n": n} for n in range(QTY * 2)])
    positions.position_in(the_queue().opened)._bounds = positions._START
    batch = backlog.read(qty=QTY)
    backlog.pop(QTY)
    assert leases() == [ids(batch)]
    assert backlog.read(qty=QTY) == []
    run_out()

    found = {
        "read": lambda: backlog.read(qty=QTY),
        "pop": lambda: backlog.pop(QTY),
        "read_grouped": lambda: backlog.read_grouped(qty=QTY),
        "read_grouped_rr": lambda: backlog.read_grouped_rr(qty=QTY),
        "conditional": lambda: backlog.read(qty=QTY, conditional={"n": 3}),
    }[how]()

    assert ids(found) == (ids(batch) if how != "conditional" else [batch[3].id])


@pytest.mark.parametrize("look", ["read", "peek"])
@pytest.mark.parametrize("wanted", [0, 3, 5])
def test_a_condition_is_looked_for_in_all_batches_that_ran_out(backlog, look, wanted):
    backlog.purge()
    backlog.send_batch([{"n": n // QTY} for n in range(6 * QTY)])
    positions.position_in(the_queue().opened)._bounds = positions._START
    held = [backlog.read(qty=QTY) for _ in range(6)]
    assert len(leases()) == 6
    run_out()

    found = getattr(backlog, look)(qty=1, conditional={"n": wanted})

    assert [message.body for message in found] == [{"n": wanted}]
    assert found[0].id in ids(held[wanted])


def test_a_message_of_a_batch_is_exhausted_as_any_other(backlog):
    change(max_deliveries=1)
    batch = backlog.read(qty=QTY)
    assert len(leases()) == 1
    run_out()

    assert not set(ids(backlog.read(qty=9 * QTY))) & set(ids(batch))

    failed = ArchivedMessage.objects.filter(id__in=ids(batch), state="FAILED")
    assert failed.count() == QTY


def test_the_batch_of_a_dead_consumer_can_be_read_at_once(backlog):
    dead = Process.objects.register(["orders"], version="1", using="default")
    held = lease(the_queue(), qty=QTY, vt=3600, process_id=dead.pk)
    run_sql("UPDATE pgqueue_process SET heartbeat_at = heartbeat_at - interval '1 hour'")

    rescued = Process.objects.reap(dt.timedelta(minutes=1), using="default")

    assert rescued == {dead.pk: QTY}
    assert ids(backlog.read(qty=QTY)) == ids(held)


# Other operations that examine queues


def test_metrics_count_what_is_in_batches(backlog, batch):
    metrics = backlog.metrics()
    assert (metrics.in_flight, metrics.visible) == (QTY, 8 * QTY)
    assert (metrics.length, metrics.exact) == (9 * QTY, True)

    run_out()
    metrics = backlog.metrics()

    assert (metrics.in_flight, metrics.visible, metrics.length) == (0, 9 * QTY, 9 * QTY)
    for number in range(25):
        Message.objects.create_queue(f"another-{number}")
    [one] = [each for each in Message.objects.metrics_all() if each.queue_name == "orders"]
    assert (one.in_flight, one.visible, one.length) == (0, 9 * QTY, 9 * QTY)


def test_the_age_of_a_queue_is_that_of_a_message_in_a_batch(backlog):
    run_sql(
        "UPDATE pgqueue_ready SET enqueued_at = enqueued_at - interval '1 hour' WHERE id = "
        "(SELECT min(id) FROM pgqueue_ready)"
    )
    old = backlog.read(qty=QTY)
    assert len(leases()) == 1
    assert old

    age = backlog.metrics().oldest_age

    assert age is not None
    assert age >= 3600


def test_a_peek_shows_a_batch_only_when_it_ran_out(backlog, batch):
    assert not set(ids(backlog.peek(qty=9 * QTY))) & set(ids(batch))
    run_out()

    seen = backlog.peek(qty=QTY + 5)

    assert ids(seen)[:QTY] == ids(batch)
    assert len(seen) == QTY + 5
    assert len(leases()) == 1


def test_a_waiting_reader_knows_when_a_batch_is_due(backlog):
    while rest := backlog.read(qty=QTY, vt=3600):
        pass
    assert not rest
    assert len(leases()) == 9
    assert 3500 < BoundQueue(the_queue()).next_due() <= 3600
    assert BoundQueue("orders").drained()
    run_out()
    assert BoundQueue(the_queue()).next_due() == 0.001
    assert not BoundQueue("orders").drained()


def test_a_purge_takes_batches_too(backlog, batch):
    assert backlog.purge() == 9 * QTY

    assert (leases(), where()) == ([], {})
    assert backlog.archive(batch).lost == [m.receipt for m in batch]
    assert Message.objects.filter(id__in=ids(batch)).count() == 0


def test_a_dropped_queue_leaves_no_lease(backlog, batch):
    Message.objects.drop_queue("orders")

    assert leases() == []


def test_what_a_dead_letter_queue_has_in_a_batch_that_ran_out_goes_back(backlog, batch):
    home = Message.objects.create_queue("home")
    assert BoundQueue("orders").redrive(to="home", ids=ids(batch)) == 0
    run_out()

    assert BoundQueue("orders").redrive(to="home", ids=ids(batch)) == QTY
    assert ids(Message.objects.read(home, qty=QTY)) == ids(batch)


def test_a_leaf_with_a_leased_batch_is_not_dropped(committed):
    day = dt.timedelta(days=1)
    queue = Message.objects.create_queue("daily", partition_interval=day, retention=day)
    run_sql(
        f"INSERT INTO {queue.tables['message']} (queue_id, enqueued_at, body) "
        "SELECT %s, now() - interval '9 days', '1' FROM generate_series(1, %s)",
        [queue.pk, 3 * QTY],
    )
    Message.objects.archive(queue, Message.objects.read(queue, qty=QTY))
    held = Message.objects.read(queue, qty=QTY, vt=3600)
    assert len(leases()) == 1
    Message.objects.pop(queue, QTY)
    run_sql(f"UPDATE {queue.tables['archive']} SET archived_at = archived_at - interval '8 days'")

    BoundQueue("daily").maintain()

    assert Message.objects.archive(queue, held) == ids(held)
    assert Message.objects.filter(id__in=ids(held)).count() == QTY


# Which reads lease a batch


def test_few_messages_have_leases_of_their_own(backlog):
    assert backlog.read(qty=5)[0].batch is None
    assert leases() == []


def test_who_settles_in_transactions_of_their_own_has_a_lease_for_each(backlog):
    messages = lease(the_queue(), qty=QTY, batched=False)

    assert leases() == []
    assert LiveMessage.objects.filter(id__in=ids(messages), state="PROCESSING").count() == QTY


def test_each_priority_is_a_batch(backlog):
    backlog.send_batch(["urgent"] * 5, priority=3)

    messages = backlog.read(qty=QTY)

    assert sorted(map(len, leases())) == [5, QTY - 5]
    assert backlog.archive(messages[:12]) == sorted(ids(messages[:12]))
    assert leases() == [ids(messages[12:])]
    assert backlog.archive(messages[12:]) == ids(messages[12:])


def test_heads_of_groups_are_leased_one_by_one(committed_orders, never):
    committed_orders.send_batch(range(3 * QTY))
    committed_orders.archive(committed_orders.read(qty=QTY))
    for number in range(QTY):
        committed_orders.send_batch([number] * 2, group=f"group {number}")

    seen: list[int] = []
    while messages := committed_orders.read(qty=QTY):
        heads = [m.id for m in messages if m.group is not None]
        assert not {*heads} & {pk for lease in leases() for pk in lease}
        seen += ids(messages)
        assert committed_orders.archive(messages) == ids(messages)

    assert len(seen) == len(set(seen)) == 4 * QTY


# Concurrent operations, and rollbacks


def test_an_ack_that_is_rolled_back_can_be_done_again(backlog, batch):
    for part in (batch[:1], batch[:15], batch):
        with rolled_back():
            assert backlog.archive(part) == ids(part)
        assert leases() == [ids(batch)]

    assert backlog.archive(batch[:15]) == ids(batch[:15])
    assert backlog.archive(batch[15:]) == ids(batch[15:])
    assert ArchivedMessage.objects.filter(id__in=ids(batch)).count() == QTY


def test_parts_of_a_batch_that_are_done_at_once_are_all_done_once(backlog):
    messages = [message for _ in range(8) for message in backlog.read(qty=QTY)]
    assert len(leases()) == 8
    # Each part has some of every batch: many messages, or few.
    parts = [messages[0::2], messages[1::4], messages[3::8], messages[7::8]]

    def settle(part: list[Message]) -> list[int]:
        try:
            return list(backlog.archive(part))
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(parts)) as pool:
        done = [pk for settled in pool.map(settle, parts) for pk in settled]

    assert sorted(done) == ids(messages)
    assert ArchivedMessage.objects.filter(id__in=done).count() == len(messages)
    assert leases() == []
    assert not set(done) & set(where())


def test_a_batch_that_is_read_again_while_it_is_done_is_either(backlog, batch, actor):
    run_out()
    actor.do(begin)
    # Unfolds the lease, and keeps it locked until the commit.
    again = actor.do(call, "read", "orders", qty=2, in_transaction=True)
    with ThreadPoolExecutor(1) as pool:
        settling = pool.submit(lambda: (backlog.archive(batch), connections.close_all())[0])
        actor.do(commit)
        settled = settling.result(timeout=30)

    assert settled.lost == [m.receipt for m in batch if m.id in ids(again)]
    assert archived_of(ids(batch)) == settled
    assert sorted([*settled, *ids(again)]) == ids(batch)
