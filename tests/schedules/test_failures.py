"""A schedule that cannot be sent affects no other, and its row shows the error."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connection

from django_pgqueue import consumer, queue, schedule, signals
from django_pgqueue.models import BoundQueue, Message, Queue, Schedule
from django_pgqueue.observability import logs
from django_pgqueue.worker import ticker
from tests.actors import begin, commit, execute
from tests.conftest import run_sql
from tests.hearing import listening
from tests.management.calling import call
from tests.management.roles import acting, role
from tests.schedules.clocks import DAY, NOON, UTC, found, send_due
from tests.waiting import until
from tests.worker.test_processes import url
from tests.working.running import Command, runconsumer

__all__ = ["role"]


def made(queue_name: str, **values: Any) -> Schedule:
    """A schedule named after its queue, whose tick at noon is due."""
    found = Schedule.objects.create(
        name=queue_name, queue=Queue.objects.get(name=queue_name), interval=DAY, **values
    )
    Schedule.objects.filter(pk=found.pk).update(next_run_at=NOON)
    found.refresh_from_db()
    return found


def due(now: dt.datetime = NOON) -> int:
    return send_due(now)


def sent() -> list[tuple[str, str]]:
    """The schedule and the tick of each message."""
    headers = [m.headers["x-schedule"] for m in Message.objects.order_by("pk")]
    return [(each["name"], each["at"]) for each in headers]


def refuse(queue_name: str) -> None:
    """Make the database refuse messages for a queue."""
    table = f"pgqueue_message_q{Queue.objects.get(name=queue_name).pk}"
    run_sql(
        "CREATE FUNCTION pg_temp.refuse() RETURNS trigger LANGUAGE plpgsql "
        "AS $$ BEGIN RAISE EXCEPTION 'no messages on holidays'; END $$"
    )
    run_sql(
        f"CREATE TRIGGER refuse BEFORE INSERT ON {table} "
        f"FOR EACH ROW EXECUTE FUNCTION pg_temp.refuse()"
    )


def accept(queue_name: str) -> None:
    run_sql(f"DROP TRIGGER refuse ON pgqueue_message_q{Queue.objects.get(name=queue_name).pk}")


@pytest.fixture
def mails(orders: BoundQueue) -> BoundQueue:
    queue("mails").create()
    return queue("mails")


@pytest.fixture
def patient(committed_orders: BoundQueue) -> Iterator[None]:
    """A lock timeout, so that a blocked statement fails."""
    run_sql("SET lock_timeout = '2s'")
    yield
    run_sql("RESET lock_timeout")


def test_a_trigger_that_raises_stops_its_own_schedule_only(mails):
    bad, _ = made("mails"), made("orders")
    refuse("mails")

    assert due() == 1

    bad.refresh_from_db()
    assert bad.error == "no messages on holidays"
    assert sent() == [("orders", NOON.isoformat())]


def test_a_tick_that_the_database_refuses_is_tried_again(mails):
    bad = made("mails")
    refuse("mails")
    assert due() == 0
    bad.refresh_from_db()
    assert (bad.next_run_at, bad.last_run_at) == (NOON, None)

    accept("mails")

    assert due(NOON + dt.timedelta(minutes=5)) == 1
    bad.refresh_from_db()
    assert (bad.error, bad.last_run_at, bad.next_run_at) == ("", NOON, NOON + DAY)
    assert sent() == [("mails", NOON.isoformat())]


def test_a_locked_queue_stops_its_own_schedules_only(patient, actor):
    queue("mails").create()
    bad, _ = made("mails"), made("orders")
    actor.do(begin)
    actor.do(execute, f"LOCK TABLE pgqueue_message_q{bad.queue_id}")

    assert due() == 1

    bad.refresh_from_db()
    assert "lock timeout" in bad.error
    assert run_sql("SHOW lock_timeout") == [("2s",)]
    actor.do(commit)
    assert due() == 1
    assert sent() == [("orders", NOON.isoformat()), ("mails", NOON.isoformat())]


def test_a_locked_queue_is_waited_for_once_in_a_round(patient, actor):
    bad = made("orders")
    for number in range(5):
        Schedule.objects.create(name=f"{number}", queue=bad.queue, interval=DAY)
    Schedule.objects.update(next_run_at=NOON)
    actor.do(begin)
    actor.do(execute, f"LOCK TABLE pgqueue_message_q{bad.queue_id}")

    assert due() == 0

    assert Schedule.objects.exclude(error="").count() == 1
    actor.do(commit)
    assert due() == 6


def test_a_listener_that_raises_stops_its_own_schedule_only(mails):
    bad, _ = made("mails"), made("orders")

    def refuse(sender: str, **kwargs: Any) -> None:
        if sender == "mails":
            raise ValueError("no mail today")

    with listening(signals.messages_sent, refuse):
        assert due() == 1

    bad.refresh_from_db()
    assert bad.error == "no mail today"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "stored"),
    [
        (ValueError("a NUL \x00"), "a NUL \\0"),
        (ValueError("a surrogate \ud800"), "a surrogate \\ud800"),
        (ValueError(), "ValueError"),
        (Unspeakable(), "Unspeakable"),
    ],
    ids=["NUL", "surrogate", "empty", "unspeakable"],
)
def test_an_error_that_postgres_cannot_store_stops_its_own_schedule_only(mails, error, stored):
    bad, _ = made("mails"), made("orders")

    def refuse(sender: str, **kwargs: Any) -> None:
        if sender == "mails":
            raise error

    with listening(signals.messages_sent, refuse):
        assert due() == 1

    bad.refresh_from_db()
    assert bad.error == stored
    assert sent() == [("orders", NOON.isoformat())]


def test_a_schedule_whose_row_cannot_be_changed_stops_no_other(mails):
    made("mails")
    made("orders")
    run_sql(
        "CREATE FUNCTION pg_temp.keep() RETURNS trigger LANGUAGE plpgsql "
        "AS $$ BEGIN RAISE EXCEPTION 'this row stays'; END $$"
    )
    run_sql(
        "CREATE TRIGGER keep BEFORE UPDATE ON pgqueue_schedule "
        "FOR EACH ROW WHEN (NEW.name = 'mails') EXECUTE FUNCTION pg_temp.keep()"
    )

    with pytest.raises(DatabaseError, match="this row stays"):
        due()

    assert sent() == [("orders", NOON.isoformat())]


def test_after_a_failure_the_ticker_still_plans_the_next_tick(mails, monkeypatch):
    Schedule.objects.create(
        name="soon", queue=Queue.objects.get(name="mails"), interval=dt.timedelta(seconds=2)
    )

    def fail(self: Any, *, using: str) -> int:
        raise RuntimeError

    monkeypatch.setattr(type(Schedule.objects), "send_due", fail)

    assert ticker.Ticker({"default": []})._look("default") <= 2


def test_a_lost_connection_is_no_failure_of_the_schedule(committed_orders, actor):
    made("orders")
    [(pid,)] = run_sql("SELECT pg_backend_pid()")

    def end_session(**kwargs: Any) -> None:
        actor.do(execute, "SELECT pg_terminate_backend(%s, 5000)", [pid])

    with listening(signals.messages_sending, end_session), pytest.raises(OperationalError):
        due()
    connection.close()

    assert Schedule.objects.get().error == ""
    assert due() == 1


def test_a_tick_that_failed_does_not_make_the_ticker_hurry(mails):
    made("mails")
    refuse("mails")
    due()

    assert Schedule.objects.seconds_until_next(using="default") is None


def test_a_failure_is_logged_once_for_each_tick(mails, caplog, monkeypatch):
    monkeypatch.setattr(logs, "_failed_ticks", {})
    made("mails")
    refuse("mails")

    with caplog.at_level(logging.ERROR, "django_pgqueue"):
        due()
        due()

    [record] = caplog.records
    assert record.getMessage() == (
        f"mails: schedule mails could not send the message due at {NOON.isoformat()}: "
        f"no messages on holidays"
    )
    assert record.schedule == "mails"


def test_the_doctor_reports_a_schedule_that_cannot_be_sent(mails):
    made("mails")
    refuse("mails")
    due()

    texts = [each.text for each in found()]

    assert "schedule mails cannot be sent: no messages on holidays" in texts


# Roles


@pytest.fixture
def two_roles(committed: None, role: str) -> Iterator[dict[str, str]]:
    """A role for each of two queues, with a consumer's rights."""
    roles = {"orders": role, "mails": f"{role}_mails"}
    run_sql(f"CREATE ROLE {roles['mails']}")
    for name, each in roles.items():
        queue(name).create()
        call("pgqueue_grants", "--role", each, "--for", "consumer", "--queue", name, "--apply")
    yield roles
    run_sql(f"DROP OWNED BY {roles['mails']}")
    run_sql(f"DROP ROLE {roles['mails']}")


@pytest.mark.acceptance
def test_consumer_processes_of_two_roles_send_side_by_side(two_roles):
    roles = dict(zip(("patient", "lease"), two_roles.values(), strict=True))
    for name, each in roles.items():
        queue(name).create()
        call("pgqueue_grants", "--role", each, "--for", "consumer", "--queue", name, "--apply")
        Schedule.objects.create(
            name=name,
            queue=Queue.objects.get(name=name),
            interval=dt.timedelta(seconds=1),
            body={"op": name},
        )

    def start(name: str) -> Command:
        as_role = f"{url()}&options=-c%20role%3D{roles[name]}"
        return runconsumer(as_role, name, WORKING_PGQUEUE='{"MAINTENANCE_SECONDS": null}')

    with start("patient"), start("lease"):
        until(lambda: min(sum(n == name for n, _ in sent()) for name in roles) >= 3, seconds=60)

    assert not Schedule.objects.exclude(error="").exists()


def test_each_of_two_roles_sends_the_schedules_of_its_queue(two_roles):
    made("orders")
    made("mails")

    with acting(two_roles["orders"]):
        assert due() == 1
        Schedule.objects.filter(name="orders").update(next_run_at=dt.datetime.now(UTC) + DAY)
        assert Schedule.objects.seconds_until_next(using="default") > 1
    assert sent() == [("orders", NOON.isoformat())]
    assert Schedule.objects.get(name="mails").error == ""

    with acting(two_roles["mails"]):
        assert due() == 1
    assert [name for name, _ in sent()] == ["orders", "mails"]


def test_the_ticker_of_each_role_declares_and_sends_its_permitted_schedules(
    two_roles, own_handlers
):
    for name in two_roles:
        consumer(name)(schedule(every=60, name=name)(lambda message: None))

    for name, each in two_roles.items():
        with acting(each):
            assert 0 < ticker.Ticker({"default": []})._look("default") <= ticker._LONGEST
        assert Schedule.objects.filter(name=name).exists()
        Schedule.objects.filter(name=name).update(next_run_at=NOON)
    for each in two_roles.values():
        with acting(each):
            ticker.Ticker({"default": []})._look("default")

    assert sorted(name for name, _ in sent()) == ["mails", "orders"]
