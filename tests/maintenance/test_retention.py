"""Retention: what it removes, what it keeps, and which sessions never wait for it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction

from django_pgqueue import queue, signals
from django_pgqueue.engine import arguments
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.maintenance import lakes, make_partitions, retention, upkeep
from django_pgqueue.maintenance import partitions as ddl
from django_pgqueue.maintenance.partitions import (
    AHEAD,
    Partition,
    create_partition,
    time_ranges,
)
from django_pgqueue.maintenance.work import Work
from django_pgqueue.models import (
    ArchivedMessage,
    BoundQueue,
    Lake,
    LiveMessage,
    Message,
    Process,
    PurgeMark,
    Queue,
)
from tests.actors import Actor, begin, call, commit, execute
from tests.conftest import run_sql
from tests.hearing import heard, listening
from tests.leasing import lease
from tests.maintenance.partitions import partitions
from tests.waiting import until

pytestmark = pytest.mark.django_db

DAY = dt.timedelta(days=1)
NOW = dt.datetime.now(dt.timezone.utc)


def today() -> dt.datetime:
    """When the day's partition begins. Not a constant, since a run may cross midnight."""
    return time_ranges(dt.datetime.now(dt.timezone.utc), DAY)[0][0]


def daily(name: str = "daily", retention: dt.timedelta | None = 7 * DAY, **options: Any) -> Queue:
    return Message.objects.create_queue(
        name, partition_interval=DAY, retention=retention, **options
    )


def plain(name: str = "plain", retention: dt.timedelta | None = 7 * DAY, **options: Any) -> Queue:
    return Message.objects.create_queue(name, retention=retention, **options)


def partition(queue: Queue, days_ago: int) -> Partition:
    """Create a partition for a past day."""
    start = today() - days_ago * DAY
    with connection.cursor() as cursor:
        return create_partition(cursor, queue.pk, start, start + DAY, unlogged=queue.unlogged)


def sent(queue: Queue, count: int, days_ago: float, **values: Any) -> list[int]:
    """Messages sent this many days ago."""
    when = today() - days_ago * DAY + DAY / 2
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
    """Archive messages, dated this many days ago."""
    assert Message.objects.archive(queue, ids) == ids
    # Outcomes never change; only a test may date them back.
    run_sql(
        f"UPDATE {queue.tables['archive']} SET archived_at = archived_at - %s WHERE id = ANY(%s)",
        [days_ago * DAY, ids],
    )
    return ids


def archived(queue: Queue) -> list[int]:
    return sorted(ArchivedMessage.objects.filter(queue=queue).values_list("id", flat=True))


def stored(queue: Queue) -> list[int]:
    return sorted(Message.objects.filter(queue=queue).values_list("id", flat=True))


def test_a_queue_without_retention_keeps_everything():
    queue = plain(retention=None)
    old = done(queue, sent(queue, 3, 100), 100)

    maintained = BoundQueue("plain").maintain()

    assert (maintained.removed, maintained.before) == (0, None)
    assert archived(queue) == stored(queue) == old


@pytest.mark.parametrize("unlogged", [False, True])
def test_old_messages_of_a_plain_queue_go_one_by_one(unlogged):
    queue = plain(unlogged=unlogged)
    done(queue, sent(queue, 30, 20), 8)
    young = done(queue, sent(queue, 3, 20), 6)
    live = sent(queue, 2, 30)

    maintained = BoundQueue("plain").maintain()

    assert (maintained.pruned, maintained.dropped, maintained.held) == (30, 0, 0)
    assert archived(queue) == young
    assert stored(queue) == young + live
    assert BoundQueue("plain").maintain().removed == 0


def test_pruning_goes_in_batches_and_tells_how_far_it_is(monkeypatch):
    monkeypatch.setattr(retention, "BATCH", 7)
    queue = plain()
    done(queue, sent(queue, 30, 20), 8)
    told: list[int] = []

    maintained = BoundQueue("plain").maintain(progress=told.append)

    assert maintained.pruned == 30
    assert told == [7, 14, 21, 28, 30]


def test_pruning_that_is_interrupted_keeps_what_it_did(monkeypatch):
    monkeypatch.setattr(retention, "BATCH", 10)
    queue = plain()
    old = done(queue, sent(queue, 30, 20), 8)

    def stop(removed: int) -> None:
        if removed >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        BoundQueue("plain").maintain(progress=stop)

    assert archived(queue) == stored(queue) == old[20:]
    assert BoundQueue("plain").maintain().pruned == 10


def test_pruning_finds_what_is_old_wherever_it_lies(monkeypatch):
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

    maintained = BoundQueue("plain").maintain()

    assert maintained.pruned == len(old)
    assert archived(queue) == stored(queue) == sorted(set(ids) - set(old))


@pytest.mark.parametrize("unlogged", [False, True])
def test_a_partition_goes_as_a_whole_when_all_in_it_is_old(unlogged):
    queue = daily(unlogged=unlogged)
    old = partition(queue, 10)
    done(queue, sent(queue, 30, 10), 9)
    young = partition(queue, 3)
    kept = done(queue, sent(queue, 3, 3), 2)

    maintained = BoundQueue("daily").maintain()

    assert (maintained.partitions_dropped, maintained.dropped, maintained.pruned) == (1, 30, 0)
    assert old not in partitions(queue)
    assert young in partitions(queue)
    assert archived(queue) == stored(queue) == kept
    assert run_sql("SELECT to_regclass(%s), to_regclass(%s)", [old.message, old.archive]) == [
        (None, None)
    ]


def test_an_empty_partition_goes_too():
    queue = daily()
    partition(queue, 10)

    maintained = BoundQueue("daily").maintain()

    assert (maintained.partitions_dropped, maintained.dropped) == (1, 0)


def test_what_was_sent_long_ago_and_archived_lately_keeps_its_partition():
    queue = daily()
    partition(queue, 8)
    late, *early = sent(queue, 5, 8)
    done(queue, early, 7.5)
    done(queue, [late], 1)

    assert BoundQueue("daily").maintain().removed == 0

    assert archived(queue) == [late, *early]


def test_a_partition_that_cannot_be_dropped_for_a_whole_interval_is_pruned():
    queue = daily()
    partition(queue, 30)
    late, *early = sent(queue, 5, 30)
    done(queue, early, 29)
    done(queue, [late], 1)

    maintained = BoundQueue("daily").maintain()

    assert (maintained.partitions_dropped, maintained.pruned) == (0, 4)
    assert archived(queue) == stored(queue) == [late]


def test_a_partition_without_a_beginning_is_pruned_until_it_can_be_dropped():
    """The first partition of a queue that was partitioned later."""
    queue = daily()
    parents = queue.tables["message"], queue.tables["archive"]
    end = today() - 3 * DAY
    for parent in parents:
        run_sql(
            f"CREATE TABLE {parent}_first PARTITION OF {parent} "
            f"FOR VALUES FROM (MINVALUE) TO ('{end.isoformat()}')"
        )
    done(queue, sent(queue, 3, 100), 90)
    young = done(queue, sent(queue, 3, 4), 3)

    assert BoundQueue("daily").maintain().pruned == 3

    assert archived(queue) == young
    run_sql(f"UPDATE {parents[1]} SET archived_at = archived_at - interval '5 days'")
    Queue.objects.update(retention=2 * DAY)
    assert BoundQueue("daily").maintain().partitions_dropped == 1


STATES: dict[str, Callable[[Queue], list[int]]] = {
    "ready": lambda queue: sent(queue, 1, 8),
    "scheduled": lambda queue: sent(queue, 1, 8, scheduled_at=NOW + DAY),
    "leased": lambda queue: leased(queue),
    "retried": lambda queue: retried(queue),
    "first of a group": lambda queue: sent(queue, 1, 8, group="g"),
    "head of a group": lambda queue: head(queue),
    "behind in a group": lambda queue: behind(queue),
}


def leased(queue: Queue) -> list[int]:
    ids = sent(queue, 1, 8)
    assert [message.id for message in Message.objects.read(queue, vt=3600)] == ids
    return ids


def retried(queue: Queue) -> list[int]:
    ids = sent(queue, 1, 8)
    [message] = Message.objects.read(queue)
    BoundQueue(queue).retry({message.receipt: 3600})
    return ids


def head(queue: Queue) -> list[int]:
    """A head that is ready: its turn is higher than all ids."""
    ids = sent(queue, 1, 8, group="g")
    assert Message.objects.read(queue, conditional={"none": 1}) == []
    assert run_sql("SELECT id FROM pgqueue_ready WHERE turn > id << 20") == [(ids[0],)]
    return ids


def behind(queue: Queue) -> list[int]:
    """The head, sent yesterday, has a lower id, like a redriven message."""
    head = sent(queue, 1, 1, group="g")
    last = sent(queue, 1, 8, group="g")
    assert [message.id for message in Message.objects.read(queue, vt=3600)] == head
    return head + last


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("unlogged", [False, True])
def test_a_partition_with_a_message_that_lives_is_kept(state, unlogged):
    queue = daily(unlogged=unlogged)
    kept = partition(queue, 8)
    old = done(queue, sent(queue, 5, 8), 7.5)
    live = STATES[state](queue)

    maintained = BoundQueue("daily").maintain()

    assert (maintained.stragglers, maintained.partitions_dropped) == (1, 0)
    assert kept in partitions(queue)
    assert stored(queue) == sorted(live + old)
    assert sorted(LiveMessage.objects.values_list("id", flat=True)) == sorted(live)


def test_a_straggler_of_long_ago_keeps_its_partition_and_not_its_old_neighbours():
    queue = daily()
    partition(queue, 30)
    live = sent(queue, 1, 30)
    done(queue, sent(queue, 5, 30), 20)

    maintained = BoundQueue("daily").maintain()

    assert (maintained.stragglers, maintained.pruned) == (1, 5)
    assert [message.id for message in Message.objects.read("daily", qty=9)] == live
    done(queue, live, 10)
    assert BoundQueue("daily").maintain().partitions_dropped == 1


def test_dead_letters_stand_in_the_partition_of_the_day_they_died():
    dead = daily("dead")
    queue = daily("daily", dead_letter_queue=dead)
    old = partition(queue, 30)
    partition(dead, 30)
    ids = sent(queue, 3, 30)
    died = Message.objects.read(queue, qty=1)
    BoundQueue(queue).fail({died[0].receipt: "no such customer"})
    done(queue, ids[1:], 20)

    rounds = Message.objects.maintain_all()

    assert {u.queue_name: u.partitions_dropped for u in rounds} == {"daily": 1, "dead": 1}
    assert old not in partitions(queue)
    assert [(m.id, m.body) for m in Message.objects.read("dead", vt=0)] == [(ids[0], 1)]
    assert BoundQueue("dead").redrive() == 1
    assert BoundQueue("daily").maintain().removed == 0
    assert [(m.id, m.body) for m in Message.objects.read("daily")] == [(ids[0], 1)]


# Waits of other sessions


def published_lake(path: str = "/lake", **values: Any) -> Lake:
    """A lake of this server, unless ``system`` names another, with everything exported now."""
    [(system,)] = run_sql("SELECT system_identifier::text FROM pg_control_system()")
    return Lake.objects.create(path=path, **{"system": system, "exported_at": NOW, **values})


def archived_long_ago(queue: Queue) -> list[int]:
    """Outcomes in transactions below 1000, as on a restored server."""
    if queue.partition_interval:
        partition(queue, 10)
    ids = done(queue, sent(queue, 3, 10), 8)
    run_sql(f"UPDATE {queue.tables['archive']} SET archive_xid = 900")
    return ids


@pytest.mark.parametrize("make", [daily, plain])
def test_what_a_lake_waits_for_is_kept(make):
    queue = make()
    if queue.partition_interval:
        partition(queue, 10)
    done(queue, sent(queue, 3, 10), 8)
    lake = published_lake(holds_retention=True)

    maintained = BoundQueue(queue.name).maintain()

    assert (maintained.removed, maintained.held) == (0, 3)
    assert not PurgeMark.objects.filter(queue=queue).exists()
    newest = ArchivedMessage.objects.order_by("-archive_xid")[0].archive_xid
    Lake.objects.filter(pk=lake.pk).update(exported_below=newest + 1)
    assert BoundQueue(queue.name).maintain().removed == 3
    assert PurgeMark.objects.get(queue=queue).below_xid == newest + 1


@pytest.mark.parametrize("make", [daily, plain])
def test_a_lake_of_another_server_holds_everything(make):
    """After a restore elsewhere: the lake's mark is a transaction of the old server."""
    queue = make()
    ids = archived_long_ago(queue)
    published_lake("/old", holds_retention=True, exported_below=1000, system="7000")
    published_lake("/new", holds_retention=True, exported_below=901)

    maintained = BoundQueue(queue.name).maintain()

    assert maintained.foreign_lakes == ("/old",)
    assert (maintained.removed, maintained.partitions_dropped) == (0, 0)
    assert archived(queue) == stored(queue) == ids
    Lake.objects.filter(path="/old").update(holds_retention=False)
    maintained = BoundQueue(queue.name).maintain()
    assert (maintained.removed, maintained.foreign_lakes) == (3, ())


def test_a_lake_of_another_server_is_told_of_once(caplog):
    archived_long_ago(plain("told"))
    published_lake("/told", holds_retention=True, exported_below=1000, system="7000")

    for _ in range(3):
        BoundQueue("told").maintain()

    [record] = [record for record in caplog.records if "/told" in record.message]
    assert "lakes from another server hold it: /told." in record.message
    assert "--hold-retention" in record.message
    assert record.lakes == ["/told"]


def test_a_lake_whose_first_export_failed_holds_nothing_and_one_that_runs_does(actor):
    work = Work(plain(), 1, 1, lambda removed: None)
    published_lake(holds_retention=True, exported_at=None)
    assert lakes.exported_below(work) is None

    lock = "SELECT {}(hashtext('pgqueue export'), hashtext('/lake'))"
    actor.do(execute, lock.format("pg_try_advisory_lock"))

    assert lakes.exported_below(work) == 0
    actor.do(execute, lock.format("pg_advisory_unlock"))
    assert lakes.exported_below(work) is None


def test_the_slowest_of_the_lakes_that_take_a_queue_counts():
    queue = plain("orders")
    work = Work(queue, 1, 1, lambda removed: None)
    published_lake("/free", holds_retention=False, exported_below=0)
    assert lakes.exported_below(work) is None

    published_lake("/slow", holds_retention=True, exported_below=10, queues=["Orders"])
    published_lake("/fast", holds_retention=True, exported_below=20)
    published_lake("/other", holds_retention=True, exported_below=1, queues=["mails"])

    assert lakes.exported_below(work) == 10


def test_a_purge_mark_never_falls():
    work = Work(plain(), 1, 1, lambda removed: None)

    for last in (6, 4, None):
        lakes.note_removal(work, last)

    assert PurgeMark.objects.get().below_xid == 7


def test_only_what_is_not_exported_is_held_in_a_partition_that_is_pruned():
    queue = daily()
    partition(queue, 30)
    ids = done(queue, sent(queue, 4, 30), 20)
    run_sql(
        f"UPDATE {queue.tables['archive']} SET archive_xid = 100 + id - %s WHERE id = ANY(%s)",
        [ids[0], ids],
    )
    published_lake(holds_retention=True, exported_below=102)

    maintained = BoundQueue("daily").maintain()

    assert (maintained.pruned, maintained.held) == (2, 2)
    assert archived(queue) == ids[2:]
    assert PurgeMark.objects.get(queue=queue).below_xid == 102


@contextmanager
def answering(answer: Any) -> Iterator[list[str]]:
    """Answer retention_due; yields the names of the queues that were asked for."""
    asked: list[str] = []

    def listen(sender: str, **kwargs: Any) -> Any:
        asked.append(sender)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with listening(signals.retention_due, listen):
        yield asked


@pytest.mark.parametrize("answer", [False, ValueError("do not know")], ids=["no", "an error"])
def test_a_listener_can_refuse(answer):
    queue = plain()
    old = done(queue, sent(queue, 3, 20), 9)

    with answering(answer) as asked:
        maintained = BoundQueue("plain").maintain()

    assert asked == ["plain"]
    assert (maintained.refused, maintained.removed) == (True, 0)
    assert archived(queue) == old
    assert BoundQueue("plain").maintain().removed == 3


def test_a_listener_can_keep_what_was_archived_since_a_moment():
    queue = plain()
    done(queue, sent(queue, 3, 20), 12)
    kept = done(queue, sent(queue, 3, 20), 9)

    with answering(NOW - 10 * DAY):
        maintained = BoundQueue("plain").maintain()

    assert (maintained.refused, maintained.pruned) == (False, 3)
    assert maintained.before == NOW - 10 * DAY
    assert archived(queue) == kept


@pytest.mark.parametrize("answer", [None, True, NOW + 100 * DAY])
def test_any_other_answer_changes_nothing(answer):
    queue = plain()
    done(queue, sent(queue, 3, 20), 8)
    kept = done(queue, sent(queue, 3, 20), 6)

    with answering(answer):
        BoundQueue("plain").maintain()

    assert archived(queue) == kept


def test_who_listens_hears_what_was_done():
    queue = plain()

    with heard(signals.queue_maintained) as told:
        maintained = BoundQueue("plain").maintain()

    [each] = told
    assert (each["sender"], each["queue"], each["maintained"]) == ("plain", queue, maintained)
    assert maintained.as_dict()["queue_name"] == "plain"


# Partitions ahead


@pytest.mark.parametrize("unlogged", [False, True])
def test_partitions_are_made_ahead(unlogged):
    queue = daily(unlogged=unlogged)
    before = partitions(queue)
    with connection.cursor() as cursor:
        for gone in before[1:3]:
            cursor.execute(f"DROP TABLE {gone.message}, {gone.archive}")

    maintained = BoundQueue("daily").maintain()

    assert maintained.partitions_made == 2
    assert partitions(queue) == before
    assert BoundQueue("daily").maintain().partitions_made == 0


def test_no_partition_is_made_for_a_queue_without_an_interval():
    queue = plain()

    assert BoundQueue("plain").maintain().partitions_made == 0

    assert len(partitions(queue)) == 1


def test_a_send_without_a_partition_lands_in_the_default_partition_and_is_read_once():
    """As after a week without maintenance: the new partition covers the rest of its range."""
    queue = daily()
    drop_all_partitions(queue)
    sent_before = BoundQueue("daily").send_batch([1, 2, 3])

    maintained = BoundQueue("daily").maintain()

    assert (maintained.partitions_made, maintained.stay_in_default) == (AHEAD + 1, 0)
    [first, second, *_] = partitions(queue)
    assert first.start is not None
    now = dt.datetime.now(dt.timezone.utc)
    assert NOW < first.start < now + dt.timedelta(minutes=5)
    assert first.end == second.start
    table = f"{queue.tables['message']}_default"
    assert run_sql(f"SELECT id FROM {table} ORDER BY id") == [(pk,) for pk in sent_before]
    read = Message.objects.read("daily", qty=10)
    assert [message.id for message in read] == sent_before
    assert Message.objects.archive("daily", read) == sent_before
    assert BoundQueue("daily").maintain().partitions_made == 0


def drop_all_partitions(queue: Queue) -> None:
    for gone in partitions(queue):
        if gone.has_range:
            run_sql(f"DROP TABLE {gone.message}, {gone.archive}")


def test_a_range_ahead_with_messages_in_the_default_partition_stays_there():
    queue = daily()
    drop_all_partitions(queue)
    ahead = sent(queue, 2, -2)

    maintained = BoundQueue("daily").maintain()

    assert (maintained.partitions_made, maintained.stay_in_default) == (AHEAD, 1)
    assert [message.id for message in Message.objects.read("daily", qty=9)] == ahead


def test_a_default_partition_that_takes_long_to_read_is_left_alone(monkeypatch):
    monkeypatch.setattr(make_partitions, "BYTES_A_SECOND", 1)
    queue = daily()
    drop_all_partitions(queue)
    sent(queue, 2, 0)

    maintained = BoundQueue("daily").maintain()

    assert (maintained.partitions_made, maintained.stay_in_default) == (0, AHEAD + 1)
    assert BoundQueue("daily").maintain(stall=90_000).partitions_made > 0


def test_old_messages_in_the_default_partition_are_pruned():
    queue = daily()
    done(queue, sent(queue, 3, 100), 90)
    live = sent(queue, 1, 100)

    assert BoundQueue("daily").maintain().pruned == 3

    assert stored(queue) == live


def test_partitions_fill_the_gaps_beside_partitions_of_other_lengths():
    queue = daily()
    drop_all_partitions(queue)
    present = today()
    with connection.cursor() as cursor:
        create_partition(cursor, queue.pk, present - DAY / 2, present + DAY / 2)
        create_partition(cursor, queue.pk, present + DAY, present + 2.5 * DAY)

    BoundQueue("daily").maintain()

    timed = [found for found in partitions(queue) if found.has_range]
    assert [found.end for found in timed[:-1]] == [found.start for found in timed[1:]]
    assert timed[-1].end == present + (AHEAD + 1) * DAY


# Beside it


@pytest.mark.parametrize("until", [None, "started", "done"])
def test_unique_keys_that_no_message_holds_are_swept(monkeypatch, until):
    monkeypatch.setattr(upkeep, "SWEPT", 2)
    plain(retention=None)
    for number in range(5):
        queue("plain").send(1, unique=f"k{number}", until=until)
    queue("plain").archive(queue("plain").read(qty=4))
    assert BoundQueue("plain").maintain().keys == 0
    run_sql("UPDATE pgqueue_claim SET until = now() - interval '1 s' WHERE unique_key <> 'k4'")

    assert BoundQueue("plain").maintain().keys == 4

    assert run_sql("SELECT unique_key FROM pgqueue_claim") == [("k4",)]


def test_a_key_that_is_held_is_looked_at_again_when_it_is_twice_as_old():
    plain(retention=None)
    queue("plain").send(1, unique="k", until="done")
    run_sql("UPDATE pgqueue_claim SET first_at = now() - interval '1 h', until = now()")

    assert BoundQueue("plain").maintain().keys == 0

    [(hours,)] = run_sql("SELECT extract(epoch FROM until - first_at) / 3600 FROM pgqueue_claim")
    assert round(hours) == 2


def test_processes_without_a_heartbeat_are_reaped_and_their_leases_given_back():
    found = plain()
    dead = Process.objects.register(["plain"], version="1", using="default")
    alive = Process.objects.register(["plain"], version="1", using="default")
    pk = queue("plain").send(1)
    lease(found, qty=1, vt=dt.timedelta(hours=1), process_id=dead.pk)
    Process.objects.filter(pk=dead.pk).update(heartbeat_at=NOW - DAY)

    Message.objects.maintain_all()

    assert list(Process.objects.all()) == [alive]
    assert [message.id for message in Message.objects.read("plain")] == [pk]


@pytest.mark.parametrize("options", [{"stall": 0}, {"stall": -1}, {"patience": -1}])
def test_impossible_waits_are_refused(options):
    plain()

    with pytest.raises(InvalidArgument):
        BoundQueue("plain").maintain(**options)


def test_the_longest_retention_is_no_error():
    plain()
    Queue.objects.update(retention=arguments.LONGEST)

    done = BoundQueue("plain").maintain()

    assert done.before is not None
    assert done.before.year < 1900
    assert done.removed == 0


def test_settings_of_the_session_stay_as_they_were():
    queue = daily()
    partition(queue, 10)
    names = "SELECT name, setting FROM pg_settings WHERE name ~ 'timeout|enable_' ORDER BY 1"
    before = run_sql(names)

    BoundQueue("daily").maintain()

    assert run_sql(names) == before


@pytest.mark.django_db(transaction=True)
def test_it_is_refused_inside_a_transaction(committed):
    plain()

    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"):
        BoundQueue("plain").maintain()


# Concurrent sessions: each test uses another process


def test_a_sender_whose_transaction_is_open_holds_a_drop_up_and_nothing_else(actor):
    queue = daily()
    old = partition(queue, 10)
    actor.do(begin)
    actor.do(call, "send", "daily", 1)

    maintained = BoundQueue("daily").maintain(patience=0.3)

    assert (maintained.busy, maintained.partitions_dropped) == (1, 0)
    assert old in partitions(queue)
    Message.objects.send("daily", 2)
    actor.do(commit)
    assert BoundQueue("daily").maintain().partitions_dropped == 1
    assert len(Message.objects.read("daily", qty=5)) == 2


def test_an_open_reader_of_the_partition_holds_a_drop_up_and_nothing_else(actor):
    queue = daily()
    old = partition(queue, 10)
    actor.do(begin)
    actor.do(execute, f"SELECT count(*) FROM {old.message}")

    assert BoundQueue("daily").maintain(patience=0.3).busy == 1

    pk = Message.objects.send("daily", 2)
    assert [message.id for message in Message.objects.read("daily")] == [pk]
    actor.do(commit)
    assert BoundQueue("daily").maintain().partitions_dropped == 1


def test_a_partition_is_pruned_after_an_interval_even_beside_an_open_reader(actor):
    queue = daily()
    partition(queue, 20)
    done(queue, sent(queue, 5, 20), 15)
    actor.do(begin)
    actor.do(execute, f"SELECT count(*) FROM {queue.tables['message']}")

    maintained = BoundQueue("daily").maintain(patience=0.1)

    assert (maintained.busy, maintained.pruned) == (1, 5)
    assert stored(queue) == []


def between_look_and_lock(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something between the unlocked check and the lock."""
    lock = ddl.lock_for_drop
    acted = []

    def acts_first(*args: Any) -> bool:
        if not acted:
            acted.append(act())
        return lock(*args)

    monkeypatch.setattr(ddl, "lock_for_drop", acts_first)


def send_back_in_time(
    actor: Actor, queue: Queue, old: Partition, table: str = "pgqueue_message"
) -> int:
    """Let another process send a message dated into an old partition; returns its id."""
    insert = f"INSERT INTO {table} (queue_id, enqueued_at, body) VALUES (%s, %s, '7') RETURNING id"
    [(pk,)] = actor.do(execute, insert, [queue.pk, old.start])
    return pk


def test_a_message_that_comes_between_look_and_lock_keeps_the_partition(actor, monkeypatch):
    queue = daily()
    old = partition(queue, 10)
    done(queue, sent(queue, 5, 10), 9)
    between_look_and_lock(monkeypatch, lambda: send_back_in_time(actor, queue, old))

    assert BoundQueue("daily").maintain().partitions_dropped == 0

    assert [message.body for message in Message.objects.read("daily")] == [7]


def test_a_message_that_comes_and_is_archived_between_look_and_lock_keeps_the_partition(
    actor, monkeypatch
):
    queue = daily()
    old = partition(queue, 8)
    done(queue, sent(queue, 5, 8), 7.5)

    def come_and_go() -> None:
        pk = send_back_in_time(actor, queue, old)
        assert actor.do(call, "archive", "daily", pk) == [pk]

    between_look_and_lock(monkeypatch, come_and_go)

    assert BoundQueue("daily").maintain().partitions_dropped == 0

    assert len(archived(queue)) == 6


def test_a_sender_that_is_not_done_with_an_old_partition_is_waited_for(actor, monkeypatch):
    queue = daily()
    old = partition(queue, 10)

    def begin_and_send() -> None:
        actor.do(begin)
        send_back_in_time(actor, queue, old, table=old.message)

    between_look_and_lock(monkeypatch, begin_and_send)

    maintained = BoundQueue("daily").maintain(patience=0.2)

    assert (maintained.busy, maintained.partitions_dropped) == (1, 0)
    actor.do(commit)
    assert BoundQueue("daily").maintain().stragglers == 1
    assert [message.body for message in Message.objects.read("daily")] == [7]


def test_a_lake_that_comes_between_look_and_lock_keeps_the_partition(actor, monkeypatch):
    queue = daily()
    partition(queue, 10)
    done(queue, sent(queue, 5, 10), 9)
    between_look_and_lock(
        monkeypatch,
        lambda: actor.do(
            execute,
            "INSERT INTO pgqueue_lake "
            "(path, queues, holds_retention, exported_below, exported_at, system, iceberg, "
            "body_schemas) VALUES ('/lake', '[]', true, 0, now(), '', '', '{}')",
        ),
    )

    assert BoundQueue("daily").maintain().partitions_dropped == 0

    assert len(archived(queue)) == 5
    Lake.objects.all().delete()


def test_two_that_maintain_at_once_do_everything_once(actors):
    queue = daily()
    before = partitions(queue)
    drop_all_partitions(queue)
    for days in range(10, 20):
        partition(queue, days)
        done(queue, sent(queue, 20, days), days - 1)
    done(queue, sent(queue, 500, 40), 30)

    rounds = [actor.start(call, "maintain", "daily", patience=20, stall=2) for actor in actors(2)]
    rounds = [each.result(timeout=60) for each in rounds]

    assert sum(maintained.partitions_made for maintained in rounds) == len(before) - 1
    assert partitions(queue)[1:] == before[1:]
    assert sum(maintained.removed for maintained in rounds) == 700
    assert archived(queue) == stored(queue) == []


def test_a_redrive_into_a_queue_whose_partitions_are_dropped_loses_nothing(actor):
    dead = plain("dead", retention=None)
    queue = daily("daily", dead_letter_queue=dead)
    partition(queue, 10)
    ids = sent(queue, 200, 10)
    for message in Message.objects.read(queue, qty=200):
        BoundQueue(queue).fail({message.receipt: "no"})

    redrive = actor.start(call, "redrive", "dead", rate=400)
    dropped = 0
    while not redrive.done():
        dropped += BoundQueue("daily").maintain(patience=0.2).partitions_dropped

    assert redrive.result() == 200
    dropped += BoundQueue("daily").maintain().partitions_dropped
    assert dropped == 1
    assert [message.id for message in Message.objects.read("daily", qty=300)] == ids


def test_a_send_waits_no_longer_than_the_stall(actors):
    """An open reader blocks the lock; a sender waits briefly behind the attempt."""
    queue = daily()
    partition(queue, 10)
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
    until(lambda: BoundQueue("daily").maintain().partitions_dropped == 1)


def test_a_table_that_gets_partitions_while_it_is_pruned_loses_only_what_is_old():
    """Rows of different partitions may have the same ctid."""
    queue = daily()
    partition(queue, 20)
    partition(queue, 2)
    done(queue, sent(queue, 5, 20), 15)
    young = done(queue, sent(queue, 5, 2), 1)
    live = sent(queue, 5, 0)
    parents = Partition(queue.tables["message"], queue.tables["archive"])
    work = Work(queue, 1, 1, lambda removed: None)

    page = {"first": "(0,0)", "end": "(1024,0)", "before": NOW - 7 * DAY, "batch": 100}
    [(gone, *_)] = work.fetch("expire", {**page, "exported_below": None}, parents)

    assert gone == 5
    assert archived(queue) == young
    assert stored(queue) == young + live


def test_it_works_where_django_uses_no_time_zones(committed, reachable):
    with Actor(reachable, USE_TZ=False) as actor:
        actor.do(call, "create_queue", "daily", partition_interval=1, retention=DAY)
        queue = Queue.objects.get(name="daily")
        drop_all_partitions(queue)
        partition(queue, 10)
        done(queue, sent(queue, 3, 10), 8)

        maintained = actor.do(call, "maintain", "daily")

    assert (maintained.partitions_made, maintained.dropped) == (AHEAD + 1, 3)


@pytest.mark.django_db(databases=["default", "other"])
def test_a_queue_of_another_database_is_maintained_there():
    found = Message.objects.using("other").create_queue("orders", retention=3600)
    orders = queue("orders", using="other")
    orders.archive(orders.send_batch([1, 2, 3]))
    table = found.tables["archive"]
    run_sql(f"UPDATE {table} SET archived_at = archived_at - interval '1 day'", using="other")

    assert Message.objects.maintain_all() == []
    [maintained] = Message.objects.using("other").maintain_all()

    assert (maintained.queue_name, maintained.pruned) == ("orders", 3)
    assert PurgeMark.objects.using("other").get().queue_id == found.pk
    assert orders.maintain().pruned == 0
