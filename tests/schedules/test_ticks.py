"""What became of the latest ticks of a schedule, and sending the missed ones."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_pgqueue.errors import InvalidArgument
from django_pgqueue.models import AuditEntry, Message, Schedule
from django_pgqueue.queues.ticks import KEPT
from tests.actors import SECONDS
from tests.conftest import run_sql
from tests.schedules.clocks import DAY, NOON
from tests.schedules.clocks import send_due as due
from tests.schedules.test_schedules import made, sent
from tests.waiting import until

HOUR = dt.timedelta(hours=1)


def noted() -> list[tuple[float, str, int]]:
    """The kept ticks: days after noon, outcome, and seconds late."""
    ticks = Schedule.objects.get().latest_ticks
    return [((each.at - NOON) / DAY, each.outcome.value, each.late) for each in ticks]


def test_a_tick_is_noted_in_the_update_that_stores_the_next_one(orders):
    made()

    with CaptureQueriesContext(connection) as asked:
        due(NOON + dt.timedelta(seconds=3))

    [update] = [each["sql"] for each in asked if 'UPDATE "pgqueue_schedule"' in each["sql"]]
    assert '"last_run_at"' in update
    assert '"ticks"' in update
    [tick] = Schedule.objects.get().latest_ticks
    assert (tick.at, tick.outcome, tick.late) == (NOON, "sent", 3)
    assert tick.message_id == Message.objects.get().pk


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("once", ["sent", "missed", "missed"]),
        ("all", ["sent", "sent", "sent"]),
        ("skip", ["missed", "missed", "missed"]),
    ],
)
@pytest.mark.parametrize("times", [{"interval": DAY}, {"cron": "0 12 * * *"}])
def test_ticks_that_no_consumer_saw_are_noted_each(orders, missed, expected, times):
    found = made(missed=missed, **times)

    due(NOON + 2 * DAY + HOUR)

    assert [(day, what) for day, what, _late in noted()] == list(enumerate(expected))
    assert [late for _day, what, late in noted() if what == "sent"] == {
        "once": [2 * 86_400 + 3600],
        "all": [2 * 86_400 + 3600, 86_400 + 3600, 3600],
        "skip": [],
    }[missed]
    found.refresh_from_db()
    assert found.next_run_at == NOON + 3 * DAY


@pytest.mark.parametrize("times", [{"interval": DAY}, {"cron": "0 12 * * *"}])
def test_of_many_missed_ticks_the_latest_are_noted_without_computing_all(
    orders, monkeypatch, times
):
    computed = 0
    following = Schedule.following

    def counting(self: Schedule, last: dt.datetime, after: dt.datetime) -> dt.datetime:
        nonlocal computed
        computed += 1
        return following(self, last, after)

    monkeypatch.setattr(Schedule, "following", counting)
    made(missed="once", **times)

    due(NOON + 5000 * DAY + HOUR)

    days = [day for day, _outcome, _late in noted()]
    assert days == list(range(4971, 5001))
    assert computed < 1000
    assert Schedule.objects.get().next_run_at == NOON + 5001 * DAY


def test_the_latest_ticks_are_kept_and_those_of_a_key_and_of_errors_are_told_apart(orders):
    found = made(interval=DAY, unique_key="report")

    due(NOON)
    due(NOON + DAY)
    Schedule.objects.update(priority=101)
    due(NOON + 2 * DAY)

    assert [outcome for _day, outcome, _late in noted()] == ["sent", "held", "failed"]
    first, held, failed = Schedule.objects.get().latest_ticks
    assert held.message_id == first.message_id
    assert failed.message_id is None
    Schedule.objects.update(priority=0)
    for day in range(3, KEPT + 3):
        due(NOON + day * DAY)
    assert [day for day, _outcome, _late in noted()] == list(range(3, KEPT + 3))

    found.cron, found.interval = "0 4 * * *", None
    found.save()  # by an object that was read before the ticks

    assert len(noted()) == KEPT


def test_a_missed_tick_is_sent_once_for_its_own_time(orders):
    made(interval=DAY, body={"report": "sales"}, priority=7)
    due(NOON + 2 * DAY)
    found = Schedule.objects.get()
    covered, missed, other = found.latest_ticks
    assert [tick.is_missed for tick in (covered, missed, other)] == [False, True, True]

    pk = found.run_missed(missed)

    message = Message.objects.get(pk=pk)
    assert (message.body, message.priority) == ({"report": "sales"}, 7)
    assert message.headers["x-schedule"] == {
        "name": "nightly",
        "at": (NOON + DAY).isoformat(),
    }
    entry = AuditEntry.objects.get(operation="run_missed")
    assert entry.arguments == {"schedule": "nightly", "ids": [pk], "tick": missed.at.isoformat()}
    assert entry.count == 1
    again = found.latest_ticks[1]
    assert (again.outcome, again.message_id) == ("sent", pk)
    assert again.late > 0
    assert Schedule.objects.get().latest_ticks == found.latest_ticks
    assert found.latest_ticks[2] == other
    for tick, told in ((missed, f"message {pk} was sent"), (covered, "is not missed")):
        with pytest.raises(InvalidArgument, match=told):
            found.run_missed(tick)
    with pytest.raises(InvalidArgument, match=r"no tick .* among its latest 30"):
        found.run_missed(missed._replace(microseconds=7))
    assert sent() == [NOON.isoformat(), (NOON + DAY).isoformat()]


def test_a_missed_tick_whose_key_is_held_stays_missed(orders):
    made(interval=DAY, unique_key="report")
    due(NOON + DAY)
    found = Schedule.objects.get()

    pk = found.run_missed(found.latest_ticks[1])

    assert pk == Message.objects.get().pk
    assert found.latest_ticks[1].is_missed
    assert not AuditEntry.objects.filter(operation="run_missed").exists()


def test_two_users_send_a_missed_tick_once(committed_orders, actor):
    made()
    due(NOON + DAY)
    with transaction.atomic():
        pk = run_missed()
        second = actor.start(run_missed)
        until(lambda: run_sql("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))

    assert f"message {pk} was sent" in str(second.result(timeout=SECONDS))
    assert sent() == [NOON.isoformat(), (NOON + DAY).isoformat()]


def test_the_audit_log_leaves_out_ticks(orders):
    found = made()
    due(NOON + DAY)
    found.cron, found.interval = "0 4 * * *", None
    found.save()

    recorded = AuditEntry.objects.filter(arguments__schedule="nightly").order_by("pk")
    assert [entry.operation for entry in recorded] == ["create", "alter"]
    assert not any("ticks" in entry.arguments for entry in recorded)


def run_missed() -> int | str:
    """Send the missed tick of the schedule, in another process: its message's id, or the error."""
    found = Schedule.objects.get()
    try:
        return int(found.run_missed(found.latest_ticks[1]))
    except InvalidArgument as error:
        return str(error)
