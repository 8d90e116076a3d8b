"""When a send notifies: while a consumer sleeps, and what a consumer learns that falls asleep."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, transaction

from django_pgqueue.engine.read.reading import fall_asleep
from django_pgqueue.engine.read.sleep import Sleep
from django_pgqueue.engine.wake import THROTTLE
from django_pgqueue.management.jobs import url_of
from django_pgqueue.models import BoundQueue, Message
from tests.actors import begin, call, commit, execute, rollback
from tests.conftest import rolled_back, run_sql
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


class Heard:
    """Counts the notifications of a queue."""

    def __init__(self, listener: psycopg.Connection[Any]) -> None:
        self._listener = listener
        listener.execute("LISTEN pgqueue")

    def sessions(self) -> list[int]:
        # The answer comes after all notifications of earlier commits.
        self._listener.execute("SELECT 1")
        return [each.pid for each in self._listener.notifies(timeout=0)]

    def count(self) -> int:
        return len(self.sessions())


@pytest.fixture
def heard(committed_orders: BoundQueue) -> Iterator[Heard]:
    with psycopg.connect(url_of("default"), autocommit=True) as listener:
        yield Heard(listener)


def sleep(
    *, heard: Iterable[int] | None = (), doubt: int | None = None
) -> tuple[float, int | None]:
    return fall_asleep(Message.objects.resolve("orders").opened, heard=heard, doubt=doubt)


def mark(value: str | None = None) -> int:
    """The value of the sequence, after it was set to an SQL expression."""
    wake = Message.objects.resolve("orders").tables["wake"]
    if value is not None:
        run_sql(f"SELECT setval('{wake}', {value})")
    return run_sql(f"SELECT pg_sequence_last_value('{wake}')")[0][0]


# No other notification may follow.
SILENT = "8"
# A send of the session 4711 notifies just now, for a second; six may follow.
TOLD = "((extract(epoch FROM clock_timestamp()) * 1000 + 900)::bigint << 19) + (4711 << 3) + 6"


def test_a_send_notifies_once_for_each_time_that_a_consumer_falls_asleep(committed_orders, heard):
    mark(SILENT)
    counts = []
    for number in range(5):
        committed_orders.send_batch(range(number + 1))
        committed_orders.read(qty=9)
        counts.append(heard.count())
        sleep()

        committed_orders.send(1)

        counts.append(heard.count())
        mark(SILENT)
        committed_orders.send(1)
        committed_orders.read(qty=9)

    assert counts == [0, 1] * 5


def test_a_queue_for_which_nobody_sleeps_falls_silent(committed_orders, heard):
    sleep()

    def is_silent() -> bool:
        committed_orders.send(1)
        return mark() % 8 == 0

    until(is_silent)

    assert heard.count() == 7
    committed_orders.send(1)
    assert heard.count() == 0


def test_another_send_notifies_if_the_first_is_rolled_back(committed_orders, heard):
    mark(SILENT)
    sleep()
    with rolled_back():
        committed_orders.send(1)
    nothing = heard.count()

    def is_heard() -> bool:
        committed_orders.send(1)
        return heard.count() > 0

    until(is_heard)
    assert nothing == 0


def test_the_sequence_changes_at_once_and_not_twice(committed_orders):
    call = f"pgqueue_fall_asleep({Message.objects.resolve('orders').opened.id}, '{{}}', NULL)"

    def writes_nothing() -> bool:
        [([plan],)] = run_sql(f"EXPLAIN (ANALYZE, WAL, FORMAT JSON) SELECT {call}")
        return plan["Plan"]["WAL Records"] == 0

    mark(SILENT)
    assert not writes_nothing()
    assert mark() == 7
    until(writes_nothing)  # a first scan may prune what other tests left
    assert mark() == 7


@pytest.mark.parametrize(
    ("heard", "has_come"),
    [((), False), ((4712,), False), ((4712, 4711), True), ((65536 + 4711,), True), (None, True)],
)
def test_a_notification_that_may_be_on_its_way_is_waited_for(committed_orders, heard, has_come):
    told = mark(TOLD)

    sleep(heard=heard)

    assert mark() == (7 if has_come else told)


def test_a_reader_knows_whose_notification_it_heard(committed_orders, heard):
    reader, opened = Sleep(), Message.objects.resolve("orders").opened
    reader.begin(opened, 60)
    committed_orders.send(1)
    told = mark()
    committed_orders.read()

    reader.begin(opened, 60)
    unheard = mark()
    reader.hear(heard.sessions()[-1])
    reader.begin(opened, 60)

    assert unheard == told
    assert mark() == 7


def test_a_consumer_that_falls_asleep_learns_of_senders_that_may_commit_untold(
    committed_orders, actor
):
    mark(SILENT)
    actor.do(begin)
    actor.do(call, "send", "orders", 1)

    before = sleep()
    still = sleep(doubt=before[1])
    actor.do(commit)
    after = sleep(doubt=before[1])

    assert before[0] == still[0] == float("inf")
    assert before[1] == still[1] is not None
    assert after == (0.0, None)


def test_a_consumer_learns_of_them_at_its_first_call_if_another_fell_asleep_before(
    committed_orders, actor
):
    """The other one may be gone, and with it what it learned. While it lives, one is enough."""
    mark(SILENT)
    actor.do(begin)
    actor.do(call, "send", "orders", 1)
    sleep()

    _, doubt = sleep(heard=None, doubt=0)
    _, later = sleep(heard=None)

    assert mark() == 7
    assert doubt is not None
    assert later is None
    actor.do(commit)
    assert sleep(doubt=doubt) == (0.0, None)


def test_a_reader_whose_call_failed_learns_of_them_at_the_next(committed_orders, actors):
    sender, blocker = actors(2)
    reader, opened = Sleep(), Message.objects.resolve("orders").opened
    for _ in range(2):
        reader.begin(opened, 60)  # nothing is in doubt
    mark(SILENT)
    sender.do(begin)
    sender.do(call, "send", "orders", 1)
    blocker.do(begin)
    blocker.do(execute, "LOCK TABLE pgqueue_lease")
    run_sql("SELECT set_config('statement_timeout', '100ms', false)")

    with pytest.raises(OperationalError):
        reader.begin(opened, 60)

    run_sql("SELECT set_config('statement_timeout', '0', false)")
    blocker.do(rollback)
    reader.wait = 0.0
    seconds, due = reader.begin(opened, 60)
    assert (mark(), due) == (7, float("inf"))
    assert seconds < THROTTLE / 2  # soon, since a sender is at work


@pytest.mark.parametrize("commits", [True, False])
def test_a_reader_reads_at_once_when_a_sender_in_doubt_has_committed(
    committed_orders, actor, commits
):
    """The message may have come after the reader's last read."""
    reader, opened = Sleep(), Message.objects.resolve("orders").opened
    mark(SILENT)
    actor.do(begin)
    actor.do(call, "send", "orders", 1)
    in_doubt = [reader.begin(opened, 60)[0] for _ in range(3)]

    actor.do(commit if commits else rollback)
    over, _ = reader.begin(opened, 60)
    again, _ = reader.begin(opened, 60)

    assert all(0 < seconds < THROTTLE for seconds in in_doubt)
    assert over == 0.0 if commits else over >= THROTTLE / 2
    assert again >= THROTTLE / 2  # the row is there, but another reader has locked it


def test_a_reader_reads_at_once_what_came_since_its_last_look(committed_orders, actor):
    """Its sender counted on a notification that has come, or that was rolled back."""
    reader, opened = Sleep(), Message.objects.resolve("orders").opened
    for _ in range(2):
        reader.begin(opened, 60)
    mark(TOLD)
    committed_orders.send(1)

    reader.hear(4711)
    first, due = reader.begin(opened, 60)
    again, _ = reader.begin(opened, 60)

    assert (first, due) == (0.0, 0.0)
    assert again >= THROTTLE / 2


@pytest.mark.parametrize("days", [None, 1])
def test_the_doubt_lasts_as_long_as_a_sender_and_no_other_transaction(committed, actors, days):
    interval = None if days is None else dt.timedelta(days=days)
    number = Message.objects.create_queue("orders", partition_interval=interval).pk
    Message.objects.create_queue("mails")
    sender, other = actors(2)
    mark(SILENT)
    for each in (sender, other):
        each.do(begin)
    sender.do(execute, "INSERT INTO pgqueue_message (queue_id, body) VALUES (%s, '1')", [number])
    other.do(call, "send", "mails", 1)

    _, first = sleep()
    _, second = sleep(doubt=first)
    sender.do(rollback)
    _, third = sleep(doubt=second)

    assert first == second is not None
    assert third is None


def test_a_sender_that_begins_later_leaves_no_doubt(committed_orders, actor, heard):
    mark(SILENT)
    sleep()
    actor.do(begin)
    actor.do(call, "send", "orders", 1)
    mark(TOLD)  # however long that took

    assert sleep() == (float("inf"), None)

    actor.do(commit)
    assert heard.count() == 1


@pytest.mark.parametrize(("options", "due"), [({}, 0), ({"group": "g"}, 0), ({"delay": 60}, 60)])
def test_a_consumer_that_falls_asleep_sees_what_came_since_its_read(committed_orders, options, due):
    committed_orders.send(1, **options)

    assert sleep()[0] == pytest.approx(due, abs=10)


def test_the_look_for_messages_has_a_later_snapshot_than_its_statement(committed_orders, actors):
    """So what commits before the sequence changes is seen."""
    sender, consumer = actors(2)
    number = Message.objects.resolve("orders").pk
    sender.do(begin)
    sender.do(call, "send", "orders", 1)
    sender.do(execute, "SELECT pg_advisory_xact_lock(4711)")
    falls_asleep = (
        "WITH held AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared(4711)) "
        "SELECT (SELECT due FROM pgqueue_fall_asleep(%s, '{}', NULL)) FROM held"
    )

    due = consumer.start(execute, falls_asleep, [number])
    until(lambda: run_sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))
    sender.do(commit)

    assert due.result(timeout=20) == [(0.0,)]


def test_without_its_sequence_a_queue_notifies_each_time(committed_orders, heard):
    run_sql(f"DROP SEQUENCE {Message.objects.resolve('orders').tables['wake']}")

    fell = sleep()
    committed_orders.send(1)
    committed_orders.send(2)

    assert fell == (float("inf"), None)
    assert heard.count() == 2

    number = Message.objects.resolve("orders").pk
    assert run_sql("SELECT pgqueue_repair_wake(%s)", [number]) == [(True,)]
    sleep()
    committed_orders.send(3)
    committed_orders.send(4)
    assert heard.count() == 1


@pytest.mark.parametrize(
    "reset",
    [
        "ALTER SEQUENCE {wake} RESTART",
        "TRUNCATE pgqueue_message, pgqueue_archive, pgqueue_ready RESTART IDENTITY",
    ],
)
def test_a_sequence_that_begins_anew_wakes_who_sleeps(committed_orders, heard, reset):
    mark(SILENT)
    sleep()

    run_sql(reset.format(wake=Message.objects.resolve("orders").tables["wake"]))
    committed_orders.send(1)

    assert heard.count() == 1


@pytest.mark.parametrize("value", ["1", "8", "9223372036854775807", TOLD.replace("900", "90000")])
def test_a_value_of_old_or_of_no_meaning_lasts_until_the_next_poll(committed_orders, heard, value):
    """As after a restore, or after a crash that lost the last change."""
    mark(value)

    sleep()
    committed_orders.send(1)

    assert heard.count() == 1


def test_a_consumer_that_rolls_back_is_notified(committed_orders, heard):
    mark(SILENT)

    with rolled_back():
        sleep()
    committed_orders.send(1)

    assert heard.count() == 1


def test_what_a_subscription_applies_notifies_nobody(committed_orders, heard):
    """It fires no trigger, so it leaves the sequence to the next send."""
    mark(SILENT)
    sleep()

    with transaction.atomic():
        run_sql("SET LOCAL session_replication_role = replica")
        committed_orders.send(1)

    assert (heard.count(), mark()) == (0, 7)
    number = Message.objects.resolve("orders").pk
    assert run_sql("SELECT looked, placed FROM pgqueue_place_missing(%s, 0, 9)", [number])
    assert heard.count() == 1


def test_falling_asleep_does_not_wait_for_the_disk(committed_orders):
    with transaction.atomic():
        opened = Message.objects.resolve("orders").opened
        assert "false" in opened.text("read/fall_asleep")
    assert "'synchronous_commit', 'off'" in opened.text("read/fall_asleep")
