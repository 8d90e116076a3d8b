"""Retention: what goes, what stays, and who need not wait for it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction

from django_pgqueue import ddl, queue, signals
from django_pgqueue.errors import InvalidArgument, QueueNotFound
from django_pgqueue.models import (
    ArchivedMessage,
    Lake,
    LiveMessage,
    Message,
    Process,
    PurgeMark,
    Queue,
)
from django_pgqueue.models.operations import retention
from tests.actors import Actor, begin, call, commit, execute
from tests.conftest import run_sql
from tests.waiting import until

pytestmark = pytest.mark.django_db

DAY = dt.timedelta(days=1)
NOW = dt.datetime.now(dt.timezone.utc)


def daily(name: str = "daily", retention: dt.timedelta | None = 7 * DAY, **options: Any) -> Queue:
    return Message.objects.create_queue(
        name, partition_interval=DAY, retention=retention, **options
    )


def plain(name: str = "plain", retention: dt.timedelta | None = 7 * DAY, **options: Any) -> Queue:
    return Message.objects.create_queue(name, retention=retention, **options)


def leaf(queue: Queue, days_ago: int) -> ddl.Leaf:
    """A leaf for one of the last days."""
    start = ddl.time_slices(NOW, DAY)[0][0] - days_ago * DAY
    with connection.cursor() as cursor:
        return ddl.create_slice(cursor, queue.pk, start, start + DAY, unlogged=queue.unlogged)


def leaves(queue: Queue) -> list[ddl.Leaf]:
    with connection.cursor() as cursor:
        return ddl.leaves(cursor, queue.pk)


def sent(queue: Queue, count: int, days_ago: float, **values: Any) -> list[int]:
    """Messages that were sent so many days ago."""
    when = ddl.time_slices(NOW, DAY)[0][0] - days_ago * DAY + DAY / 2
    return [
        row[0]
        for row in run_sql(
            f"INSERT INTO {queue.tables['message']} (queue_id, enqueued_at, group_key, "
            "scheduled_at, body) SELECT %s, %s, %s, %s, to_jsonb(n) FROM generate_series(1, %s) n "
            "RETURNING id",
            [queue.pk, when, values.get("group"), values.get("scheduled_at"), count],
        )
    ]


def done(queue: Queue, ids: list[int], days_ago: float) -> list[int]:
    """Messages that were archived so many days ago."""
    assert Message.objects.archive(queue, ids) == ids
    # An outcome is never changed; only a test can set the clock back.
    run_sql(
        f"UPDATE {queue.tables['archive']} SET archived_at = archived_at - %s WHERE id = ANY(%s)",
        [days_ago * DAY, ids],
    )
    return ids


def archived(queue: Queue) -> list[int]:
    return sorted(ArchivedMessage.objects.filter(queue=queue).values_list("id", flat=True))


def stored(queue: Queue) -> list[int]:
    return sorted(Message.objects.filter(queue=queue).values_list("id", flat=True))


def test_a_queue_without_retention_keeps_everything() -> None:
    queue = plain(retention=None)
    old = done(queue, sent(queue, 3, 100), 100)

    upkeep = Message.objects.maintain("plain")

    assert (upkeep.removed, upkeep.before) == (0, None)
    assert archived(queue) == stored(queue) == old


@pytest.mark.parametrize("unlogged", [False, True])
def test_old_messages_of_a_plain_queue_go_one_by_one(unlogged: bool) -> None:
    queue = plain(unlogged=unlogged)
    done(queue, sent(queue, 30, 20), 8)
    young = done(queue, sent(queue, 3, 20), 6)
    live = sent(queue, 2, 30)

    upkeep = Message.objects.maintain("plain")

    assert (upkeep.pruned, upkeep.dropped, upkeep.held) == (30, 0, 0)
    assert archived(queue) == young
    assert stored(queue) == young + live
    assert Message.objects.maintain("plain").removed == 0


def test_pruning_goes_in_batches_and_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 7)
    queue = plain()
    done(queue, sent(queue, 30, 20), 8)
    told: list[int] = []

    upkeep = Message.objects.maintain("plain", progress=told.append)

    assert upkeep.pruned == 30
    assert told == [7, 14, 21, 28, 30]


def test_pruning_that_is_interrupted_keeps_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 10)
    queue = plain()
    old = done(queue, sent(queue, 30, 20), 8)

    def stop(removed: int) -> None:
        if removed >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Message.objects.maintain("plain", progress=stop)

    assert archived(queue) == stored(queue) == old[20:]
    assert Message.objects.maintain("plain").pruned == 10


def test_pruning_finds_what_is_old_wherever_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PAGES", 2)
    monkeypatch.setattr(retention, "BATCH", 50)
    queue = plain()
    ids = sent(queue, 3000, 20)
    done(queue, ids, 0)
    old = ids[::3]
    run_sql(
        f"UPDATE {queue.tables['archive']} SET archived_at = archived_at - interval '9 days' "
        "WHERE id = ANY(%s)",
        [old],
    )

    upkeep = Message.objects.maintain("plain")

    assert upkeep.pruned == len(old)
    assert archived(queue) == stored(queue) == sorted(set(ids) - set(old))


@pytest.mark.parametrize("unlogged", [False, True])
def test_a_leaf_goes_as_a_whole_when_all_in_it_is_old(unlogged: bool) -> None:
    queue = daily(unlogged=unlogged)
    old = leaf(queue, 10)
    done(queue, sent(queue, 30, 10), 9)
    young = leaf(queue, 3)
    kept = done(queue, sent(queue, 3, 3), 2)

    upkeep = Message.objects.maintain("daily")

    assert (upkeep.leaves_dropped, upkeep.dropped, upkeep.pruned) == (1, 30, 0)
    assert old not in leaves(queue)
    assert young in leaves(queue)
    assert archived(queue) == stored(queue) == kept
    assert run_sql("SELECT to_regclass(%s), to_regclass(%s)", [old.message, old.archive]) == [
        (None, None)
    ]


def test_an_empty_leaf_goes_too() -> None:
    queue = daily()
    leaf(queue, 10)

    upkeep = Message.objects.maintain("daily")

    assert (upkeep.leaves_dropped, upkeep.dropped) == (1, 0)


def test_what_was_sent_long_ago_and_archived_lately_keeps_its_leaf() -> None:
    queue = daily()
    leaf(queue, 8)
    late, *early = sent(queue, 5, 8)
    done(queue, early, 7.5)
    done(queue, [late], 1)

    assert Message.objects.maintain("daily").removed == 0

    assert archived(queue) == [late, *early]


def test_a_leaf_that_cannot_be_dropped_for_a_whole_interval_is_pruned() -> None:
    queue = daily()
    leaf(queue, 30)
    late, *early = sent(queue, 5, 30)
    done(queue, early, 29)
    done(queue, [late], 1)

    upkeep = Message.objects.maintain("daily")

    assert (upkeep.leaves_dropped, upkeep.pruned) == (0, 4)
    assert archived(queue) == stored(queue) == [late]


def test_a_leaf_without_a_beginning_is_pruned_until_it_can_be_dropped() -> None:
    """As the first leaf of a queue that was given slices later."""
    queue = daily()
    parents = queue.tables["message"], queue.tables["archive"]
    end = ddl.time_slices(NOW, DAY)[0][0] - 3 * DAY
    for parent in parents:
        run_sql(
            f"CREATE TABLE {parent}_first PARTITION OF {parent} "
            f"FOR VALUES FROM (MINVALUE) TO ('{end.isoformat()}')"
        )
    done(queue, sent(queue, 3, 100), 90)
    young = done(queue, sent(queue, 3, 4), 3)

    assert Message.objects.maintain("daily").pruned == 3

    assert archived(queue) == young
    run_sql(f"UPDATE {parents[1]} SET archived_at = archived_at - interval '5 days'")
    Queue.objects.update(retention=2 * DAY)
    assert Message.objects.maintain("daily").leaves_dropped == 1


STATES: dict[str, Callable[[Queue], list[int]]] = {
    "ready": lambda queue: sent(queue, 1, 8),
    "scheduled": lambda queue: sent(queue, 1, 8, scheduled_at=NOW + DAY),
    "leased": lambda queue: leased(queue),
    "retried": lambda queue: retried(queue),
    "first of a group": lambda queue: sent(queue, 1, 8, group="g"),
    "behind in a group": lambda queue: behind(queue),
}


def leased(queue: Queue) -> list[int]:
    ids = sent(queue, 1, 8)
    assert [message.id for message in Message.objects.read(queue, vt=3600)] == ids
    return ids


def retried(queue: Queue) -> list[int]:
    ids = sent(queue, 1, 8)
    [message] = Message.objects.read(queue)
    Message.objects.retry(queue, {message.receipt: 3600})
    return ids


def behind(queue: Queue) -> list[int]:
    """Its head, sent yesterday, has an id from before, as a redriven message does."""
    head = sent(queue, 1, 1, group="g")
    last = sent(queue, 1, 8, group="g")
    assert [message.id for message in Message.objects.read(queue, vt=3600)] == head
    return head + last


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("unlogged", [False, True])
def test_a_leaf_with_a_message_that_lives_is_kept(state: str, unlogged: bool) -> None:
    queue = daily(unlogged=unlogged)
    kept = leaf(queue, 8)
    live = STATES[state](queue)
    old = done(queue, sent(queue, 5, 8), 7.5)

    upkeep = Message.objects.maintain("daily")

    assert (upkeep.stragglers, upkeep.leaves_dropped) == (1, 0)
    assert kept in leaves(queue)
    assert stored(queue) == sorted(live + old)
    assert sorted(LiveMessage.objects.values_list("id", flat=True)) == sorted(live)


def test_a_straggler_of_long_ago_keeps_its_leaf_and_not_its_old_neighbours() -> None:
    queue = daily()
    leaf(queue, 30)
    live = sent(queue, 1, 30)
    done(queue, sent(queue, 5, 30), 20)

    upkeep = Message.objects.maintain("daily")

    assert (upkeep.stragglers, upkeep.pruned) == (1, 5)
    assert [message.id for message in Message.objects.read("daily", qty=9)] == live
    done(queue, live, 10)
    assert Message.objects.maintain("daily").leaves_dropped == 1


def test_dead_letters_stand_in_the_leaf_of_the_day_they_died() -> None:
    dead = daily("dead")
    queue = daily("daily", dead_letter_queue=dead)
    old = leaf(queue, 30)
    leaf(dead, 30)
    ids = sent(queue, 3, 30)
    died = Message.objects.read(queue, qty=1)
    Message.objects.fail(queue, {died[0].receipt: "no such customer"})
    done(queue, ids[1:], 20)

    upkeeps = Message.objects.maintain_all()

    assert {u.queue_name: u.leaves_dropped for u in upkeeps} == {"daily": 1, "dead": 1}
    assert old not in leaves(queue)
    assert [(m.id, m.body) for m in Message.objects.read("dead", vt=0)] == [(ids[0], 1)]
    assert Message.objects.redrive("dead") == 1
    assert Message.objects.maintain("daily").removed == 0
    assert [(m.id, m.body) for m in Message.objects.read("daily")] == [(ids[0], 1)]


# What others wait for


@pytest.mark.parametrize("make", [daily, plain])
def test_what_a_lake_waits_for_is_kept(make: Callable[[], Queue]) -> None:
    queue = make()
    if queue.partition_interval:
        leaf(queue, 10)
    done(queue, sent(queue, 3, 10), 8)
    lake = Lake.objects.create(path="/lake", holds_retention=True)

    upkeep = Message.objects.maintain(queue.name)

    assert (upkeep.removed, upkeep.held) == (0, 3)
    assert not PurgeMark.objects.filter(queue=queue).exists()
    newest = ArchivedMessage.objects.order_by("-archive_xid")[0].archive_xid
    Lake.objects.filter(pk=lake.pk).update(exported_below=newest + 1)
    assert Message.objects.maintain(queue.name).removed == 3
    assert PurgeMark.objects.get(queue=queue).below_xid == newest + 1


def test_only_what_is_not_exported_is_held_in_a_leaf_that_is_pruned() -> None:
    queue = daily()
    leaf(queue, 30)
    ids = done(queue, sent(queue, 4, 30), 20)
    run_sql(
        f"UPDATE {queue.tables['archive']} SET archive_xid = 100 + id - %s WHERE id = ANY(%s)",
        [ids[0], ids],
    )
    Lake.objects.create(path="/lake", holds_retention=True, exported_below=102)

    upkeep = Message.objects.maintain("daily")

    assert (upkeep.pruned, upkeep.held) == (2, 2)
    assert archived(queue) == ids[2:]
    assert PurgeMark.objects.get(queue=queue).below_xid == 102


@contextmanager
def listening(answer: Any) -> Iterator[list[Any]]:
    asked = []

    def listen(sender: str, **kwargs: Any) -> Any:
        asked.append((sender, kwargs["before"]))
        if isinstance(answer, Exception):
            raise answer
        return answer

    signals.retention_due.connect(listen)
    yield asked
    signals.retention_due.disconnect(listen)


@pytest.mark.parametrize("answer", [False, ValueError("do not know")], ids=["no", "an error"])
def test_a_listener_can_refuse(answer: object) -> None:
    queue = plain()
    old = done(queue, sent(queue, 3, 20), 9)

    with listening(answer) as asked:
        upkeep = Message.objects.maintain("plain")

    assert [name for name, _ in asked] == ["plain"]
    assert (upkeep.refused, upkeep.removed) == (True, 0)
    assert archived(queue) == old
    assert Message.objects.maintain("plain").removed == 3


def test_a_listener_can_keep_what_was_archived_since_a_moment() -> None:
    queue = plain()
    done(queue, sent(queue, 3, 20), 12)
    kept = done(queue, sent(queue, 3, 20), 9)

    with listening(NOW - 10 * DAY):
        upkeep = Message.objects.maintain("plain")

    assert (upkeep.refused, upkeep.pruned) == (False, 3)
    assert upkeep.before == NOW - 10 * DAY
    assert archived(queue) == kept


@pytest.mark.parametrize("answer", [None, True, NOW + 100 * DAY])
def test_any_other_answer_changes_nothing(answer: object) -> None:
    queue = plain()
    done(queue, sent(queue, 3, 20), 8)
    kept = done(queue, sent(queue, 3, 20), 6)

    with listening(answer):
        Message.objects.maintain("plain")

    assert archived(queue) == kept


def test_who_listens_hears_what_was_done() -> None:
    plain()
    heard = []

    def listen(sender: str, **kwargs: Any) -> None:
        heard.append((sender, kwargs["queue"].name, kwargs["upkeep"]))

    signals.queue_maintained.connect(listen)
    upkeep = Message.objects.maintain("plain")
    signals.queue_maintained.disconnect(listen)

    assert heard == [("plain", "plain", upkeep)]
    assert upkeep.as_dict()["queue_name"] == "plain"


# Leaves ahead


@pytest.mark.parametrize("unlogged", [False, True])
def test_leaves_are_made_ahead(unlogged: bool) -> None:
    queue = daily(unlogged=unlogged)
    before = leaves(queue)
    with connection.cursor() as cursor:
        for gone in before[1:3]:
            cursor.execute(f"DROP TABLE {gone.message}, {gone.archive}")

    upkeep = Message.objects.maintain("daily")

    assert upkeep.leaves_made == 2
    assert leaves(queue) == before
    assert Message.objects.maintain("daily").leaves_made == 0


def test_no_leaf_is_made_for_a_queue_without_an_interval() -> None:
    queue = plain()

    assert Message.objects.maintain("plain").leaves_made == 0

    assert len(leaves(queue)) == 1


def test_a_send_without_a_leaf_lands_in_the_default_leaf_and_is_read_once() -> None:
    """As when nobody maintained for a week: the present span gets a leaf for its rest only."""
    queue = daily()
    forget_slices(queue)
    sent_before = queue_of(queue).send_batch([1, 2, 3])

    upkeep = Message.objects.maintain("daily")

    assert (upkeep.leaves_made, upkeep.spans_in_default) == (ddl.AHEAD + 1, 0)
    [first, second, *_] = leaves(queue)
    assert first.start is not None
    now = dt.datetime.now(dt.timezone.utc)
    assert NOW < first.start < now + dt.timedelta(minutes=5)
    assert first.end == second.start
    table = f"{queue.tables['message']}_default"
    assert run_sql(f"SELECT id FROM {table} ORDER BY id") == [(pk,) for pk in sent_before]
    read = Message.objects.read("daily", qty=10)
    assert [message.id for message in read] == sent_before
    assert Message.objects.archive("daily", read) == sent_before
    assert Message.objects.maintain("daily").leaves_made == 0


def queue_of(found: Queue) -> Any:
    return queue(found.name)


def forget_slices(queue: Queue) -> None:
    for gone in leaves(queue):
        if gone.is_slice:
            run_sql(f"DROP TABLE {gone.message}, {gone.archive}")


def test_a_span_ahead_with_messages_in_the_default_leaf_stays_there() -> None:
    queue = daily()
    forget_slices(queue)
    ahead = sent(queue, 2, -2)

    upkeep = Message.objects.maintain("daily")

    assert (upkeep.leaves_made, upkeep.spans_in_default) == (ddl.AHEAD, 1)
    assert [message.id for message in Message.objects.read("daily", qty=9)] == ahead


def test_a_default_leaf_that_takes_long_to_read_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention, "BYTES_A_SECOND", 1)
    queue = daily()
    forget_slices(queue)
    sent(queue, 2, 0)

    upkeep = Message.objects.maintain("daily")

    assert (upkeep.leaves_made, upkeep.spans_in_default) == (0, ddl.AHEAD + 1)
    assert Message.objects.maintain("daily", stall=90_000).leaves_made > 0


def test_old_messages_in_the_default_leaf_are_pruned() -> None:
    queue = daily()
    done(queue, sent(queue, 3, 100), 90)
    live = sent(queue, 1, 100)

    assert Message.objects.maintain("daily").pruned == 3

    assert stored(queue) == live


def test_leaves_fill_the_gaps_beside_leaves_of_other_lengths() -> None:
    queue = daily()
    forget_slices(queue)
    present = ddl.time_slices(NOW, DAY)[0][0]
    with connection.cursor() as cursor:
        ddl.create_slice(cursor, queue.pk, present - DAY / 2, present + DAY / 2)
        ddl.create_slice(cursor, queue.pk, present + DAY, present + 2.5 * DAY)

    Message.objects.maintain("daily")

    slices = [found for found in leaves(queue) if found.is_slice]
    assert [found.end for found in slices[:-1]] == [found.start for found in slices[1:]]
    assert slices[-1].end == present + (ddl.AHEAD + 1) * DAY


# Beside it


def test_expired_dedup_keys_are_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "KEYS", 2)
    for name in ("logged", "unlogged"):
        found = plain(name, retention=None, unlogged=name == "unlogged")
        for number in range(5):
            queue(name).send(1, dedup_key=f"k{number}")
        run_sql(
            f"UPDATE {found.tables['dedup']} SET until = now() - interval '1 s' "
            "WHERE queue_id = %s AND dedup_key <> 'k3'",
            [found.pk],
        )

        assert Message.objects.maintain(name).keys == 4

        left = f"SELECT dedup_key FROM {found.tables['dedup']} WHERE queue_id = %s"
        assert run_sql(left, [found.pk]) == [("k3",)]


def test_processes_that_are_long_gone_are_buried_and_their_leases_given_back() -> None:
    found = plain()
    dead = Process.objects.register(["plain"], version="1", using="default")
    alive = Process.objects.register(["plain"], version="1", using="default")
    pk = queue("plain").send(1)
    Message.objects.lease(found, qty=1, vt=dt.timedelta(hours=1), worker=dead.pk)
    Process.objects.filter(pk=dead.pk).update(heartbeat_at=NOW - DAY)

    Message.objects.maintain_all()

    assert list(Process.objects.all()) == [alive]
    assert [message.id for message in Message.objects.read("plain")] == [pk]


@pytest.mark.parametrize("options", [{"stall": 0}, {"stall": -1}, {"patience": -1}])
def test_impossible_waits_are_refused(options: dict[str, float]) -> None:
    plain()

    with pytest.raises(InvalidArgument):
        Message.objects.maintain("plain", **options)


def test_a_queue_that_does_not_exist_is_not_maintained() -> None:
    with pytest.raises(QueueNotFound):
        Message.objects.maintain("plain")


def test_a_retention_longer_than_history_is_no_error() -> None:
    plain()
    Queue.objects.update(retention=dt.timedelta(days=3_000_000))

    assert Message.objects.maintain("plain").before is None


def test_settings_of_the_session_stay_as_they_were() -> None:
    queue = daily()
    leaf(queue, 10)
    names = "SELECT name, setting FROM pg_settings WHERE name ~ 'timeout|enable_' ORDER BY 1"
    before = run_sql(names)

    Message.objects.maintain("daily")

    assert run_sql(names) == before


@pytest.mark.django_db(transaction=True)
def test_it_is_refused_inside_a_transaction(committed: None) -> None:
    plain()

    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"):
        Message.objects.maintain("plain")


# Beside others: each of these plays with another process


def test_a_sender_whose_transaction_is_open_holds_a_drop_up_and_nothing_else(
    actor: Actor,
) -> None:
    queue = daily()
    old = leaf(queue, 10)
    actor.do(begin)
    actor.do(call, "send", "daily", 1)

    upkeep = Message.objects.maintain("daily", patience=0.3)

    assert (upkeep.busy, upkeep.leaves_dropped) == (1, 0)
    assert old in leaves(queue)
    Message.objects.send("daily", 2)
    actor.do(commit)
    assert Message.objects.maintain("daily").leaves_dropped == 1
    assert len(Message.objects.read("daily", qty=5)) == 2


def test_an_open_reader_of_the_leaf_holds_a_drop_up_and_nobody_else(actor: Actor) -> None:
    queue = daily()
    old = leaf(queue, 10)
    actor.do(begin)
    actor.do(execute, f"SELECT count(*) FROM {old.message}")

    assert Message.objects.maintain("daily", patience=0.3).busy == 1

    pk = Message.objects.send("daily", 2)
    assert [message.id for message in Message.objects.read("daily")] == [pk]
    actor.do(commit)
    assert Message.objects.maintain("daily").leaves_dropped == 1


def test_a_leaf_is_pruned_after_an_interval_even_beside_an_open_reader(actor: Actor) -> None:
    queue = daily()
    leaf(queue, 20)
    done(queue, sent(queue, 5, 20), 15)
    actor.do(begin)
    actor.do(execute, f"SELECT count(*) FROM {queue.tables['message']}")

    upkeep = Message.objects.maintain("daily", patience=0.1)

    assert (upkeep.busy, upkeep.pruned) == (1, 5)
    assert stored(queue) == []


def between_look_and_lock(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something after the look without a lock, before the lock is taken."""
    lock = ddl.lock_slice_alone
    acted = []

    def acts_first(*args: Any) -> bool:
        if not acted:
            acted.append(act())
        return lock(*args)

    monkeypatch.setattr(ddl, "lock_slice_alone", acts_first)


def send_back_in_time(
    actor: Actor, queue: Queue, old: ddl.Leaf, table: str = "pgqueue_message"
) -> int:
    """Let another process send a message that it dates back into an old leaf; its id."""
    insert = f"INSERT INTO {table} (queue_id, enqueued_at, body) VALUES (%s, %s, '7') RETURNING id"
    [(pk,)] = actor.do(execute, insert, [queue.pk, old.start])
    return pk


def test_a_message_that_comes_between_look_and_lock_keeps_the_leaf(
    actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = daily()
    old = leaf(queue, 10)
    done(queue, sent(queue, 5, 10), 9)
    between_look_and_lock(monkeypatch, lambda: send_back_in_time(actor, queue, old))

    assert Message.objects.maintain("daily").leaves_dropped == 0

    assert [message.body for message in Message.objects.read("daily")] == [7]


def test_a_message_that_comes_and_is_archived_between_look_and_lock_keeps_the_leaf(
    actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = daily()
    old = leaf(queue, 8)
    done(queue, sent(queue, 5, 8), 7.5)

    def come_and_go() -> None:
        pk = send_back_in_time(actor, queue, old)
        assert actor.do(call, "archive", "daily", pk) == [pk]

    between_look_and_lock(monkeypatch, come_and_go)

    assert Message.objects.maintain("daily").leaves_dropped == 0

    assert len(archived(queue)) == 6


def test_a_sender_that_is_not_done_with_an_old_leaf_is_waited_for(
    actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = daily()
    old = leaf(queue, 10)

    def begin_and_send() -> None:
        actor.do(begin)
        send_back_in_time(actor, queue, old, table=old.message)

    between_look_and_lock(monkeypatch, begin_and_send)

    upkeep = Message.objects.maintain("daily", patience=0.2)

    assert (upkeep.busy, upkeep.leaves_dropped) == (1, 0)
    actor.do(commit)
    assert Message.objects.maintain("daily").stragglers == 1
    assert [message.body for message in Message.objects.read("daily")] == [7]


def test_a_lake_that_comes_between_look_and_lock_keeps_the_leaf(
    actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = daily()
    leaf(queue, 10)
    done(queue, sent(queue, 5, 10), 9)
    between_look_and_lock(
        monkeypatch,
        lambda: actor.do(
            execute,
            "INSERT INTO pgqueue_lake (path, queues, holds_retention, exported_below, system) "
            "VALUES ('/lake', '[]', true, 0, '')",
        ),
    )

    assert Message.objects.maintain("daily").leaves_dropped == 0

    assert len(archived(queue)) == 5
    Lake.objects.all().delete()


def test_two_that_maintain_at_once_do_everything_once(
    actors: Callable[[int], list[Actor]],
) -> None:
    queue = daily()
    before = leaves(queue)
    forget_slices(queue)
    for days in range(10, 20):
        leaf(queue, days)
        done(queue, sent(queue, 20, days), days - 1)
    done(queue, sent(queue, 500, 40), 30)

    rounds = [actor.start(call, "maintain", "daily", patience=20, stall=2) for actor in actors(2)]
    upkeeps = [each.result(timeout=60) for each in rounds]

    assert sum(upkeep.leaves_made for upkeep in upkeeps) == len(before) - 1
    assert leaves(queue)[1:] == before[1:]
    assert sum(upkeep.removed for upkeep in upkeeps) == 700
    assert archived(queue) == stored(queue) == []


def test_a_redrive_into_a_queue_whose_leaves_are_dropped_loses_nothing(actor: Actor) -> None:
    dead = plain("dead", retention=None)
    queue = daily("daily", dead_letter_queue=dead)
    leaf(queue, 10)
    ids = sent(queue, 200, 10)
    for message in Message.objects.read(queue, qty=200):
        Message.objects.fail(queue, {message.receipt: "no"})

    redrive = actor.start(call, "redrive", "dead", rate=400)
    dropped = 0
    while not redrive.done():
        dropped += Message.objects.maintain("daily", patience=0.2).leaves_dropped

    assert redrive.result() == 200
    dropped += Message.objects.maintain("daily").leaves_dropped
    assert dropped == 1
    assert [message.id for message in Message.objects.read("daily", qty=300)] == ids


def test_a_send_waits_no_longer_than_the_stall(
    actors: Callable[[int], list[Actor]],
) -> None:
    """An open reader keeps the lock away; whoever sends meanwhile stands behind it for a moment."""
    queue = daily()
    leaf(queue, 10)
    reader, maintainer = actors(2)
    reader.do(begin)
    reader.do(execute, f"SELECT count(*) FROM {queue.tables['message']}")
    work = maintainer.start(call, "maintain", "daily", patience=2, stall=0.05)
    longest = 0.0

    while not work.done():
        began = dt.datetime.now()
        Message.objects.send("daily", 1)
        longest = max(longest, (dt.datetime.now() - began).total_seconds())

    assert work.result().busy == 1
    assert longest < 0.5
    reader.do(commit)
    until(lambda: Message.objects.maintain("daily").leaves_dropped == 1)


def test_a_table_that_gets_partitions_while_it_is_pruned_loses_only_what_is_old() -> None:
    """Rows of different leaves may lie at the same place."""
    queue = daily()
    leaf(queue, 20)
    leaf(queue, 2)
    done(queue, sent(queue, 5, 20), 15)
    young = done(queue, sent(queue, 5, 2), 1)
    live = sent(queue, 5, 0)
    parents = ddl.Leaf(queue.tables["message"], queue.tables["archive"])
    work = retention._Work(queue, 1, 1, lambda removed: None)

    page = {"first": "(0,0)", "end": "(1024,0)", "before": NOW - 7 * DAY, "batch": 100}
    [(gone, *_)] = work._query("expire", parents, {**page, "exported_below": None})

    assert gone == 5
    assert archived(queue) == young
    assert stored(queue) == young + live


def test_it_works_where_django_uses_no_time_zones(
    committed: None, reachable: dict[str, dict[str, Any]]
) -> None:
    with Actor(reachable, USE_TZ=False) as actor:
        actor.do(call, "create_queue", "daily", partition_interval=1, retention=DAY)
        queue = Queue.objects.get(name="daily")
        forget_slices(queue)
        leaf(queue, 10)
        done(queue, sent(queue, 3, 10), 8)

        upkeep = actor.do(call, "maintain", "daily")

    assert (upkeep.leaves_made, upkeep.dropped) == (ddl.AHEAD + 1, 3)


@pytest.mark.django_db(databases=["default", "other"])
def test_a_queue_of_another_database_is_maintained_there() -> None:
    found = Message.objects.using("other").create_queue("orders", retention=3600)
    orders = queue("orders", using="other")
    orders.archive(orders.send_batch([1, 2, 3]))
    table = found.tables["archive"]
    run_sql(f"UPDATE {table} SET archived_at = archived_at - interval '1 day'", using="other")

    assert Message.objects.maintain_all() == []
    [upkeep] = Message.objects.using("other").maintain_all()

    assert (upkeep.queue_name, upkeep.pruned) == ("orders", 3)
    assert PurgeMark.objects.using("other").get().queue_id == found.pk
    assert orders.maintain().pruned == 0
