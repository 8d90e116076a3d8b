"""The commands on subscriptions: subscribe, seek, and what the other commands say of them."""

from __future__ import annotations

import datetime as dt

import pytest
from django.core.management import CommandError
from django.db import connection

from django_pgqueue.errors import PositionLost
from django_pgqueue.management.diagnosis import Limits, examine
from django_pgqueue.models import AuditEntry, Queue, queue
from django_pgqueue.prometheus.views import QueueCollector
from tests.conftest import run_sql
from tests.management.calling import call, call_json

pytestmark = pytest.mark.django_db(transaction=True)


def bodies(name):
    return [message.body for message in queue(name).read(qty=10)]


def lose_position(name):
    """Let the position name another database system, as a restore does."""
    number = Queue.objects.get(name=name).pk
    run_sql(
        f"UPDATE pgqueue_cursor SET system = system + 1, number = number + 1 "
        f"WHERE queue_id = {number} RETURNING 1"
    )


def test_a_subscription_is_made_with_its_settings(orders):
    orders.send(1)

    said = call_json(
        *("pgqueue_subscribe", "audit", "--to", "orders", "--start", "earliest"),
        *("--max-deliveries", "5", "--keep-for", "7d", "--archive-completed"),
    )

    audit = Queue.objects.get(name="audit")
    assert (said["created"], said["to"], said["differs"]) == (True, "orders", [])
    assert (audit.max_deliveries, audit.keep_for) == (5, dt.timedelta(days=7))
    assert audit.archive_completed
    assert bodies("audit") == [1]


@pytest.mark.parametrize(("start", "read"), [("now", []), ("2020-01-01T00:00Z", [1])])
def test_a_subscription_starts_where_it_is_told(orders, start, read):
    orders.send(1)

    said = call("pgqueue_subscribe", "audit", "--to", "orders", "--start", start)

    assert said.out == "Made subscription 'audit' to queue 'orders'.\n"
    assert bodies("audit") == read


def test_a_subscription_that_exists_stays_as_it_is(orders):
    call("pgqueue_subscribe", "audit", "--to", "orders")

    said = call("pgqueue_subscribe", "audit", "--to", "orders", "--limit", "5")

    assert said.out == "Subscription 'audit' exists already.\n"
    assert "manage.py pgqueue_alter audit --limit 5" in said.err
    assert Queue.objects.get(name="audit").limit is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["audit", "--to", "missing"], "missing"),
        (["audit"], "--to"),
        (["audit", "--to", "orders", "--start", "2026-01-01"], "not a moment with a time zone"),
        (["audit", "--to", "orders", "--start", "first"], "not a moment with a time zone"),
        (["audit", "--to", "orders", "--start", "2026-13-01T00:00Z"], "not a moment"),
        (["orders", "--to", "orders"], "cannot subscribe to itself"),
    ],
)
def test_a_wrong_subscription_is_refused(orders, arguments, says):
    with pytest.raises(CommandError, match=says):
        call("pgqueue_subscribe", *arguments)

    assert not Queue.objects.filter(name="audit").exists()


@pytest.mark.parametrize(
    ("where", "read"),
    [
        (["--start", "earliest"], [0, 1, 2]),
        (["--start", "now"], []),
        (["--start", "2020-01-01T00:00+01:00"], [0, 1, 2]),
        (["--at", "2020-01-01T00:00Z"], [0, 1, 2]),
        (["--id"], [1, 2]),
    ],
)
def test_a_subscription_is_moved(orders, where, read):
    call("pgqueue_subscribe", "audit", "--to", "orders", "--start", "earliest")
    ids = orders.send_batch([0, 1, 2])
    queue("audit").archive(queue("audit").read(qty=2))

    said = call("pgqueue_seek", "audit", *where, *([ids[1]] if where == ["--id"] else []))

    unread = {0: "0 messages", 2: "2 messages", 3: "3 messages"}[len(read)]
    assert said.out == f"Moved subscription 'audit': {unread} to read.\n"
    assert bodies("audit") == read
    [entry] = AuditEntry.objects.filter(operation="seek", queue_name="audit")
    assert (entry.place, entry.program) == ("command", "pgqueue_seek")


def test_a_subscription_and_its_moves_are_in_the_audit_log(orders):
    queue("audit").subscribe(to="orders", start="earliest")
    queue("audit").seek("now")

    found = AuditEntry.objects.filter(operation__in=["subscribe", "seek"]).order_by("id")
    assert [(each.operation, each.queue_name, each.arguments) for each in found] == [
        ("subscribe", "audit", {"to": "orders", "start": "earliest"}),
        ("seek", "audit", {"to": "now"}),
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["orders", "--start", "now"], "'orders' is no subscription"),
        (["audit"], "one of the arguments"),
        (["audit", "--start", "now", "--id", "3"], "not allowed with"),
        (["audit", "--id", "0"], "1 or more"),
        (["audit", "--at", "yesterday"], "not a moment"),
    ],
)
def test_a_wrong_move_is_refused(orders, arguments, says):
    queue("audit").subscribe(to="orders")

    with pytest.raises(CommandError, match=says):
        call("pgqueue_seek", *arguments)


def test_the_command_that_an_error_names_sets_a_lost_position(orders):
    queue("audit").subscribe(to="orders", start="earliest")
    orders.send_batch([0, 1, 2])
    queue("audit").archive(queue("audit").read(qty=2))
    lose_position("audit")

    with pytest.raises(PositionLost) as lost:
        queue("audit").read()
    command = str(lost.value).rpartition("manage.py ")[2].split()
    call(*command)

    assert command[:2] == ["pgqueue_seek", "audit"]
    assert bodies("audit") == [2]


def test_the_command_for_a_subscription_that_has_read_nothing_starts_at_the_first(orders):
    queue("audit").subscribe(to="orders", start="earliest")
    orders.send(0)
    lose_position("audit")

    with pytest.raises(PositionLost, match=r"pgqueue_seek audit --start earliest$") as lost:
        queue("audit").read()
    call(*str(lost.value).rpartition("manage.py ")[2].split())

    assert bodies("audit") == [0]


def test_the_list_of_queues_says_how_far_a_subscription_is_behind(orders):
    queue("audit").subscribe(to="orders", start="earliest")
    queue("mails").subscribe(to="orders", start="earliest")
    orders.send_batch([0, 1, 2])
    queue("audit").read()
    lose_position("mails")

    lines = call("pgqueue_queues").out.splitlines()
    audit, mails, source = call_json("pgqueue_queues")

    assert "subscription to orders, 2 messages unread" in lines[1]
    assert lines[2].endswith("subscription to orders, position lost")
    assert "subscription" not in lines[3]
    assert (audit["source"], audit["lag"]["messages"]) == ("orders", 2)
    assert (mails["source"], mails["lag"]) == ("orders", None)
    assert "lag" not in source


# What the commands for operators find


def findings(check):
    return [each for each in examine("default", Limits()) if each.check == check]


def test_the_doctor_finds_no_fault_with_a_subscription_that_keeps_up(orders):
    queue("audit").subscribe(to="orders")

    [found] = findings("subscriptions")

    assert (found.is_problem, found.text[:2]) == (False, "1;")


def test_the_doctor_misses_the_triggers_of_subscriptions_and_of_their_source(orders):
    audit = queue("audit").subscribe(to="orders")
    tables = {
        "left": f"pgqueue_message_q{audit.source_id}",
        "kept": f"pgqueue_message_q{audit.pk}",
    }
    assert not [each for each in findings("objects") if each.is_problem]

    with connection.cursor() as cursor:
        for name, table in tables.items():
            cursor.execute(f"DROP TRIGGER pgqueue_message_{name} ON {table}")
    missing = findings("objects")

    assert sorted(each.text for each in missing) == sorted(
        f"trigger pgqueue_message_{name} of {table} is missing" for name, table in tables.items()
    )
    with connection.cursor() as cursor:
        for each in missing:
            cursor.execute(each.action)
    assert not [each for each in findings("objects") if each.is_problem]


def test_the_doctor_names_the_command_that_sets_a_lost_position(orders):
    queue("audit").subscribe(to="orders", start="earliest")
    last = orders.send(1)
    queue("audit").archive(queue("audit").read())
    lose_position("audit")

    [found] = findings("subscriptions")

    assert found.text.startswith("subscription audit has no position in this database")
    assert found.action.endswith(f"manage.py pgqueue_seek audit --id {last + 1}")


def test_the_doctor_finds_a_subscription_that_is_behind_and_holds_messages(orders):
    orders.alter(retention=60)
    queue("audit").subscribe(to="orders", start="earliest", age_limit=1)
    queue("mails").subscribe(to="orders", start="earliest", age_limit=86_400)
    orders.send_batch([0, 1])
    number = Queue.objects.get(name="orders").pk
    run_sql(
        f"UPDATE pgqueue_message_q{number} SET enqueued_at = now() - interval '1 h' RETURNING 1"
    )

    [found] = findings("subscriptions")

    assert found.text == (
        "subscription audit is 1 h behind: 2 messages of queue orders unread, and orders keeps "
        "them beyond its retention"
    )
    assert "manage.py pgqueue_seek audit --start now" in found.action
    consumers = {each.values["queue"]: each.values["visible"] for each in findings("consumers")}
    assert consumers == {"orders": 2, "audit": 2, "mails": 2}


def lose_a_message(orders):
    """Let a message leave the source unread, later than the subscription's keep_for."""
    queue("audit").subscribe(to="orders", start="earliest", keep_for=60)
    orders.send(1)
    number = Queue.objects.get(name="orders").pk
    run_sql(
        f"UPDATE pgqueue_message_q{number} SET enqueued_at = now() - interval '1 h' RETURNING 1"
    )
    orders.purge()


def test_the_doctor_finds_a_subscription_that_has_lost_messages(orders):
    lose_a_message(orders)

    [found] = findings("subscriptions")

    assert found.text.startswith(
        "subscription audit has lost 1 message, which queue orders removed"
    )
    assert found.values["lost"] == 1


def test_health_counts_what_a_subscription_has_not_read(orders):
    queue("audit").subscribe(to="orders", start="earliest")
    orders.send_batch([0, 1, 2])
    queue("audit").read()

    with pytest.raises(SystemExit) as unhealthy:
        call("pgqueue_health", "audit")

    assert unhealthy.value.said.out == "FAIL audit: 0 consumers, backlog 2\n"


def test_a_subscription_without_a_position_is_not_healthy(orders):
    queue("audit").subscribe(to="orders")
    lose_position("audit")

    with pytest.raises(SystemExit) as unhealthy:
        call("pgqueue_health", "audit")

    assert unhealthy.value.said.out == "FAIL audit: 0 consumers, backlog ≈ 0, position lost\n"


def test_prometheus_has_the_lag_of_each_subscription(orders):
    lose_a_message(orders)
    queue("mails").subscribe(to="orders", start="earliest")
    orders.send_batch([0, 1])
    queue("old").subscribe(to="orders")
    lose_position("old")

    scraped = {
        (sample.name, sample.labels["queue"]): sample.value
        for metric in QueueCollector().collect()
        for sample in metric.samples
        if "source" in sample.labels
    }

    name = "pgqueue_subscription"
    assert scraped[f"{name}_unread_messages", "mails"] == 2
    assert scraped[f"{name}_lag_seconds", "mails"] > 0
    assert scraped[f"{name}_lost_messages", "audit"] == 1
    assert [scraped[f"{name}_position_lost", each] for each in ("old", "audit")] == [1, 0]
    assert (f"{name}_unread_messages", "old") not in scraped
