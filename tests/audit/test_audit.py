"""The audit log has each operation once, with who, from where and how many."""

from __future__ import annotations

import datetime as dt
import getpass
import socket
from typing import Any

import pytest
from django.core.management import call_command
from django.db import transaction

from django_pgqueue import queue
from django_pgqueue.audit import acting_as
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.models import AuditEntry, BulkAction, Lake, Message, Queue, Schedule
from django_pgqueue.queues.bulk import Kind
from tests.conftest import rolled_back, run_sql
from tests.pgmq.conftest import call


def entries() -> list[tuple[str, str, dict[str, Any], int | None]]:
    """What was done, and delete it."""
    rows = AuditEntry.objects.order_by("pk")
    found = [(each.operation, each.queue_name, each.arguments, each.count) for each in rows]
    run_sql("DELETE FROM pgqueue_audit")
    return found


@pytest.fixture
def log(orders: Any, dead_letters: Any) -> Any:
    """The log is empty; the queue orders has the dead-letter queue dead."""
    entries()
    return orders


def test_each_operation_on_messages_is_recorded_with_their_number(log, dead_letters):
    log.send_batch(range(3))
    dead = log.read(qty=2)
    log.fail({message.receipt: "no" for message in dead})
    assert entries() == []  # consumers and senders are not recorded

    dead_letters.redrive(ids=[dead[0].pk], to="orders")
    log.archive(log.read(qty=2))
    log.replay(state="COMPLETED")
    log.purge()
    log.purge()  # nothing is left
    Message.objects.filter(queue__name="orders").delete()

    assert entries() == [
        ("redrive", "dead", {"ids": [dead[0].pk], "to": "orders"}, 1),
        ("replay", "orders", {"state": "COMPLETED"}, 2),
        ("purge", "orders", {}, 2),
        ("discard", "orders", {"ids": [dead[0].pk, dead[1].pk + 1]}, 2),
    ]


def test_each_setting_is_recorded_with_its_old_value(log):
    log.alter(limit=5, retention=dt.timedelta(days=1), paused=True)
    log.alter(limit=5)  # changes nothing
    Queue.objects.filter(name="orders").update(paused=False)
    customer = log.group("c12")
    customer.pause()
    customer.limit(3)
    customer.limit(3)  # changes nothing
    customer.resume()
    customer.reset()
    Message.objects.bind("a.*", "orders")
    Message.objects.unbind("a.*", "orders")

    assert entries() == [
        (
            "alter",
            "orders",
            {"limit": [None, 5], "paused": [False, True], "retention": [None, "1 day"]},
            None,
        ),
        ("resume", "orders", {}, None),
        ("pause", "orders", {"group": "c12"}, None),
        ("alter", "orders", {"group": "c12", "limit": [None, 3]}, None),
        ("resume", "orders", {"group": "c12"}, None),
        ("reset", "orders", {"group": "c12", "limit": [3, None]}, None),
        ("create", "orders", {"topic": "a.*"}, None),
        ("drop", "orders", {"topic": "a.*"}, None),
    ]


def test_a_queue_is_made_and_dropped_with_what_it_held(log):
    mails = queue("mails")
    mails.create(dead_letter_queue="dead", limit=7)
    mails.send_batch(range(20))
    mails.read(qty=16)
    mails.group("a").pause()
    mails.group("b").pause()
    entries_before_drop = entries()
    mails.drop()

    [(operation, name, given, count), *_] = entries_before_drop
    assert (operation, name, count) == ("create", "mails", None)
    assert (given["dead_letter_queue"], given["limit"]) == ("dead", 7)
    assert entries() == [("reset", "mails", {"groups": 2}, None), ("drop", "mails", {}, 20)]


def test_one_save_of_a_groups_settings_is_one_entry_with_all_that_changed(log):
    log.alter(group_rate="100/s")
    customer = log.group("c12")
    entries()

    customer.limits(limit=3, rate="5/s")
    customer.limits(limit=4, rate="5/s")
    setting = customer.settings()
    setting.paused, setting.rate, setting.limit, setting.burst = True, "6/s", None, 2
    setting.save()
    customer.limits()
    customer.resume()

    assert entries() == [
        ("alter", "orders", {"group": "c12", "limit": [None, 3], "rate": [None, "5/s"]}, None),
        ("alter", "orders", {"group": "c12", "limit": [3, 4]}, None),
        (
            "alter",
            "orders",
            {
                "group": "c12",
                "paused": [False, True],
                "limit": [4, None],
                "rate": ["5/s", "6/s"],
                "burst": [None, 2],
            },
            None,
        ),
        (
            "alter",
            "orders",
            {"group": "c12", "rate": ["6/s", None], "burst": [2, None]},
            None,
        ),
        ("reset", "orders", {"group": "c12", "paused": [True, False]}, None),
    ]


def test_the_drop_of_a_large_queue_has_an_estimate_and_says_so(committed):
    mails = queue("mails")
    mails.create()
    mails.send_batch([1] * 12_000)
    mails.read(qty=1)
    pk = Queue.objects.get(name="mails").pk
    run_sql("SELECT pg_stat_force_next_flush()")
    run_sql("SELECT pg_stat_clear_snapshot()")
    mails.drop()

    [dropped] = AuditEntry.objects.filter(operation="drop", queue_name="mails")
    assert (dropped.queue_id, dropped.arguments) == (pk, {"estimate": True})
    assert 10_000 < dropped.count <= 12_000


def test_pgmqs_functions_are_recorded_with_what_they_removed(log):
    call_command("pgqueue_pgmq", "install", verbosity=0)
    log.send_batch(range(3))
    call("create('mails')")
    with transaction.atomic():
        actor = '{"who": "ann", "place": "sql", "program": "runbook 7"}'
        run_sql("SELECT set_config('pgqueue.actor', %s, true)", [actor])
        call("purge_queue('orders')")
        call("purge_queue('orders')")  # nothing is left
    call("send('mails', '1')")
    who = list(AuditEntry.objects.order_by("pk").values_list("who", "place", "program"))
    call("drop_queue('mails')")
    call("drop_queue('mails')")  # is gone
    Queue.objects.filter(name__startswith="dropped-").delete()  # maintenance tidies up

    (made, *_), purged, dropped = entries()
    assert made == "create"
    assert purged == ("purge", "orders", {}, 3)
    assert who[-1] == ("ann", "sql", "runbook 7")
    assert dropped == ("drop", "mails", {}, 1)


def test_which_lakes_hold_retention_is_recorded(log):
    lake = Lake.objects.create(path="/lake", queues=["orders"], holds_retention=True)
    run_sql("UPDATE pgqueue_lake SET exported_below = 5")  # an export
    lake.queues, lake.holds_retention = [], False
    lake.save()
    lake.delete()

    given = {"lake": "/lake", "queues": ["orders"], "holds_retention": True, "iceberg": ""}
    changed = {"lake": "/lake", "queues": [["orders"], []], "holds_retention": [True, False]}
    assert entries() == [
        ("create", "", given, None),
        ("alter", "", changed, None),
        ("drop", "", {"lake": "/lake"}, None),
    ]


def test_schedules_are_recorded_without_their_bodies_and_ticks(log):
    schedule = Schedule.objects.create(
        name="nightly",
        queue=Queue.objects.get(name="orders"),
        interval=dt.timedelta(days=1),
        body={"secret": 1},
    )
    schedule.body = {"secret": 2}
    schedule.save()
    run_sql("UPDATE pgqueue_schedule SET next_run_at = now()")
    Schedule.objects.send_due(using="default")
    sent = schedule.run()
    schedule.delete()

    (made, _, given, _), *rest = entries()
    assert (made, given["schedule"], "body" in given) == ("create", "nightly", False)
    assert rest == [
        ("alter", "orders", {"schedule": "nightly", "body": "changed"}, None),
        ("run", "orders", {"schedule": "nightly", "ids": [sent]}, 1),
        ("drop", "orders", {"schedule": "nightly"}, None),
    ]


def test_the_log_says_who_acted_and_from_where(log):
    log.send_batch([1, 2, 3])
    log.purge()
    with acting_as("deploy 42"):
        log.alter(limit=5)
    call_command("pgqueue_alter", "orders", "--limit", "6")
    run_sql("UPDATE pgqueue_queue SET paused = true WHERE name = 'orders'")

    me, host = getpass.getuser(), socket.gethostname()
    role = run_sql("SELECT current_user")[0][0]
    found = [(each.who, each.place, each.host) for each in AuditEntry.objects.order_by("pk")]
    assert found[:3] == [(me, "code", host), ("deploy 42", "code", host), (me, "command", host)]
    assert found[3][:2] == (role, "sql")
    assert {each.role for each in AuditEntry.objects.all()} == {role}
    assert AuditEntry.objects.get(place="command").program == "pgqueue_alter"


def test_an_operator_who_settles_by_id_is_recorded_and_a_consumer_is_not(log):
    ids = log.send_batch(range(6))
    log.archive(ids[:2])
    log.cancel(ids[2])
    [message] = log.read()
    with acting_as("ann"):
        log.cancel([ids[4], 10**9])
        log.set_vt([ids[5]], 60)
        log.archive(message)

    assert entries() == [
        ("cancel", "orders", {"ids": [ids[4]]}, 1),
        ("set_vt", "orders", {"ids": [ids[5]]}, 1),
    ]


def test_an_operation_that_is_rolled_back_is_not_recorded(log):
    log.send(1)

    with rolled_back():
        log.purge()
        log.alter(limit=5)
        assert len(AuditEntry.objects.all()) == 2

    assert entries() == []


def test_an_operation_that_is_interrupted_has_its_count_and_no_end(committed, orders, monkeypatch):
    orders.send_batch(range(5))
    monkeypatch.setattr("django_pgqueue.engine.settle.settling.PURGE_BATCH", 2)

    def interrupt(done: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        orders.purge(progress=interrupt)
    orders.purge()

    interrupted, whole = AuditEntry.objects.filter(operation="purge").order_by("pk")
    assert (interrupted.count, interrupted.ended_at) == (4, None)
    assert (whole.count, whole.ended_at is None) == (1, False)


def test_a_bulk_action_is_one_entry_with_the_name_of_who_started_it(log):
    ids = log.send_batch(range(5))
    with acting_as("ann", place="admin"):
        action = BulkAction.objects.begin(
            Queue.objects.get(name="orders"), Kind.DELETE, ids, {"step_size": 2}
        )
        action.stop()
    BulkAction.objects.drive(using="default")
    action.refresh_from_db()
    action.resume()
    BulkAction.objects.drive(using="default")

    deleted, stopped, resumed = AuditEntry.objects.order_by("pk")
    assert (deleted.operation, deleted.who, deleted.count) == ("delete", "ann", 5)
    assert deleted.ended_at is not None
    assert deleted.arguments == {"bulk_action": action.pk, "messages": 5}
    assert [(each.operation, each.who == "ann") for each in (stopped, resumed)] == [
        ("stop", True),
        ("resume", False),
    ]


def test_the_innermost_name_counts_and_must_be_a_text(log):

    for wrong in ("", "x" * 256, "a\x00b", "\ud800"):
        with acting_as("ann"), pytest.raises(InvalidArgument), acting_as(wrong):
            pass
    with acting_as("ann"), acting_as("bob"):
        log.alter(limit=4)

    assert AuditEntry.objects.get().who == "bob"


@pytest.mark.parametrize("actor", ["7", "[]", "{}", '{"who": null}', '{"who": ""}'])
def test_an_actor_without_a_name_does_not_hide_the_login(log, actor):
    with transaction.atomic():
        run_sql("SELECT set_config('pgqueue.actor', %s, true)", [actor])
        run_sql("UPDATE pgqueue_queue SET paused = true WHERE name = 'orders'")

    entry = AuditEntry.objects.get()
    assert (entry.who, entry.place) == (entry.role, "sql")


def test_old_entries_are_deleted_by_maintenance(log, settings):
    for days in (91, 89):
        log.alter(limit=days)
        run_sql(
            f"UPDATE pgqueue_audit SET at = now() - interval '{days} days' WHERE id = "
            "(SELECT max(id) FROM pgqueue_audit)"
        )

    AuditEntry.objects.prune("default")
    assert [given["limit"] for _, _, given, _ in entries()] == [[91, 89]]
