"""Two sessions at one subscription, in a forced order: nothing is lost or comes after its ack."""

from __future__ import annotations

import contextlib

import pytest

from django_pgqueue.engine.subscriptions import reading
from django_pgqueue.errors import PgQueueError
from django_pgqueue.models import Queue, queue
from tests.actors import begin, call, commit, execute, rollback
from tests.conftest import run_sql
from tests.subscriptions.gates import blocked, seek, settle, subscribe
from tests.subscriptions.messages import bodies

pytestmark = pytest.mark.django_db(transaction=True)

ends = pytest.mark.parametrize("end", [commit, rollback], ids=["commit", "rollback"])
LEVELS = ["read committed", "repeatable read"]


def rest_of(subscription):
    """Read what is left, own messages too, and ack it; returns the bodies in order."""
    found = []
    while True:
        reading._memories.clear()
        messages = subscription.read(qty=10)
        if not messages:
            return sorted(found)
        found += bodies(messages)
        assert len(subscription.archive(messages)) == len(messages)


def let_leases_end():
    run_sql("UPDATE pgqueue_lease SET vt = vt - interval '1 day'")
    run_sql("UPDATE pgqueue_deferred SET vt = vt - interval '1 day'")


def nothing_is_left(name="audit"):
    [(pk,)] = run_sql("SELECT id FROM pgqueue_queue WHERE name = %s", [name])
    for table in ("lease", "deferred", "ready", "message"):
        assert run_sql(f"SELECT * FROM pgqueue_{table} WHERE queue_id = %s", [pk]) == [], table
    assert len(run_sql("SELECT 1 FROM pgqueue_cursor WHERE queue_id = %s", [pk])) == 1
    return True


@pytest.mark.parametrize("level", LEVELS)
def test_a_read_whose_position_another_read_moves_reads_what_follows(audit, actor, gate, level):
    queue("orders").send_batch([1, 2, 3])
    closed = gate("pgqueue_cursor", "DELETE")
    closed.stops(actor)
    actor.do(execute, f"SET default_transaction_isolation = '{level}'")

    slow = actor.start(call, "read", "audit", qty=2)
    blocked(slow)
    fast = audit.read(qty=2)
    assert audit.archive(fast) == [message.id for message in fast]
    closed.open()

    assert bodies(fast) == [1, 2]
    assert bodies(slow.result(10)) == [3]
    assert audit.archive(slow.result())
    assert rest_of(audit) == []
    assert nothing_is_left()


@pytest.mark.parametrize("level", LEVELS)
def test_a_read_waits_for_one_that_has_moved_the_position(audit, actors, gate, level):
    first, second = actors(2)
    queue("orders").send_batch([1, 2, 3])
    closed = gate("pgqueue_lease", "INSERT")
    closed.stops(first)
    second.do(execute, f"SET default_transaction_isolation = '{level}'")

    one = first.start(call, "read", "audit", qty=2)
    blocked(one)
    two = second.start(call, "read", "audit", qty=2)
    blocked(two, 2)
    closed.open()

    assert bodies(one.result(10)) == [1, 2]
    assert bodies(two.result(10)) == [3]


@pytest.mark.parametrize("level", LEVELS)
def test_a_message_that_leaves_after_a_read_has_seen_it_is_delivered_once(
    audit, actor, gate, level
):
    ids = queue("orders").send_batch([1, 2])
    closed = gate("pgqueue_cursor", "DELETE")
    closed.stops(actor)
    actor.do(execute, f"SET default_transaction_isolation = '{level}'")

    read = actor.start(call, "read", "audit", qty=5)
    blocked(read)
    assert queue("orders").delete(ids[:1])
    closed.open()

    found = read.result(10)
    assert audit.archive(found) == sorted(message.id for message in found)
    assert sorted([*bodies(found), *rest_of(audit)]) == [1, 2]
    assert nothing_is_left()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("way", ["archive", "release"])
def test_a_message_that_leaves_while_a_read_leases_it_keeps_its_lease(
    audit, actors, gate, way, level
):
    reader, source = actors(2)
    ids = queue("orders").send_batch([1, 2])
    closed = gate("pgqueue_lease", "INSERT")
    closed.stops(reader)

    read = reader.start(call, "read", "audit", qty=5)
    blocked(read)
    source.do(execute, f"SET default_transaction_isolation = '{level}'")
    delete = source.start(call, "delete", "orders", ids[:1])
    blocked(delete, 2)
    closed.open()

    found = read.result(10)
    assert bodies(found) == [1, 2]
    if level == "read committed":
        assert delete.result(10) == ids[:1]
    else:
        with pytest.raises(Exception, match="could not serialize"):
            delete.result(10)
    assert getattr(audit, way)([message.receipt for message in found]) == ids
    assert rest_of(audit) == ([1, 2] if way == "release" else [])
    assert nothing_is_left()


@ends
def test_a_read_waits_for_an_unread_message_that_is_leaving(audit, actors, end):
    reader, source = actors(2)
    ids = queue("orders").send_batch([1, 2])
    source.do(begin)
    assert source.do(call, "delete", "orders", ids[:1]) == ids[:1]

    read = reader.start(call, "read", "audit", qty=5)
    blocked(read)
    source.do(end)

    found = read.result(10)
    assert audit.archive(found) == sorted(message.id for message in found)
    assert sorted([*bodies(found), *rest_of(audit)]) == [1, 2]
    assert nothing_is_left()


def test_a_message_that_was_passed_leaves_without_a_wait(audit, actor):
    ids = queue("orders").send_batch([1, 2])
    audit.archive(audit.read(qty=1))
    actor.do(begin)
    assert actor.do(call, "delete", "orders", ids[:1]) == ids[:1]

    assert bodies(audit.read(qty=1)) == [2]

    actor.do(commit)


@ends
@pytest.mark.parametrize("way", ["release", "set_vt"])
def test_a_seek_takes_back_an_own_message_that_is_changing(audit, actors, way, end):
    holder, seeker = actors(2)
    queue("orders").send(1)
    audit.release([audit.read()[0].receipt])
    [own] = audit.read()
    holder.do(begin)
    if way == "release":
        holder.do(call, "release", "audit", [own.receipt])
    else:
        holder.do(call, "set_vt", "audit", [own.receipt], 60)

    sought = seeker.start(seek, "audit", "earliest")
    blocked(sought)
    holder.do(end)

    sought.result(10)
    [again] = audit.read()
    audit.release([again.receipt])
    assert rest_of(audit) == [1]
    assert nothing_is_left()


def test_a_delayed_message_that_leaves_in_its_lease_keeps_its_delay(audit, actor, gate):
    [pk] = queue("orders").send_batch([1], delay=3600)
    [(number,)] = run_sql("SELECT id FROM pgqueue_queue WHERE name = 'audit'")
    closed = gate("pgqueue_lease", "DELETE")
    closed.stops(actor)

    read = actor.start(call, "read", "audit", vt=0)
    blocked(read)
    delete = queue("orders").delete([pk])
    closed.open()

    assert delete == [pk]
    assert read.result(10) == []
    [(state, is_later, read_ct)] = run_sql(
        "SELECT state, vt > now() + interval '50 min', read_ct FROM pgqueue_deferred "
        "WHERE queue_id = %s",
        [number],
    )
    assert (state, is_later, read_ct) == ("SCHEDULED", True, 0)


def test_a_message_that_leaves_while_its_lease_is_split_is_kept(audit, actors, gate):
    reader, source = actors(2)
    ids = queue("orders").send_batch([1, 2, 3])
    taken = reader.do(call, "read", "audit", qty=3, vt=60)
    closed = gate("pgqueue_lease", "INSERT")
    closed.stops(reader)

    extend = reader.start(call, "set_vt", "audit", [taken[1].receipt], 60)
    blocked(extend)
    delete = source.start(call, "delete", "orders", [ids[1]])
    blocked(delete, 2)
    closed.open()

    assert extend.result(10) == [ids[1]]
    assert delete.result(10) == [ids[1]]
    let_leases_end()
    assert rest_of(audit) == [1, 2, 3]
    assert nothing_is_left()


@ends
@pytest.mark.parametrize("way", ["archive", "delete", "release", "retry", "fail", "set_vt"])
def test_a_settlement_waits_for_a_leased_message_that_is_leaving(audit, actors, end, way):
    reader, source = actors(2)
    ids = queue("orders").send_batch([1, 2, 3])
    found = audit.read(qty=3)
    source.do(begin)
    source.do(call, "delete", "orders", ids[:2])

    receipts = [message.receipt for message in found[1:]]
    given = {
        "retry": dict.fromkeys(receipts, 0),
        "fail": dict.fromkeys(receipts, "no"),
        "set_vt": receipts,
    }.get(way, receipts)
    if way == "set_vt":
        settled = reader.start(call, "set_vt", "audit", receipts, 0)
    else:
        settled = reader.start(settle, way, "audit", given)
    blocked(settled)
    source.do(end)

    assert list(settled.result(10)) == ids[1:]
    let_leases_end()
    ended = way in ("archive", "delete", "fail")
    assert rest_of(audit) == ([1] if ended else [1, 2, 3])
    if way == "fail":
        states = run_sql("SELECT id, state FROM pgqueue_archive ORDER BY id")
        assert states == [(pk, "FAILED") for pk in ids[1:]]
    else:
        assert nothing_is_left()


@ends
@pytest.mark.parametrize("way", ["archive", "release", "retry"])
def test_a_message_that_leaves_waits_for_the_settlement_of_its_lease(audit, actors, end, way):
    reader, source = actors(2)
    ids = queue("orders").send_batch([1, 2, 3])
    found = audit.read(qty=3)
    receipts = [message.receipt for message in found[1:]]
    reader.do(begin)
    reader.do(settle, way, "audit", dict.fromkeys(receipts, 0) if way == "retry" else receipts)

    delete = source.start(call, "delete", "orders", ids[:2])
    blocked(delete)
    reader.do(end)

    assert delete.result(10) == ids[:2]
    if end is rollback:
        assert audit.archive(found) == ids
        assert rest_of(audit) == []
    else:
        let_leases_end()
        assert rest_of(audit) == ([1] if way == "archive" else [1, 2, 3])
    assert nothing_is_left()


@ends
def test_leases_that_end_while_their_messages_are_leaving_are_delivered_once(audit, actors, end):
    reader, source = actors(2)
    ids = queue("orders").send_batch([1, 2, 3])
    audit.read(qty=3)
    let_leases_end()
    source.do(begin)
    source.do(call, "delete", "orders", ids[:2])

    meanwhile = reader.do(call, "read", "audit", qty=3)
    source.do(end)

    assert audit.archive(meanwhile) == [message.id for message in meanwhile]
    let_leases_end()
    assert sorted([*bodies(meanwhile), *rest_of(audit)]) == [1, 2, 3]
    assert nothing_is_left()


@ends
@pytest.mark.parametrize("level", LEVELS)
def test_seek_waits_for_messages_that_are_leaving(audit, actors, end, level):
    seeker, source = actors(2)
    ids = queue("orders").send_batch([1, 2])
    audit.archive(audit.read(qty=2))
    source.do(begin)
    source.do(call, "delete", "orders", ids[:1])

    seeker.do(execute, f"SET default_transaction_isolation = '{level}'")
    sought = seeker.start(seek, "audit", "earliest")
    blocked(sought)
    source.do(end)
    sought.result(10)

    assert rest_of(audit) == ([2] if end is commit else [1, 2])
    assert nothing_is_left()


@ends
def test_messages_leave_after_an_open_seek(audit, actors, end):
    seeker, source = actors(2)
    ids = queue("orders").send_batch([1, 2])
    audit.archive(audit.read(qty=2))
    seeker.do(begin)
    seeker.do(seek, "audit", "earliest")

    delete = source.start(call, "delete", "orders", ids[:1])
    blocked(delete)
    seeker.do(end)

    assert delete.result(10) == ids[:1]
    assert rest_of(audit) == ([1, 2] if end is commit else [])
    assert nothing_is_left()


@ends
@pytest.mark.parametrize("level", LEVELS)
def test_a_subscription_begins_after_messages_that_are_leaving(audit, actors, end, level):
    other, source = actors(2)
    ids = queue("orders").send_batch([1, 2])
    source.do(begin)
    source.do(call, "delete", "orders", ids[:1])

    other.do(execute, f"SET default_transaction_isolation = '{level}'")
    begun = other.start(subscribe, "stock", "orders", "earliest")
    blocked(begun)
    source.do(end)
    begun.result(10)

    assert rest_of(queue("stock")) == ([2] if end is commit else [1, 2])
    assert rest_of(audit) == [1, 2]
    assert nothing_is_left("stock")
    assert nothing_is_left()


@ends
def test_messages_leave_after_a_subscription_that_begins(audit, actors, end):
    other, source = actors(2)
    ids = queue("orders").send_batch([1, 2])
    other.do(begin)
    other.do(subscribe, "stock", "orders", "earliest")

    delete = source.start(call, "delete", "orders", ids[:1])
    blocked(delete)
    other.do(end)

    assert delete.result(10) == ids[:1]
    assert rest_of(audit) == [1, 2]
    if end is commit:
        assert rest_of(queue("stock")) == [1, 2]


@ends
def test_a_transaction_that_began_before_a_seek_counts_as_before_it(audit, actor, end):
    """Above READ COMMITTED its snapshot still says that the message was passed."""
    ids = queue("orders").send_batch([1, 2])
    audit.archive(audit.read(qty=2))
    actor.do(begin)
    actor.do(execute, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    actor.do(execute, "SELECT 1")
    audit.seek("earliest")

    actor.do(call, "delete", "orders", ids[:1])
    actor.do(end)

    assert rest_of(audit) == ([2] if end is commit else [1, 2])
    assert nothing_is_left()


def test_an_extension_and_an_ack_of_one_lease(audit, actors):
    first, second = actors(2)
    ids = queue("orders").send_batch([1, 2, 3, 4])
    found = audit.read(qty=4)
    first.do(begin)
    first.do(call, "set_vt", "audit", [m.receipt for m in found[1:3]], 600)

    ack = second.start(settle, "archive", "audit", [m.receipt for m in found[:2]])
    blocked(ack)
    first.do(commit)

    assert ack.result(10) == ids[:2]
    assert audit.archive([m.receipt for m in found[2:]]) == ids[2:]
    assert nothing_is_left()


def test_an_ack_and_an_extension_of_one_lease(audit, actors):
    first, second = actors(2)
    ids = queue("orders").send_batch([1, 2, 3, 4])
    found = audit.read(qty=4)
    first.do(begin)
    first.do(settle, "archive", "audit", [m.receipt for m in found[:2]])

    extension = second.start(call, "set_vt", "audit", [m.receipt for m in found[1:3]], 600)
    blocked(extension)
    first.do(commit)

    assert list(extension.result(10)) == ids[2:3]
    assert extension.result().lost == [found[1].receipt]
    assert audit.archive([m.receipt for m in found[2:]]) == ids[2:]
    assert nothing_is_left()


@ends
@pytest.mark.parametrize("way", ["set_vt", "archive", "release", "fail"])
def test_seek_takes_back_what_another_session_is_changing(audit, actors, end, way):
    reader, seeker = actors(2)
    queue("orders").send_batch([1, 2, 3])
    found = audit.read(qty=3)
    reader.do(begin)
    if way == "set_vt":
        reader.do(call, "set_vt", "audit", [found[1].receipt], 600)
    elif way == "fail":
        reader.do(settle, way, "audit", {found[1].receipt: "no"})
    else:
        reader.do(settle, way, "audit", [found[1].receipt])

    sought = seeker.start(seek, "audit", "earliest")
    blocked(sought)
    reader.do(end)
    sought.result(10)

    assert run_sql("SELECT 1 FROM pgqueue_lease") == []
    again = audit.read(qty=5)
    assert bodies(again) == [1, 2, 3]
    # Each has one place, so that a lease of it can end.
    assert audit.release([message.receipt for message in again]) == [m.id for m in again]
    assert rest_of(audit) == [1, 2, 3]
    assert nothing_is_left()


@pytest.mark.parametrize("settings", [{"archive_completed": True}, {}])
@pytest.mark.parametrize("way", ["release", "fail", "purge"])
def test_an_archived_message_comes_again_after_a_seek(committed_orders, settings, way):
    audit = queue("audit")
    audit.subscribe(to="orders", start="earliest", **settings)
    ids = committed_orders.send_batch([1, 2])
    found = audit.read(qty=2)
    if settings:
        audit.archive(found)
    else:
        audit.fail({message.receipt: "no" for message in found})

    audit.seek("earliest")
    again = audit.read(qty=2)

    assert bodies(again) == [1, 2]
    if way == "purge":
        committed_orders.purge()
    elif way == "fail":
        assert audit.fail({message.receipt: "no" for message in again}) == ids
    else:
        assert audit.release([message.receipt for message in again]) == ids
        assert sorted(bodies(audit.read(qty=5))) == [1, 2]
    archived = [] if way != "fail" else [(pk,) for pk in ids]
    assert run_sql("SELECT id FROM pgqueue_archive ORDER BY id") == archived


@pytest.mark.parametrize("operation", ["seek", "subscribe"])
def test_later_messages_of_the_same_transaction_come_after_now(audit, actor, operation):
    name = "audit"
    actor.do(begin)
    actor.do(call, "send", "orders", 1)
    queue("orders").send(2)  # a later transaction, which the snapshot shows
    if operation == "seek":
        actor.do(seek, "audit", "now")
    else:
        name = "stock"
        actor.do(subscribe, name, "orders", "now")
    actor.do(call, "send", "orders", 3)
    actor.do(commit)

    assert rest_of(queue(name)) == [3]


def test_a_read_and_the_drop_of_its_subscription(audit, actor, gate, pgqueue):
    pgqueue(LOCK_SECONDS=30)
    queue("orders").send_batch([1, 2])
    closed = gate("pgqueue_lease", "INSERT")
    closed.stops(actor)
    [(pk,)] = run_sql("SELECT id FROM pgqueue_queue WHERE name = 'audit'")

    read = actor.start(call, "read", "audit", qty=2)
    blocked(read)
    closed.open()
    assert audit.drop()

    with contextlib.suppress(PgQueueError):
        assert bodies(read.result(10)) == [1, 2]
    assert not Queue.objects.filter(name="audit").exists()
    for table in ("lease", "deferred", "ready", "message", "cursor"):
        assert run_sql(f"SELECT 1 FROM pgqueue_{table} WHERE queue_id = %s", [pk]) == [], table
