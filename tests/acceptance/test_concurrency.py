"""Many processes on one queue: no message is handled twice, lost or stuck."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

import pytest
from django.db import connection, transaction

from django_pgqueue.errors import QueueBusy, QueueNotFound
from django_pgqueue.models import LiveMessage, Message, Queue
from tests.actors import (
    Actor,
    archive_each,
    begin,
    call,
    commit,
    execute,
    rollback,
    send_each,
    until_empty,
)
from tests.conftest import run_sql
from tests.waiting import until

pytestmark = [pytest.mark.acceptance]

Actors = Callable[[int], list[Actor]]

# Seconds after which a test has hung. Tests wait for conditions, so a slow machine passes too.
PATIENCE = 60


def results(futures: list[Future[Any]]) -> list[Any]:
    _, not_done = wait(futures, timeout=PATIENCE)
    assert not not_done, "a process got stuck"
    return [future.result() for future in futures]


def waits_for_a_lock(actor_pid: int) -> bool:
    return run_sql("SELECT cardinality(pg_blocking_pids(%s)) > 0", [actor_pid]) == [(True,)]


def pid(actor: Actor) -> int:
    return actor.do(execute, "SELECT pg_backend_pid()")[0][0]


# Readers


def test_eight_readers_get_each_of_5000_messages_exactly_once(committed_orders, actors):
    sent = committed_orders.send_batch(range(5000))
    committed_orders.set_vt(sent[::10], 0)  # due again

    read = results(
        [actor.start(until_empty, "orders", qty=25, vt=PATIENCE * 10) for actor in actors(8)]
    )

    counts = Counter(pk for ids in read for pk in ids)
    assert set(counts.values()) == {1}
    assert sorted(counts) == sent
    assert set(LiveMessage.objects.values_list("read_ct", flat=True)) == {1}
    assert sum(1 for ids in read if ids) > 1, "one reader did it all"


def test_senders_and_readers_at_once_lose_nothing_and_double_nothing(committed_orders, actors):
    *senders, one, two = actors(6)
    sending = [actor.start(send_each, "orders", 100) for actor in senders]
    read: list[int] = []
    while not all(future.done() for future in sending):
        for ids in results([actor.start(until_empty, "orders", 20, 600) for actor in (one, two)]):
            read += ids
    read += one.do(until_empty, "orders", 20, 600)

    sent = [pk for ids in results(sending) for pk in ids]
    assert len(sent) == 400
    assert Counter(read) == Counter(sent)


def test_a_late_commit_with_a_lower_id_is_not_lost(committed_orders, actor):
    actor.do(begin)
    late = actor.do(call, "send", "orders", "late")
    early = committed_orders.send("early")
    assert late < early

    first = [message.id for message in committed_orders.read(qty=9)]
    actor.do(commit)
    second = [message.id for message in committed_orders.read(qty=9)]

    assert (first, second) == ([early], [late])


def test_an_expired_lease_is_read_by_another_and_the_first_holder_changes_nothing(
    committed_orders, actor
):
    pk = committed_orders.send(1)
    [mine] = committed_orders.read(vt=0.05)

    [theirs] = until(lambda: actor.do(call, "read", "orders", vt=600))

    assert (theirs.id, mine.receipt.read_ct, theirs.receipt.read_ct) == (pk, 1, 2)
    for settle in (committed_orders.archive, committed_orders.delete):
        done = settle(mine.receipt)
        assert (done, done.lost) == ([], [mine.receipt])
    assert committed_orders.set_vt(mine.receipt, 0).lost == [mine.receipt]
    assert committed_orders.metrics().in_flight == 1
    assert actor.do(call, "archive", "orders", theirs.receipt) == [pk]


def test_the_archive_of_a_lease_that_another_is_just_reading_again_is_lost(committed_orders, actor):
    committed_orders.send(1)
    [mine] = committed_orders.read(vt=0)
    actor_pid = pid(actor)

    with transaction.atomic():
        [again] = committed_orders.read(in_transaction=True)
        archiving = actor.start(call, "archive", "orders", mine.receipt)
        until(lambda: waits_for_a_lock(actor_pid))

    done = archiving.result(timeout=PATIENCE)
    assert (done, done.lost) == ([], [mine.receipt])
    assert committed_orders.archive(again) == [again.id]


@pytest.mark.parametrize("operation", ["archive", "delete"])
def test_a_bare_id_is_found_though_it_is_being_read_at_that_moment(
    committed_orders, actor, operation
):
    pk = committed_orders.send(1)
    actor_pid = pid(actor)

    with transaction.atomic():
        committed_orders.read(in_transaction=True)
        settling = actor.start(call, operation, "orders", pk)
        until(lambda: waits_for_a_lock(actor_pid))

    assert settling.result(timeout=PATIENCE) == [pk]
    assert committed_orders.metrics().length == 0


@pytest.mark.parametrize("leased", [False, True], ids=["unread", "leased"])
def test_two_processes_archive_overlapping_ids_without_a_deadlock(committed_orders, actors, leased):
    sent = committed_orders.send_batch(range(2000))
    if leased:
        committed_orders.read(qty=None)
    batches = [sent[start : start + 100] for start in range(0, len(sent), 50)]
    backwards = [list(reversed(batch)) for batch in batches]

    one, two = results(
        [
            actor.start(archive_each, "orders", each)
            for actor, each in zip(actors(2), (batches, backwards), strict=True)
        ]
    )

    assert sorted(one + two) == sent
    metrics = committed_orders.metrics()
    assert (metrics.length, metrics.archived) == (0, 2000)


# Creating and dropping queues


@pytest.mark.parametrize("options", [{}, {"partition_interval": 86400, "unlogged": True}], ids=str)
def test_eight_processes_create_one_queue_at_once(actors, options):
    made = results([actor.start(call, "create_queue", "orders", **options) for actor in actors(8)])

    assert len({queue.pk for queue in made}) == 1
    assert [queue.name for queue in Message.objects.list_queues()] == ["orders"]
    pk = Message.objects.send("orders", 1)
    assert Message.objects.read("orders")[0].id == pk
    leaves = run_sql(
        "SELECT inhrelid::regclass::text FROM pg_inherits "
        "WHERE inhparent = 'pgqueue_message'::regclass"
    )
    assert leaves.count((made[0].tables["message"],)) == 1


def test_eight_processes_create_and_drop_queues_at_once(actors):
    company = actors(8)
    for _ in range(3):
        results([a.start(call, "create_queue", f"q{n}") for n, a in enumerate(company)])
        dropped = results([a.start(call, "drop_queue", f"q{n}") for n, a in enumerate(company)])
        assert dropped == [True] * 8

    assert Message.objects.list_queues() == []


def test_a_create_waits_for_another_of_the_same_name_and_takes_over_when_that_rolls_back(actors):
    one, two = actors(2)
    two_pid = pid(two)
    one.do(begin)
    first = one.do(call, "create_queue", "orders")
    second = two.start(call, "create_queue", "orders")
    until(lambda: waits_for_a_lock(two_pid))

    one.do(rollback)

    assert second.result(timeout=PATIENCE).pk != first.pk
    assert [queue.name for queue in Message.objects.list_queues()] == ["orders"]
    assert Message.objects.send("orders", 1)


def test_creating_a_queue_does_not_wait_for_a_long_reader_of_another(committed_orders, actor):
    actor.do(begin)
    actor.do(execute, "SELECT count(*) FROM pgqueue_message")

    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '5s'")
        Message.objects.create_queue("another")
        cursor.execute("RESET lock_timeout")

    actor.do(rollback)
    assert len(Message.objects.list_queues()) == 2


# Purge


def test_a_purge_waits_for_no_open_transaction_and_says_how_many_it_deleted(
    committed_orders, actors
):
    sender, reader, due = actors(3)
    committed_orders.send_batch(range(20))
    held_again, *_ = committed_orders.read(qty=1, vt=0)
    sender.do(begin)
    unseen = sender.do(call, "send", "orders", "not committed")
    due.do(begin)
    assert due.do(call, "read", "orders", in_transaction=True)[0].id == held_again.id
    reader.do(begin)
    [held] = reader.do(call, "read", "orders", in_transaction=True)

    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '5s'")
        purged = committed_orders.purge()
        cursor.execute("RESET lock_timeout")

    assert purged == 18
    for actor in (sender, reader, due):
        actor.do(commit)
    live = set(LiveMessage.objects.values_list("pk", flat=True))
    assert live == {held.id, held_again.id, unseen}
    assert committed_orders.purge() == 3


# Drop


def test_a_drop_waits_for_a_sender_without_blocking_others(actors):
    sender, dropper = actors(2)
    for name in ("orders", "mails"):
        Message.objects.create_queue(name)
    sender.do(begin)
    sender.do(call, "send", "orders", 1)

    dropper_pid = pid(dropper)
    dropping = dropper.start(call, "drop_queue", "orders")
    until(lambda: waits_for_a_lock(dropper_pid))
    slowest = 0.0
    for n in range(30):
        started = time.monotonic()
        Message.objects.send("mails", n)
        Message.objects.archive("mails", Message.objects.read("mails"))
        slowest = max(slowest, time.monotonic() - started)
    assert not dropping.done()
    sender.do(commit)

    assert dropping.result(timeout=PATIENCE) is True
    # Each try blocks other sessions for a tenth of a second at most.
    assert slowest < 2
    with pytest.raises(QueueNotFound):
        Message.objects.send("orders", 1)
    assert Message.objects.metrics("mails").archived == 30


def test_a_drop_gives_up_after_lock_seconds_and_changes_nothing(committed_orders, actor, settings):
    settings.PGQUEUE = {"LOCK_SECONDS": 0.5}
    kept = committed_orders.send(1)
    actor.do(begin)
    also_kept = actor.do(call, "send", "orders", 2)
    [(usual,)] = run_sql("SHOW lock_timeout")

    with pytest.raises(QueueBusy, match=r"within 0\.5 seconds"):
        committed_orders.drop()

    actor.do(commit)
    assert run_sql("SHOW lock_timeout") == [(usual,)]
    assert [m.id for m in committed_orders.read(qty=9)] == [kept, also_kept]
    assert committed_orders.drop() is True


def test_a_drop_that_gives_up_leaves_the_transaction_around_it_usable(
    committed_orders, actor, settings
):
    settings.PGQUEUE = {"LOCK_SECONDS": 0.2}
    actor.do(begin)
    actor.do(call, "send", "orders", 1)

    with transaction.atomic():
        with pytest.raises(QueueBusy):
            committed_orders.drop()
        committed_orders.send(2)

    actor.do(commit)
    assert committed_orders.metrics().length == 2


def test_a_sender_that_meets_a_drop_finds_no_queue(committed_orders, actor):
    actor.do(call, "send", "orders", "remembers the queue")
    actor_pid = pid(actor)

    with transaction.atomic():
        committed_orders.drop()
        sending = actor.start(call, "send", "orders", 2)
        until(lambda: waits_for_a_lock(actor_pid))

    with pytest.raises(QueueNotFound):
        sending.result(timeout=PATIENCE)
    assert not Queue.objects.exists()
    assert LiveMessage.objects.count() == Message.objects.count() == 0


def test_a_vanished_reader_leaves_its_messages_to_others(committed_orders, reachable):
    pk = committed_orders.send(1)
    with Actor(reachable) as doomed:
        doomed.do(begin)
        assert doomed.do(call, "read", "orders", in_transaction=True)[0].id == pk
        run_sql("SELECT pg_terminate_backend(%s)", [pid(doomed)])

        [message] = until(committed_orders.read)

    assert (message.id, message.read_ct) == (pk, 1)
