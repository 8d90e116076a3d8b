"""The position of a subscription: rounds, late commits, other systems, and what it lost."""

from __future__ import annotations

import pytest

from django_pgqueue.engine.subscriptions import reading
from django_pgqueue.errors import PositionLost
from django_pgqueue.models import queue
from tests.actors import begin, call, commit, rollback
from tests.conftest import run_sql
from tests.subscriptions.messages import bodies

pytestmark = pytest.mark.django_db(transaction=True)


def read(qty, *, as_another_process=False):
    if as_another_process:
        reading._memories.clear()
    found = queue("audit").read(qty=qty)
    assert queue("audit").archive(found) == [message.id for message in found]
    return bodies(found)


@pytest.fixture(params=[False, True], ids=["one process", "processes"])
def parts(request):
    """Read one message at a time; returns the bodies."""

    def call(number):
        found = []
        for _ in range(number):
            found += read(1, as_another_process=request.param)
        return found

    return call


def test_a_round_in_parts_reads_each_message_once(audit, parts):
    queue("orders").send_batch([1, 2, 3])
    for body in (4, 5):
        queue("orders").send(body)

    assert parts(7) == [1, 2, 3, 4, 5]


def test_messages_sent_during_a_round_come_after_it(audit, actor, parts):
    actor.do(begin)
    actor.do(call, "send", "orders", "late")
    queue("orders").send_batch([1, 2, 3])

    assert parts(1) == [1]
    actor.do(commit)
    queue("orders").send(4)

    assert parts(2) == [2, 3]
    assert parts(3) == ["late", 4]


def test_late_transactions_in_any_order_are_not_passed_over(audit, actors, parts):
    first, second, third = actors(3)
    for number, sender in enumerate((first, second, third), 1):
        sender.do(begin)
        sender.do(call, "send_batch", "orders", [number, number * 10])
    queue("orders").send("early")
    assert parts(2) == ["early"]

    third.do(commit)
    assert parts(1) == [3]
    first.do(commit)
    assert parts(1) == [30]
    second.do(rollback)

    assert parts(3) == [1, 10]


def test_a_seek_during_a_round_ends_it(audit, parts):
    ids = queue("orders").send_batch([1, 2, 3, 4])
    assert parts(2) == [1, 2]

    audit.seek(ids[3])
    assert parts(2) == [4]

    audit.seek("earliest")
    assert parts(5) == [1, 2, 3, 4]


def test_a_position_of_another_system_stops_a_reader_until_a_seek(audit):
    queue("orders").send_batch([1, 2])
    assert read(1) == [1]
    run_sql("UPDATE pgqueue_cursor SET system = system + 1")
    reading._memories.clear()

    with pytest.raises(PositionLost, match="pgqueue_seek audit") as caught:
        audit.read()
    assert run_sql("SELECT 1 FROM pgqueue_lease") == []

    audit.seek(next_id(caught))
    assert read(5) == [2]


def next_id(caught):
    """The id that the error's command names."""
    return int(str(caught.value).rsplit("--id ", 1)[1].split()[0])


def restore(ahead=0):
    """Change the tables as if they came from another system, so many transactions ahead of this."""
    shifted = (
        "(SELECT concat(pg_snapshot_xmin({0})::text::bigint + %(n)s, ':', "
        "pg_snapshot_xmax({0})::text::bigint + %(n)s, ':', "
        "(SELECT string_agg((x::text::bigint + %(n)s)::text, ',' ORDER BY x) "
        "FROM pg_snapshot_xip({0}) x)))::pg_snapshot"
    )
    run_sql("UPDATE pgqueue_message SET enqueued_xid = enqueued_xid + %s", [ahead])
    run_sql(
        f"UPDATE pgqueue_cursor SET system = system + 1, since = {shifted.format('since')}, "
        f"until = CASE WHEN until IS NOT NULL THEN {shifted.format('until')} END, "
        "after_xid = CASE WHEN after_xid > 0 THEN after_xid + %(n)s ELSE 0 END",
        {"n": ahead},
    )
    reading._memories.clear()


AHEAD = pytest.mark.parametrize("ahead", [0, 1000, 1_000_000])


@AHEAD
def test_a_subscription_goes_on_after_a_restore(audit, parts, ahead):
    """This system may not have reached the transactions that the restored rows name."""
    queue("orders").send_batch([1, 2, 3])
    queue("orders").send(4)
    assert parts(2) == [1, 2]
    restore(ahead)

    with pytest.raises(PositionLost) as caught:
        audit.read()
    audit.seek(next_id(caught))
    queue("orders").send(5)

    assert parts(6) == [3, 4, 5]


@AHEAD
def test_a_late_message_is_not_passed_over_by_a_restore(audit, actor, ahead):
    """The dump has a message with a lower id than the last that was read, but not read itself."""
    actor.do(begin)
    actor.do(call, "send", "orders", "late")
    queue("orders").send(1)
    assert read(5) == [1]
    actor.do(commit)
    restore(ahead)

    with pytest.raises(PositionLost) as caught:
        audit.read()
    with pytest.raises(PositionLost) as peeked:
        audit.peek()
    assert str(peeked.value) == str(caught.value)
    audit.seek(next_id(caught))

    assert "late" in read(5)


@AHEAD
def test_a_restore_with_two_subscriptions_passes_over_no_late_message(audit, actor, ahead):
    """The first one that goes on gives restored messages a new place in the order."""
    queue("stock").subscribe(to="orders", start="earliest")
    actor.do(begin)
    actor.do(call, "send", "orders", "late")
    queue("orders").send(1)
    for name in ("audit", "stock"):
        assert bodies(queue(name).read(qty=5)) == [1]
    actor.do(commit)
    restore(ahead)

    for name in ("audit", "stock"):
        with pytest.raises(PositionLost) as caught:
            queue(name).read()
        queue(name).seek(next_id(caught))

    for name in ("audit", "stock"):
        assert set(bodies(queue(name).read(qty=5))) >= {"late"}


def test_what_a_source_gets_back_from_its_dead_letters_stays_with_the_subscription(committed):
    """A seek leaves the subscription's own copy: the source's message is not a new one."""
    queue("dead").create()
    queue("orders").create(dead_letter_queue="dead")
    queue("audit").subscribe(to="orders", start="earliest")
    queue("orders").send(1)
    [message] = queue("orders").read()
    assert queue("orders").fail({message.receipt: "no"})
    assert queue("dead").redrive() == 1

    queue("audit").seek("earliest")

    assert read(5) == [1]
    assert read(5) == []


def test_what_is_older_than_keep_for_is_lost_and_counted(committed_orders):
    queue("audit").subscribe(to="orders", start="earliest", keep_for=3600)
    committed_orders.send_batch([1, 2, 3])
    for table in ("message", "ready"):
        run_sql(
            f"UPDATE pgqueue_{table} SET enqueued_at = enqueued_at - interval '2 hours' "
            "WHERE id < (SELECT max(id) FROM pgqueue_message)"
        )
    assert committed_orders.purge() == 3

    assert read(5) == [3]
    assert run_sql("SELECT lost FROM pgqueue_cursor") == [(2,)]
