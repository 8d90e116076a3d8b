"""An operation's cost does not grow with other messages.

A hundred thousand other messages are in the queue, each time in another state. The operations' real
statements are measured, and may touch only a handful of rows.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import pytest_django
from django.db import connections

from django_pgqueue.engine.leases.batches import in_batches
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.read import reading
from django_pgqueue.engine.read.reading import fall_asleep
from django_pgqueue.engine.settle import settling
from django_pgqueue.engine.settle.outcomes import end_expired
from django_pgqueue.models import BoundQueue, Message, Queue
from django_pgqueue.types import Receipt
from tests.conftest import rolled_back, run_sql
from tests.engine.plans.plans import TooMuch, watched

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(databases=["default", "other"]),  # creates both databases
]

# The second database, since no other test leaves statistics there.
USING = "other"
MANY = 100_000
FRESH = 5000
QTY = 100

# A statement touches each row a few times, through a few indexes.
ROWS = QTY * 10
BUFFERS = QTY * 60


def run(statement: str, *params: Any) -> list[tuple[Any, ...]]:
    return run_sql(statement, params, using=USING)


def fill(name: str, count: int, delay: int = 0, **options: Any) -> BoundQueue:
    queue = Message.objects.using(USING).create_queue(name, **options)
    run(
        f"INSERT INTO {queue.tables['message']} (queue_id, body, scheduled_at) "
        "SELECT %s, jsonb_build_object('n', n), "
        "CASE WHEN %s > 0 THEN statement_timestamp() + make_interval(secs => %s) END "
        "FROM generate_series(1, %s) n",
        queue.pk,
        delay,
        delay,
        count,
    )
    return BoundQueue(name, using=USING)


def fill_in_flight(name: str, count: int, *, hold: str = "1 hour", **options: Any) -> BoundQueue:
    """Create messages that are in flight, without the dead rows that reads would leave."""
    found = fill_quietly(name, count, **options)
    run(
        "INSERT INTO pgqueue_deferred (id, vt, enqueued_at, first_read_at, last_read_at, "
        "queue_id, read_ct, priority, state) SELECT id, statement_timestamp() + %s::interval, "
        "enqueued_at, enqueued_at, enqueued_at, queue_id, 1, priority, 'PROCESSING' "
        f"FROM {found.tables['message']}",
        hold,
    )
    return BoundQueue(name, using=USING)


def fill_in_batches(name: str, count: int, *, hold: str = "1 hour") -> BoundQueue:
    """Create messages that are in flight in batches of a hundred."""
    found = fill_quietly(name, count)
    run(
        "INSERT INTO pgqueue_lease (head, tail, vt, read_at, queue_id, priority, ids, "
        "enqueued_ats) "
        "SELECT min(id), max(id), statement_timestamp() + %s::interval, statement_timestamp(), "
        "queue_id, 0, array_agg(id ORDER BY id), array_agg(enqueued_at ORDER BY id) "
        f"FROM {found.tables['message']} GROUP BY queue_id, id / 100",
        hold,
    )
    return BoundQueue(name, using=USING)


def fill_archive(name: str, count: int) -> BoundQueue:
    found = fill_quietly(name, count)
    run(
        f"INSERT INTO {found.tables['archive']} (id, enqueued_at, queue_id, read_ct, attempts, "
        "state) SELECT id, enqueued_at, queue_id, 1, 0, 'COMPLETED' "
        f"FROM {found.tables['message']}"
    )
    return BoundQueue(name, using=USING)


def fill_quietly(name: str, count: int, **options: Any) -> Queue:
    """Create messages without a row in any live table."""
    found = Message.objects.using(USING).create_queue(name, **options)
    leaf = found.tables["message"]
    run(f"ALTER TABLE {leaf} DISABLE TRIGGER pgqueue_message_inserted")
    fill(name, count)
    run(f"ALTER TABLE {leaf} ENABLE TRIGGER pgqueue_message_inserted")
    return found


def analyze() -> None:
    run("ANALYZE pgqueue_ready, pgqueue_deferred, pgqueue_lease, pgqueue_message, pgqueue_archive")


def all_delayed() -> BoundQueue:
    fill("orders", MANY, delay=3600)
    analyze()
    return fill("orders", FRESH)


def all_in_flight() -> BoundQueue:
    fill_in_flight("orders", MANY)
    analyze()
    return fill("orders", FRESH)


def all_in_batches() -> BoundQueue:
    fill_in_batches("orders", MANY)
    analyze()
    return fill("orders", FRESH)


def batches_without_analyze() -> BoundQueue:
    fill_in_batches("orders", MANY)
    return fill("orders", FRESH)


def batches_that_ran_out() -> BoundQueue:
    return fill_in_batches("orders", MANY, hold="0 seconds")


def many_ready() -> BoundQueue:
    queue = fill("orders", MANY)
    analyze()
    return queue


def many_archived() -> BoundQueue:
    fill_archive("orders", MANY)
    analyze()
    return fill("orders", FRESH)


def grown_without_analyze() -> BoundQueue:
    return fill("orders", MANY)


def delayed_without_analyze() -> BoundQueue:
    fill("orders", MANY, delay=3600)
    return fill("orders", FRESH)


def all_due_at_once() -> BoundQueue:
    return fill_in_flight("orders", MANY, hold="0 seconds")


def analyzed_when_empty() -> BoundQueue:
    fill("orders", 0)
    analyze()
    return fill("orders", MANY)


def drained_and_filled_again() -> BoundQueue:
    fill("another", MANY)
    run("DELETE FROM pgqueue_ready")
    analyze()
    return fill("orders", MANY)


def analyzed_when_another_queue_had_all() -> BoundQueue:
    fill("another", MANY)
    fill("another", 1000, delay=3600)
    analyze()
    return fill("orders", FRESH)


def behind_another_queue() -> BoundQueue:
    for name in ("another", "orders"):
        fill(name, MANY)
        fill(name, MANY, delay=3600)
    analyze()
    return fill("orders", FRESH)


def two_hundred_queues() -> BoundQueue:
    for number in range(200):
        fill(f"queue-{number}", 500, delay=3600 * (number % 2))
    analyze()
    return fill("queue-100", FRESH)


def partitioned_and_in_flight() -> BoundQueue:
    fill_in_flight("orders", MANY, partition_interval=3600)
    analyze()
    return fill("orders", FRESH)


SITUATIONS = [
    all_delayed,
    all_in_flight,
    all_in_batches,
    batches_without_analyze,
    batches_that_ran_out,
    many_ready,
    many_archived,
    grown_without_analyze,
    delayed_without_analyze,
    all_due_at_once,
    analyzed_when_empty,
    drained_and_filled_again,
    analyzed_when_another_queue_had_all,
    behind_another_queue,
    two_hundred_queues,
    partitioned_and_in_flight,
]


@pytest.fixture(scope="module", params=SITUATIONS, ids=lambda situation: situation.__name__)
def situation(
    request: pytest.FixtureRequest,
    django_db_setup: None,
    django_db_blocker: pytest_django.DjangoDbBlocker,
) -> Iterator[BoundQueue]:
    with django_db_blocker.unblock():
        # Removes the dead rows that an earlier test's rollback left.
        run("TRUNCATE pgqueue_ready, pgqueue_deferred, pgqueue_lease")
        with rolled_back(USING):
            yield request.param()
        connections[USING].close()


@pytest.fixture
def orders(situation: BoundQueue, db: None) -> BoundQueue:
    """The queue in its situation. Changes by the test are rolled back with it."""
    return situation


def leased(queue: BoundQueue) -> list[Message]:
    messages = queue.read(qty=QTY, in_transaction=True)
    assert len(messages) == QTY
    return messages


def some_ids(queue: BoundQueue) -> list[int]:
    return [message.id for message in queue.peek(qty=QTY)]


def some_ready(queue: BoundQueue) -> list[int]:
    found = Message.objects.resolve(queue.name, USING)
    rows = run(
        "SELECT id FROM pgqueue_ready WHERE queue_id = %s ORDER BY -priority, turn LIMIT %s",
        found.pk,
        QTY,
    )
    return [pk for (pk,) in rows] or [0]


def read_behind_the_position(queue: BoundQueue, after: int, batched: bool = False) -> list[Any]:
    """Read like a process that has read from the queue before. In a transaction, a real read never
    does.
    """
    now = int(dt.datetime.now(dt.timezone.utc).timestamp() * 1e6)
    params = {
        "vt": dt.timedelta(seconds=30),
        "qty": QTY,
        "process_id": None,
        "rank": 0,
        "after": after,
        "due_after": now,
        "rechecked": 0,
    }
    parts = reading.BATCHED if batched else reading.WITH_GROUPS
    return opened(queue).run("read/read_ready", params, **parts)


def opened(queue: BoundQueue) -> OpenQueue:
    return Message.objects.resolve(queue.name, USING).opened


def let_some_expire(queue: BoundQueue) -> None:
    run(
        "UPDATE pgqueue_message SET expires_at = statement_timestamp() WHERE id = ANY(%s)",
        some_ids(queue),
    )


def expire_next(queue: BoundQueue, _: None) -> list[Any]:
    return opened(queue).run("settle/expire_next", {"batch": QTY, "max_deliveries": 20})


def read_as_a_batch(queue: BoundQueue) -> list[Message]:
    """Messages with a shared lease; if all messages are due, they were leased before."""
    rows = read_behind_the_position(queue, some_ready(queue)[0] - 1, batched=True)
    return Message.from_deliveries(opened(queue), in_batches(rows)) or leased(queue)


# Each operation's preparation, which is not measured, and the operation itself.
OPERATIONS: dict[str, tuple[Callable[[BoundQueue], Any], Callable[[BoundQueue, Any], Any]]] = {
    "send": (lambda q: None, lambda q, _: q.send(1)),
    "send_batch": (lambda q: None, lambda q, _: q.send_batch([1] * QTY)),
    "send_delayed": (lambda q: None, lambda q, _: q.send_batch([1] * QTY, delay=60)),
    "send_that_expires": (lambda q: None, lambda q, _: q.send_batch([1] * QTY, expires=60)),
    "read": (lambda q: None, lambda q, _: q.read(qty=QTY, in_transaction=True)),
    "read_behind_the_position": (lambda q: max(some_ready(q)), read_behind_the_position),
    "read_as_a_batch": (
        lambda q: max(some_ready(q)),
        lambda q, after: read_behind_the_position(q, after, batched=True),
    ),
    "archive_a_batch": (read_as_a_batch, lambda q, messages: q.archive(messages)),
    "archive_most_of_a_batch": (
        read_as_a_batch,
        lambda q, messages: q.archive(messages[: QTY - 10]) + q.archive(messages[QTY - 10 :]),
    ),
    "archive_of_a_batch_by_id": (
        lambda q: [message.id for message in read_as_a_batch(q)],
        lambda q, ids: q.archive(ids),
    ),
    "archive_of_a_batch_by_stored_receipts": (
        lambda q: [Receipt(*message.receipt) for message in read_as_a_batch(q)],
        lambda q, receipts: q.archive(receipts),
    ),
    "set_vt_of_a_batch": (read_as_a_batch, lambda q, messages: q.set_vt(messages, 60)),
    "read_due": (
        lambda q: q.set_vt(leased(q), 0),
        lambda q, _: q.read(qty=QTY, in_transaction=True),
    ),
    "peek": (lambda q: None, lambda q, _: q.peek(qty=QTY)),
    "pop": (lambda q: None, lambda q, _: q.pop(QTY)),
    "pop_due": (lambda q: q.set_vt(leased(q), 0), lambda q, _: q.pop(QTY)),
    "archive": (leased, lambda q, messages: q.archive(messages)),
    "archive_by_id": (some_ids, lambda q, ids: q.archive(ids)),
    "archive_leased_by_id": (
        lambda q: [m.id for m in leased(q)],
        lambda q, ids: q.archive(ids),
    ),
    "delete": (leased, lambda q, messages: q.delete(messages)),
    "delete_by_id": (some_ids, lambda q, ids: q.delete(ids)),
    "expire": (
        leased,
        lambda q, messages: end_expired(opened(q), [message.receipt for message in messages]),
    ),
    "expire_next": (let_some_expire, expire_next),
    "set_vt": (leased, lambda q, messages: q.set_vt(messages, 60)),
    "hold": (
        leased,
        lambda q, messages: settling.hold(opened(q), [m.receipt for m in messages], 60),
    ),
    "set_vt_by_id": (some_ids, lambda q, ids: q.set_vt(ids, 60)),
    "next_due": (
        lambda q: Message.objects.resolve(q.name, USING),
        lambda q, found: BoundQueue(found).next_due(),
    ),
    "fall_asleep": (
        lambda q: fall_asleep(opened(q), heard=None, doubt=None),  # plans its statements
        lambda q, _: fall_asleep(opened(q), heard=None, doubt=None),
    ),
    "delete_by_the_orm": (
        some_ids,
        lambda q, ids: settling.erase(opened(q), ids),
    ),
}


# These return nothing while something is due, or while all messages are in batch leases.
LOOKING_AHEAD = ("read_behind_the_position", "read_as_a_batch", "expire_next")

# PostgreSQL's jit_above_cost: a server with JIT compiles what seems to cost more, and that takes
# longer than to run it. Bodies and waiting messages have no statistics at first, so what searches
# them by id does.
COMPILED_FROM = 100_000
SEARCHING_BY_ID = ("expire_next", "peek", "hold", "delete_by_the_orm")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_touches_a_bounded_number_of_rows(orders, operation):
    prepare, act = OPERATIONS[operation]

    with rolled_back(USING):
        given = prepare(orders)
        with watched(connections[USING], generic=True) as plans:
            result = act(orders, given)

    assert result is not None
    if isinstance(result, list):
        assert len(result) in ((QTY, 0) if operation in LOOKING_AHEAD else (QTY,))
    searches = operation.endswith("by_id") or operation in SEARCHING_BY_ID
    for plan in plans:
        plan.check(rows=ROWS, buffers=BUFFERS, cost=math.inf if searches else COMPILED_FROM)


def test_metrics_touch_no_more_rows_than_they_count(orders, settings):
    settings.PGQUEUE = {"EXACT_COUNT_LIMIT": 1000}

    with rolled_back(USING), watched(connections[USING]) as plans:
        metrics = orders.metrics()

    assert metrics.length > 0
    for plan in plans:
        plan.check(rows=3 * 1000, buffers=3 * 1000)


def test_a_purge_touches_a_few_rows_for_each_that_it_deletes(orders):
    with rolled_back(USING), watched(connections[USING]) as plans:
        opened(orders).run("settle/purge", {"batch": QTY})

    for plan in plans:
        plan.check(rows=ROWS, buffers=BUFFERS)


@pytest.mark.parametrize("due", [False, True])
def test_a_condition_reads_no_more_bodies_than_it_must(due):
    with rolled_back(USING):
        queue = fill("orders", 20_000, delay=60 * due)
        if due:
            run("UPDATE pgqueue_deferred SET vt = statement_timestamp() WHERE mod(id, 400) = 0")
        table = Queue.objects.using(USING).get(name="orders").tables["message"]
        run(f"UPDATE {table} SET body = '{{\"n\": 1}}'")
        with watched(connections[USING]) as plans:
            assert len(queue.read(qty=5, conditional={"n": 1}, in_transaction=True)) == 5

    for plan in plans:
        plan.check(rows=ROWS, buffers=BUFFERS)


# The plan guard itself


def test_the_guard_complains_when_an_index_is_missing():
    with rolled_back(USING):
        queue = fill("orders", 20_000)
        run("DROP INDEX pgqueue_ready_key")
        with watched(connections[USING]) as plans:
            queue.read(qty=QTY, in_transaction=True)

    [plan] = [plan for plan in plans if "SKIP LOCKED" in plan.statement]
    with pytest.raises(TooMuch, match="reads all of pgqueue_ready"):
        plan.check(rows=math.inf, buffers=10**9)
    with pytest.raises(TooMuch, match="rows, more than"):
        plan.check(rows=ROWS, buffers=10**9)
    with pytest.raises(TooMuch, match="buffers, more than"):
        plan.check(rows=math.inf, buffers=20)
    with pytest.raises(TooMuch, match="seems to cost"):
        plan.check(rows=math.inf, buffers=10**9, cost=plan.cost - 1)


def test_the_guard_sees_a_filter_that_throws_rows_away():
    with rolled_back(USING):
        queue = fill("orders", 20_000)
        with watched(connections[USING]) as plans:
            assert queue.read(conditional={"n": 19_999}, in_transaction=True)

    [plan] = [plan for plan in plans if "SKIP LOCKED" in plan.statement]
    with pytest.raises(TooMuch, match="rows, more than"):
        plan.check(rows=ROWS, buffers=10**9)
