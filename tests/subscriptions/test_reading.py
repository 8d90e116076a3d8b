"""What a subscription delivers, and what becomes of it."""

from __future__ import annotations

import datetime as dt
import threading
import time
from typing import Any

import pytest
from django.db import connection, transaction

from django_pgqueue import queue
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.models import BoundQueue, Message
from tests.actors import begin, call, commit
from tests.conftest import run_sql
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


def again(**settings: Any) -> BoundQueue:
    """A subscription with other settings."""
    queue("again").subscribe(to="orders", start="earliest", **settings)
    return queue("again")


def numbers(messages: list[Message]) -> list[Any]:
    return [message.body for message in messages]


def rows(name: str) -> dict[str, int]:
    """How many rows each table has for a queue."""
    counts = {
        table: run_sql(
            f"SELECT count(*) FROM pgqueue_{table} WHERE queue_id = "
            "(SELECT id FROM pgqueue_queue WHERE name = %s)",
            [name],
        )[0][0]
        for table in ("message", "archive", "ready", "deferred", "lease", "cursor")
    }
    return {table: number for table, number in counts.items() if number}


def test_each_subscription_gets_every_message_in_order(committed_orders, audit):
    other = again()
    committed_orders.send_batch(list(range(50)))

    assert numbers(audit.read(qty=30)) == list(range(30))
    assert numbers(audit.read(qty=30)) == list(range(30, 50))
    assert numbers(other.read(qty=100)) == list(range(50))
    assert numbers(committed_orders.read(qty=100)) == list(range(50))
    assert audit.read() == []


def test_an_acknowledged_message_leaves_no_row(committed_orders, audit):
    committed_orders.send_batch(list(range(20)))
    taken = audit.read(qty=20)
    assert rows("audit") == {"lease": 1, "cursor": 1}

    parts = [*audit.archive(taken[3:5]), *audit.delete(taken[10]), *audit.archive(taken[19])]

    assert parts == [taken[place].id for place in (3, 4, 10, 19)]
    assert audit.archive(taken).lost == [taken[place].receipt for place in (3, 4, 10, 19)]
    assert rows("audit") == {"cursor": 1}


def test_a_released_message_becomes_the_subscriptions_own_and_then_leaves_no_row(
    committed_orders, audit
):
    committed_orders.send_batch(list(range(5)))
    taken = audit.read(qty=5)

    audit.release([taken[1].receipt])

    [back] = until(lambda: audit.read(qty=9))
    assert (back.id, back.body, back.read_ct) == (taken[1].id, 1, 1)
    assert back.enqueued_at == taken[1].enqueued_at
    assert audit.archive([taken[0], *taken[2:], back]) == sorted(m.id for m in taken)
    assert rows("audit") == {"cursor": 1}


def test_extending_some_messages_of_a_lease_splits_it(committed_orders, audit):
    committed_orders.send_batch(list(range(10)))
    taken = audit.read(qty=10, vt=60)
    ids = [message.id for message in taken]

    assert audit.set_vt(taken[:2], 600) == ids[:2]
    assert audit.set_vt(taken[7:9], 600) == ids[7:9]
    assert audit.set_vt(taken[3:5], 600) == ids[3:5]

    leases = run_sql("SELECT ids, vt > now() + interval '5 min' FROM pgqueue_lease ORDER BY head")
    assert leases == [
        (ids[:2], True),
        ([ids[2], *ids[5:7], ids[9]], False),
        (ids[3:5], True),
        (ids[7:9], True),
    ]
    assert audit.archive(taken) == ids
    assert rows("audit") == {"cursor": 1}


def test_a_message_whose_lease_expires_is_delivered_again_and_fails_at_last(
    committed_orders, audit
):
    other = again(max_deliveries=2)
    committed_orders.send("x")

    assert [other.read(vt=0)[0].read_ct, other.read(vt=0)[0].read_ct] == [1, 2]
    assert other.read() == []

    [failed] = run_sql("SELECT state, error FROM pgqueue_archive")
    assert failed == ("FAILED", "gave up after 2 deliveries; none of them reported an outcome")
    assert rows("again") == {"message": 1, "archive": 1, "cursor": 1}
    assert other.replay() == 1
    assert numbers(other.read()) == ["x"]


def test_delayed_messages_come_when_they_are_due_and_others_are_skipped(committed_orders, audit):
    committed_orders.send("delayed", delay=0.5)
    committed_orders.send("expired", expires=0.0001)
    cancelled = committed_orders.send("cancelled")
    committed_orders.send("first", unique="key", until="started", on_conflict="replace")
    committed_orders.send("second", unique="key", until="started", on_conflict="replace")
    later = committed_orders.send("cancelled later", delay=0.5)
    committed_orders.cancel(cancelled)

    assert numbers(audit.read(qty=9)) == ["second"]
    committed_orders.cancel(later)
    assert numbers(until(lambda: audit.read(qty=9))) == ["delayed"]
    states = "SELECT state FROM pgqueue_archive a JOIN pgqueue_queue q ON q.id = a.queue_id"
    expired = f"{states} WHERE q.name = 'audit'"
    until(lambda: audit.read(qty=9) or run_sql(expired) == [("EXPIRED",)])
    assert run_sql(expired) == [("EXPIRED",)]


def test_priority_is_ignored(committed_orders, audit):
    for number, priority in enumerate((0, 5, -5)):
        committed_orders.send(number, priority=priority)

    taken = audit.read(qty=3)

    assert numbers(taken) == [0, 1, 2]
    assert [message.priority for message in taken] == [0, 5, -5]
    assert audit.archive(taken) == [message.id for message in taken]


@pytest.mark.parametrize("way", ["purge", "delete", "dead letter", "DELETE", "of the parent"])
def test_what_leaves_the_source_is_still_delivered(committed_orders, audit, way):
    queue("dead").create()
    committed_orders.alter(dead_letter_queue="dead")
    committed_orders.send_batch(list(range(6)))
    held = audit.read(qty=3)

    if way == "purge":
        committed_orders.purge()
    elif way == "delete":
        committed_orders.delete(committed_orders.read(qty=6))
    elif way == "dead letter":
        committed_orders.fail({message.receipt: "no" for message in committed_orders.read(qty=6)})
    else:
        table = "pgqueue_message" if way == "of the parent" else "pgqueue_message_q{}"
        [(number,)] = run_sql("SELECT id FROM pgqueue_queue WHERE name = 'orders'")
        run_sql(f"DELETE FROM {table.format(number)} WHERE queue_id = %s", [number])

    rest = until(lambda: audit.read(qty=9))
    assert numbers(rest) == [3, 4, 5]
    audit.release([held[0].receipt])
    [back] = until(lambda: audit.read(qty=9))
    assert numbers([back]) == [0]
    assert len(audit.archive([back, *held[1:], *rest])) == 6
    assert rows("audit") == {"cursor": 1}


def test_a_message_that_commits_late_is_not_passed_over(committed_orders, audit, actor):
    actor.do(begin)
    actor.do(call, "send", "orders", "late")
    committed_orders.send("first")
    assert numbers(audit.read(qty=9)) == ["first"]
    committed_orders.send("second")

    actor.do(commit)

    assert numbers(audit.read(qty=9)) == ["late", "second"]
    assert audit.read(qty=9) == []


def test_a_long_transaction_elsewhere_delays_no_message(committed_orders, audit, actor):
    actor.do(begin)
    actor.do(call, "create_queue", "elsewhere")
    committed_orders.send("x")

    assert numbers(audit.read()) == ["x"]
    actor.do(commit)


def test_a_seek_goes_forward_and_back_and_takes_back_what_is_in_flight(committed_orders, audit):
    committed_orders.send_batch(list(range(6)))
    taken = audit.read(qty=3)
    audit.retry({taken[0].receipt: 60})

    audit.seek("earliest")
    assert audit.archive(taken) == []
    assert numbers(audit.read(qty=9)) == list(range(6))
    audit.seek(taken[2].id + 1)
    assert numbers(audit.read(qty=9)) == [3, 4, 5]
    audit.seek("now")
    assert audit.read(qty=9) == []
    audit.seek(dt.datetime.now(dt.timezone.utc) - dt.timedelta(hours=1))
    assert numbers(audit.read(qty=9)) == list(range(6))
    audit.seek(dt.datetime.now(dt.timezone.utc) + dt.timedelta(hours=1))
    assert audit.read(qty=9) == []


def test_a_seek_forward_leaves_what_is_in_flight(committed_orders, audit):
    committed_orders.send_batch(list(range(6)))
    taken = audit.read(qty=2)
    audit.retry({taken[0].receipt: 0})

    audit.seek("now")

    assert audit.archive(taken[1]) == [taken[1].id]
    assert numbers(until(lambda: audit.read(qty=9))) == [0]


@pytest.mark.parametrize("to", ["yesterday", dt.datetime(2026, 1, 1), 1.5, None, True])
def test_a_seek_to_nowhere_is_refused(committed_orders, audit, to):
    with pytest.raises(InvalidArgument, match='to must be "now", "earliest", an aware datetime'):
        audit.seek(to)


def test_a_queue_has_no_position_to_seek(committed_orders):
    with pytest.raises(InvalidArgument, match="no subscription, so it has no position"):
        committed_orders.seek("now")


def test_a_limit_counts_what_is_in_flight(committed_orders):
    other = again(limit=2)
    committed_orders.send_batch(list(range(6)))

    taken = other.read(qty=9)
    assert numbers(taken) == [0, 1]
    assert other.read() == []
    other.archive(taken[0])
    assert numbers(other.read(qty=9)) == [2]


def test_a_dead_letter_is_a_copy_that_comes_back_to_its_subscription_alone(committed_orders):
    queue("dead").create()
    one, other = again(dead_letter_queue="dead"), queue("other")
    other.subscribe(to="orders", start="earliest")
    sent = committed_orders.send("x")
    [message] = one.read()
    other.archive(other.read())

    assert one.fail({message.receipt: "no"}) == [sent]

    [letter] = queue("dead").peek()
    assert letter.id != sent
    assert letter.headers["x-dead-letter"]["source"] == "again"
    assert queue("dead").redrive() == 1
    assert [m.id for m in committed_orders.peek(qty=9)] == [sent]
    assert numbers(until(lambda: one.read(qty=9))) == ["x"]
    assert other.read() == []


def test_a_redrive_into_the_source_is_no_new_message(committed_orders, audit):
    queue("dead").create()
    committed_orders.alter(dead_letter_queue="dead")
    committed_orders.send("x")
    assert numbers(audit.read()) == ["x"]
    committed_orders.fail({committed_orders.read()[0].receipt: "no"})

    assert queue("dead").redrive() == 1

    assert numbers(committed_orders.read()) == ["x"]
    assert audit.read() == []


def test_completed_messages_are_archived_on_request(committed_orders):
    keeps = again(archive_completed=True)
    committed_orders.send_batch(list(range(3)))

    taken = keeps.read(qty=3)
    assert keeps.archive(taken[:2]) == [taken[0].id, taken[1].id]

    assert run_sql("SELECT state, count(*) FROM pgqueue_archive GROUP BY 1") == [("COMPLETED", 2)]
    assert keeps.replay() == 2
    assert numbers(until(lambda: keeps.read(qty=9))) == [0, 1]


def test_a_read_in_a_transaction_and_a_conditional_read_are_refused(committed_orders, audit):
    with transaction.atomic(), pytest.raises(InvalidArgument, match="its other readers would wait"):
        audit.read(in_transaction=True)
    with pytest.raises(InvalidArgument, match="cannot take only messages that match"):
        audit.read(conditional={"a": 1})


def test_eight_readers_get_each_message_once(committed_orders, audit):
    total, seen, stop = 4000, [], threading.Event()

    def work() -> None:
        while not stop.is_set():
            if taken := audit.read(qty=7):
                audit.archive(taken)
                seen.extend(numbers(taken))
        connection.close()

    def send(first: int) -> None:
        for number in range(first, total, 16):
            with transaction.atomic():
                committed_orders.send_batch([number + each for each in range(0, 16, 4)])
        connection.close()

    readers = [threading.Thread(target=work) for _ in range(8)]
    senders = [threading.Thread(target=send, args=(first,)) for first in range(4)]
    for thread in readers + senders:
        thread.start()
    until(lambda: len(seen) >= total, 60)
    time.sleep(0.2)
    stop.set()
    for thread in readers + senders:
        thread.join()

    assert sorted(seen) == list(range(total))
    assert rows("audit") == {"cursor": 1}
