"""The cost of operations on groups does not grow with other messages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import product

import pytest
from django.db import connection

from django_pgqueue.admin import places
from django_pgqueue.admin.places import LIVE, Place
from django_pgqueue.admin.queries import rows
from django_pgqueue.admin.search import Search
from django_pgqueue.engine.read import positions, reading
from django_pgqueue.models import Binding, BoundQueue, LiveMessage, Message, Queue
from tests.conftest import run_sql
from tests.engine.plans.plans import watched

TABLES = "pgqueue_ready, pgqueue_deferred, pgqueue_waiting, pgqueue_group, pgqueue_recheck"
EMPTY = "when there was no key"


@pytest.fixture
def crowded(db: None) -> BoundQueue:
    """5,000 groups of one message each, and 5,000 messages behind one leased head."""
    # Removes the dead rows that an earlier test's rollback left.
    run_sql(f"TRUNCATE {TABLES}")
    Message.objects.create_queue("orders")
    orders = BoundQueue("orders")
    orders.send_batch([0] * 5_000, group="blocked")
    orders.read(vt=3600)
    orders.send_batch([0] * 5_000, group=[f"g{n}" for n in range(5_000)])
    return orders


@pytest.mark.parametrize("analyzed", [False, True])
def test_a_read_and_its_promotion_touch_their_batch_only(crowded, sql, analyzed):
    if analyzed:
        sql("ANALYZE pgqueue_waiting, pgqueue_recheck, pgqueue_group")

    with watched(connection) as plans:
        messages = crowded.read(qty=100)

    assert len(messages) == 100
    for plan in plans:
        # One promotion processes a thousand rechecks.
        plan.check(rows=5_000, buffers=60_000)


@pytest.mark.parametrize("analyzed", [False, True])
def test_a_look_at_groups_without_a_head_costs_what_one_read_settles(crowded, sql, analyzed):
    if analyzed:
        sql("ANALYZE pgqueue_waiting, pgqueue_recheck, pgqueue_group")
    pk = Message.objects.resolve("orders").pk

    with watched(connection) as plans:
        peeked = crowded.peek(qty=20)
        listed = [Search(place, (pk,)).find(50).found for place in LIVE]
        rows(places.OLDEST_READABLE, {"queues": [pk]})
        shown = places.standing(Message.objects.order_by("-pk")[:50])

    assert len(peeked) == 20
    assert [len(found) for found in listed] == [50, 0, 50, 1, 0]
    assert {each.place for each in shown.values()} == {Place.READY}
    for plan in plans:
        plan.check(rows=1_500, buffers=6_000)


def begin_all_groups() -> None:
    """Give every group a head, in bigger batches, as reads outside a transaction do."""
    everything = {"batch": 100_000, "groups": 100_000, "alone": True, "rechecked": 0, "passed": []}
    Message.objects.resolve("orders").opened.run("groups/promote", everything)


@pytest.mark.parametrize("analyzed", [False, True])
def test_a_head_that_is_ready_is_found_by_its_turn(crowded, sql, analyzed):
    key = {"unique": "k", "until": "done", "group": "new", "on_conflict": "replace"}
    crowded.send("first", **key)
    begin_all_groups()
    [*heads] = sql(
        "SELECT id, queue_id FROM pgqueue_ready WHERE turn > id << 20 ORDER BY turn LIMIT 3"
    )
    if analyzed:
        sql("ANALYZE pgqueue_ready, pgqueue_group, pgqueue_message, pgqueue_claim")

    with watched(connection) as plans:
        assert crowded.send("second", **key).conflict == "replaced"
        assert crowded.archive(heads[0][0]) == [heads[0][0]]
        assert crowded.set_vt(heads[1][0], 60) == [heads[1][0]]
        pk, queue_id = heads[2]
        assert LiveMessage.objects.one(queue_id, pk, using="default").get().id == pk

    assert len(plans) >= 4
    # Before version 17, an index finds several values by a descent for each. Without statistics the
    # planner takes one look-up by priority for cheaper.
    rows = 100 if analyzed or connection.pg_version >= 170_000 else 5_000
    for plan in plans:
        plan.check(rows=rows, buffers=400)


@pytest.mark.parametrize("analyzed", [False, True])
def test_archiving_what_expired_in_groups_costs_its_batch(crowded, sql, analyzed):
    begin_all_groups()
    sql("UPDATE pgqueue_message SET expires_at = statement_timestamp()")
    sql("UPDATE pgqueue_deferred SET vt = statement_timestamp()")
    if analyzed:
        sql("ANALYZE pgqueue_ready, pgqueue_waiting, pgqueue_message")

    with watched(connection, generic=True) as plans:
        opened = Message.objects.resolve("orders").opened
        ended = opened.run("settle/expire_next", {"batch": 100, "max_deliveries": 20})

    assert len(ended) == 100 + 1 + 100, "heads that are ready and due, and those behind them"
    for plan in plans:
        plan.check(rows=1_500, buffers=20_000)


@pytest.mark.parametrize("read", ["read", "read_grouped", "read_grouped_rr"])
@pytest.mark.parametrize("analyzed", ["never", "when there was no group", "now"])
def test_a_grouped_read_costs_its_batch(crowded, sql, read, analyzed):
    if analyzed == "when there was no group":
        sql("ANALYZE pgqueue_waiting, pgqueue_recheck, pgqueue_group")
    crowded.send_batch([1] * 5_000, group=[f"g{n}" for n in range(5_000)])
    begin_all_groups()
    if analyzed == "now":
        sql("ANALYZE pgqueue_waiting, pgqueue_recheck, pgqueue_group, pgqueue_ready")

    with watched(connection) as plans:
        messages = getattr(crowded, read)(qty=20)

    assert len(messages) == 20
    for plan in plans:
        plan.check(rows=350, buffers=2_500)


def test_a_read_behind_the_position_looks_for_rechecks_by_their_index(crowded, sql):
    sql("ANALYZE pgqueue_recheck")  # once they are processed, the table is full of dead rows
    params = {"vt": "30 seconds", "qty": 20, "process_id": None}
    queue = Message.objects.resolve("orders").opened

    with watched(connection) as plans:
        queue.run("read/read_ready", params | positions._START, **reading.WITH_GROUPS)

    kinds = [node.kind for node in plans[0].nodes if node.relation == "pgqueue_recheck"]
    assert kinds
    assert "Seq Scan" not in kinds


def rows_read() -> int:
    """Rows of the groups' tables read by this transaction so far, including by triggers."""
    [(rows,)] = run_sql(
        "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables"
        " WHERE relname IN ('pgqueue_group', 'pgqueue_waiting', 'pgqueue_ready',"
        " 'pgqueue_deferred')"
    )
    return int(rows)


@pytest.mark.parametrize("read", ["read", "read_grouped"])
def test_what_comes_after_an_ack_costs_its_batch_though_plans_are_old(orders, sql, read):
    sql("ANALYZE pgqueue_waiting, pgqueue_recheck, pgqueue_group, pgqueue_ready, pgqueue_deferred")
    for _ in range(10):  # the triggers' plans are now cached
        orders.send_batch([0] * 3, group="a")
        orders.archive(getattr(orders, read)(qty=2))
    groups = [f"g{n}" for n in range(5_000)]
    orders.send_batch([0] * 15_000, group=groups * 3)
    begin_all_groups()
    messages = getattr(orders, read)(qty=100)
    before = rows_read()

    orders.archive(messages)

    assert len(messages) == 100
    # Each message, its group's row, the head's row (twice, for the fence) and the next message: a
    # few times each.
    assert rows_read() - before <= 100 * 14
    assert orders.metrics().ready >= 5_000 - 100


@pytest.mark.parametrize("limits", [{}, {"group_limit": 5}], ids=["no limit", "group_limit"])
def test_a_read_and_a_retry_cost_their_batch_though_plans_are_old(orders, sql, limits):
    Queue.objects.filter(name="orders").update(**limits)
    orders.send_batch([0] * 2_000)
    orders.send_batch([0] * 2_000, delay=3600)
    sql(f"ANALYZE {TABLES}")  # nothing is in flight
    for _ in range(10):  # the plans are now cached
        orders.send_batch([0] * 3, group="a", priority=1)
        orders.retry({message.receipt: 3600 for message in orders.read(qty=2)})
    orders.send_batch([0] * 5_000, group=[f"g{n}" for n in range(5_000)], priority=1)
    begin_all_groups()
    assert len(orders.read(qty=2_000)) == 2_000
    before = rows_read()

    messages = orders.read(qty=10)
    orders.retry({message.receipt: 60 for message in messages})

    assert len(messages) == 10
    assert rows_read() - before <= 10 * 20


def test_setting_followers_back_costs_its_batch(crowded, sql):
    sql("UPDATE pgqueue_deferred SET vt = statement_timestamp() - interval '1 second'")
    messages = crowded.read_grouped(qty=20)
    assert {message.group for message in messages} == {"blocked"}
    sql("UPDATE pgqueue_deferred SET vt = statement_timestamp() - interval '1 second'")
    crowded.set_vt(messages[0], 60)

    with watched(connection) as plans:
        crowded.read(qty=20)

    set_back = [plan for plan in plans if "-- Move followers" in plan.statement]
    assert set_back
    for plan in set_back:
        plan.check(rows=250, buffers=2_500)


# Dead letters, the archive, keys and topics


@pytest.fixture
def dead(db: None) -> BoundQueue:
    """20,000 dead letters of "orders", which has 20,000 messages in flight and 20,000 archived."""
    run_sql(f"TRUNCATE {TABLES}")
    Message.objects.create_queue("dead")
    Message.objects.create_queue("orders", dead_letter_queue="dead")
    orders, dead = BoundQueue("orders"), BoundQueue("dead")
    source = {"x-dead-letter": {"source": "orders"}}
    orders.archive(orders.send_batch([{"n": n} for n in range(20_000)]))
    orders.send_batch([{"n": n} for n in range(20_000)])
    orders.read(qty=20_000, vt=3600)
    dead.send_batch([{"n": n} for n in range(20_000)], headers=source)
    return dead


class Enough(Exception):
    """Raised to end a long operation after a few steps."""


def stop_after(batches: int) -> Callable[[int], None]:
    left = list(range(batches))

    def progress(done: int) -> None:
        left.pop()
        if not left:
            raise Enough

    return progress


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("django_pgqueue.engine.redrive.redriving.BATCH", 100)
    return 100


@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize("chosen", [{}, {"conditional": {"n": 15_000}}, {"ids": range(1, 100)}])
def test_a_batch_of_a_redrive_costs_that_batch(dead, sql, small_batches, analyzed, chosen):
    if analyzed:
        sql("ANALYZE pgqueue_ready, pgqueue_deferred, pgqueue_message, pgqueue_waiting")

    with watched(connection) as plans, suppress(Enough):
        dead.redrive(progress=stop_after(3), **chosen)

    assert [plan for plan in plans if "x-dead-letter" in plan.statement]
    for plan in plans:
        plan.check(rows=small_batches * 5, buffers=small_batches * 60)


def test_a_redrive_does_not_look_again_at_what_it_has_looked_at(dead, small_batches):
    with watched(connection) as plans:
        dead.redrive(conditional={"n": -1})

    looks = [plan for plan in plans if "x-dead-letter" in plan.statement]
    assert len(looks) == 20_000 / small_batches + 1
    assert max(plan.buffers for plan in looks[-20:]) < 2 * max(plan.buffers for plan in looks[:20])


@pytest.mark.parametrize("analyzed", [False, True])
def test_a_batch_of_a_replay_costs_that_batch(dead, sql, small_batches, analyzed):
    if analyzed:
        sql("ANALYZE pgqueue_archive, pgqueue_message")

    with watched(connection) as plans, pytest.raises(Enough):
        BoundQueue("orders").replay(progress=stop_after(3))

    for plan in plans:
        plan.check(rows=small_batches * 5, buffers=small_batches * 60)


@pytest.mark.parametrize("analyzed", [False, True])
def test_dead_lettering_costs_what_dies(dead, sql, analyzed):
    orders = BoundQueue("orders")
    orders.send_batch(list(range(100)))
    messages = orders.read(qty=100, vt=3600)
    assert len(messages) == 100
    if analyzed:
        sql("ANALYZE pgqueue_ready, pgqueue_deferred, pgqueue_message")

    with watched(connection) as plans:
        BoundQueue("orders").fail({message.receipt: "no" for message in messages})

    assert sql("SELECT count(*) FROM pgqueue_ready WHERE id >= %s", [messages[0].id]) == [(100,)]
    for plan in plans:
        plan.check(rows=1000, buffers=8000)


@pytest.mark.parametrize(
    ("analyzed", "planned", "until"),
    [
        *product(["with other queues", "never", EMPTY, "now"], ["now", EMPTY], [None]),
        *product(["never"], [EMPTY], ["started", "done"]),
    ],
)
def test_a_send_with_a_key_costs_the_same_with_many_keys(db, sql, analyzed, planned, until):
    sql("DISCARD PLANS")
    if analyzed == "with other queues":
        sql(
            "INSERT INTO pgqueue_claim SELECT n, statement_timestamp() + n * interval '1 ms', "
            "statement_timestamp(), 1, 0, 'window', n::text FROM generate_series(1, 3) n"
        )
        sql("ANALYZE pgqueue_claim")
    sql("TRUNCATE pgqueue_claim")
    if analyzed == EMPTY:
        sql("ANALYZE pgqueue_claim")
    for name in ("mails", "orders"):
        Message.objects.create_queue(name)
        if planned == EMPTY:
            for n in range(10):  # PL/pgSQL caches a plan from the sixth call on
                Message.objects.send(name, n, unique=f"early{n}", until=until)
        keys = [f"k{n}" for n in range(5_000)]
        Message.objects.send_batch(name, keys, unique=keys, until=until)
    orders = BoundQueue("orders")
    if analyzed == "now":
        sql("ANALYZE pgqueue_claim")
    for _ in range(2):  # reads the catalogs
        orders.send(1, unique="first", on_conflict="replace")

    with watched(connection) as plans:
        new = orders.send(1, unique="new", until=until)
        assert orders.send(1, unique="new") == new
        assert orders.send(1, unique="k7") < new
        assert orders.send(1, unique="k8", on_conflict="replace") > new

    for plan in plans:
        plan.check(rows=10, buffers=150)

    if until is not None:
        return
    sql("UPDATE pgqueue_claim SET until = statement_timestamp() - interval '1 second'")
    with watched(connection) as plans:
        assert orders.send(1, unique="k7") > new

    for plan in plans:
        plan.check(rows=10, buffers=400)


def test_a_publish_reads_the_bindings_once_and_writes_to_the_queues_that_match(db):
    queues = [Message.objects.create_queue(f"q{n}") for n in range(20)]
    Binding.objects.bulk_create(
        Binding(pattern=f"orders.{n}.#", queue=queues[n % 20]) for n in range(5_000)
    )
    Message.objects.publish("orders.0.new", 1)

    with watched(connection) as plans:
        sent = Message.objects.publish("orders.7.new", 1)

    assert list(sent) == ["q7"]
    aggregate, *_ = [plan for plan in plans if "pgqueue_binding" in plan.statement]
    aggregate.check(rows=5_000, buffers=128)
    sends = [plan for plan in plans if plan.statement.lstrip().startswith("-- Insert one")]
    assert len(sends) == 1
    sends[0].check(rows=10, buffers=150)
