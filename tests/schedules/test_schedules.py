"""Schedules: rows that send messages, and declarations in code."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import OperationalError, transaction

from django_pgqueue import consumer, handlers, queue, schedule, schedules, signals
from django_pgqueue.engine import cron
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.models import LiveMessage, Message, Queue, Schedule
from django_pgqueue.worker import ticker
from tests.actors import begin, commit, execute
from tests.hearing import heard
from tests.schedules.clocks import DAY, NOON, UTC
from tests.schedules.clocks import send_due as due
from tests.tasks.framework import needs_tasks
from tests.worker.consuming import InThread


@pytest.fixture
def declarations(own_handlers: None) -> dict[str, Any]:
    """The registry of schedules, empty for the test."""
    return schedules._declared


def made(name: str = "nightly", at: dt.datetime = NOON, **values: Any) -> Schedule:
    """A schedule of the queue "orders" with this next tick."""
    values = {"interval": DAY} if not {"cron", "interval"} & set(values) else {} | values
    found = Schedule.objects.create(
        name=name, queue=Queue.objects.get(name="orders"), **{"interval": None, **values}
    )
    Schedule.objects.filter(pk=found.pk).update(next_run_at=at)
    found.refresh_from_db()
    return found


def sent() -> list[str]:
    """The ticks for which messages were sent."""
    return [m.headers["x-schedule"]["at"] for m in Message.objects.order_by("pk")]


def test_a_tick_is_sent_once(orders):
    found = Schedule.objects.create(
        name="nightly",
        queue=Queue.objects.get(name="orders"),
        cron="0 4 * * *",
        time_zone="Europe/Berlin",
        body={"report": "sales"},
        priority=7,
    )
    tick = found.next_run_at

    assert due(tick - dt.timedelta(seconds=1)) == 0
    assert due(tick) == 1
    assert due(tick) == 0

    [message] = orders.read(qty=5)
    assert message.body == {"report": "sales"}
    assert message.priority == 7
    assert message.headers == {"x-schedule": {"name": "nightly", "at": tick.isoformat()}}
    found.refresh_from_db()
    assert found.last_run_at == tick
    assert found.next_run_at > tick
    assert due(found.next_run_at) == 1


def test_the_servers_clock_counts(orders):
    made(at=dt.datetime.now(UTC) - dt.timedelta(hours=1))

    assert Schedule.objects.send_due(using="default") == 1
    assert Schedule.objects.send_due(using="default") == 0


@pytest.mark.parametrize(("missed", "count"), [("once", 1), ("all", 4)])
def test_missed_ticks_are_one_message_or_a_message_each(orders, missed, count):
    found = made(missed=missed, interval=DAY)

    assert due(NOON + 3.5 * DAY) == count

    found.refresh_from_db()
    assert sent() == [(NOON + n * DAY).isoformat() for n in range(count)]
    assert found.next_run_at == NOON + 4 * DAY
    assert found.last_run_at == NOON + (count - 1) * DAY


def test_very_many_missed_ticks_go_in_parts(orders, monkeypatch):
    monkeypatch.setattr("django_pgqueue.queues.schedule._TICKS", 3)
    made(missed="all", interval=DAY)
    now = NOON + 6.5 * DAY

    assert [due(now), due(now), due(now), due(now)] == [3, 3, 1, 0]
    assert len(set(sent())) == 7


def test_missed_ticks_are_skipped(orders):
    found = made(missed="skip", interval=DAY)

    assert due(NOON + dt.timedelta(minutes=2)) == 0
    found.refresh_from_db()
    assert (found.next_run_at, found.last_run_at) == (NOON + DAY, None)
    assert due(NOON + DAY + dt.timedelta(seconds=30)) == 1


def test_a_paused_schedule_sends_nothing_and_goes_on_from_now(orders):
    found = made(missed="all", interval=DAY)
    found.paused = True
    found.save()

    assert due(NOON + 9 * DAY) == 0

    found.paused = False
    found.save()
    assert found.next_run_at > dt.datetime.now(UTC)
    assert sent() == []


def test_saving_a_schedule_read_before_a_tick_does_not_repeat_the_tick(orders):
    old = made(interval=DAY)
    due(NOON)

    old.body = {"new": True}
    old.save()

    old.refresh_from_db()
    assert (old.next_run_at, old.last_run_at) == (NOON + DAY, NOON)
    assert due(NOON) == 0


def test_new_times_saved_by_a_schedule_read_before_a_tick_keep_the_tick(orders):
    old = made(interval=DAY)
    due(NOON)

    old.interval, old.cron = None, "0 4 * * *"
    old.save()

    assert old.last_run_at == Schedule.objects.get().last_run_at == NOON


def test_saving_a_schedule_read_before_an_error_keeps_the_error(orders):
    old = made(interval=DAY)
    Schedule.objects.update(error="permission denied")

    old.body = {"new": True}
    old.save()

    assert old.error == Schedule.objects.get().error == "permission denied"


@pytest.mark.parametrize("fields", [None, ["interval", "cron"]])
def test_new_times_count_from_now_though_only_they_are_saved(orders, fields):
    found = made(interval=DAY)

    found.interval, found.cron = None, "* * * * *"
    found.save(update_fields=fields)

    found.refresh_from_db()
    assert 0 <= (found.next_run_at - dt.datetime.now(UTC)).total_seconds() <= 61


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "either a cron expression or an interval"),
        ({"cron": "* * * * *", "interval": DAY}, "either a cron expression or an interval"),
        ({"cron": "nonsense"}, "is not a cron expression"),
        ({"cron": "0 4 * * *", "time_zone": "Mars/Olympus"}, "no time zone"),
        ({"interval": dt.timedelta(milliseconds=5)}, "at least a second"),
        ({"interval": dt.timedelta.max}, "interval must be less than a thousand years"),
        ({"interval": "often"}, "interval must be seconds or a timedelta"),
        ({"interval": DAY, "missed": "never"}, "missed must be one of once, all, skip"),
        ({"interval": DAY, "name": ""}, "needs a name"),
        ({"interval": DAY, "name": "a NUL \x00"}, "name must be text without NUL"),
        ({"interval": DAY, "group_key": "g" * 300}, "group_key must be text of 1 to 255"),
        ({"interval": DAY, "unique_key": "k" * 300}, "unique_key must be text of 1 to 255"),
        ({"interval": DAY, "unique_key": "k", "until": "never"}, "until must be"),
        ({"interval": DAY, "priority": 101}, "priority must be a whole number from -100 to 100"),
        ({"interval": DAY, "expires": dt.timedelta(0)}, "expires must be at least a second"),
        ({"interval": DAY, "body": {"nul": "\x00"}}, "body holds the character NUL"),
        ({"interval": DAY, "body": object()}, "body is not JSON"),
    ],
)
def test_a_schedule_that_could_not_be_sent_is_refused(orders, values, message):
    found = Schedule(**{"name": "bad", "queue": Queue.objects.get(name="orders"), **values})

    with pytest.raises(InvalidArgument, match=message):
        found.save()
    with pytest.raises(ValidationError, match=message):
        found.clean()
    with pytest.raises(InvalidArgument, match=message):
        Schedule.objects.create(
            **{"name": "bad", "queue": Queue.objects.get(name="orders"), **values}
        )


def test_an_interval_may_be_seconds(orders):
    found = Schedule.objects.create(
        name="often", queue=Queue.objects.get(name="orders"), interval=90
    )

    found.refresh_from_db()
    assert found.interval == dt.timedelta(seconds=90)


def test_an_interval_that_was_changed_to_nonsense_by_hand_pauses_its_schedule(orders):
    bad = made("bad", interval=DAY)
    Schedule.objects.filter(pk=bad.pk).update(interval=dt.timedelta(0))
    made("good", interval=DAY)

    assert due(NOON) == 1

    bad.refresh_from_db()
    assert (bad.paused, bad.error) == (True, "interval 0:00:00 has no next tick")


def test_a_schedule_that_cannot_be_sent_keeps_no_other_from_it(orders):
    bad = made("bad", at=NOON - DAY, interval=DAY)
    Schedule.objects.filter(pk=bad.pk).update(body={"nul": "x"}, priority=30_000)
    made("good", interval=DAY)

    assert due(NOON) == 1

    bad.refresh_from_db()
    assert "priority must be" in bad.error
    assert bad.next_run_at > NOON
    assert bad.last_run_at is None
    assert [m.headers["x-schedule"]["name"] for m in Message.objects.all()] == ["good"]


def test_one_that_cannot_be_understood_is_paused(orders):
    bad = made("bad", interval=DAY)
    Schedule.objects.filter(pk=bad.pk).update(interval=None, cron="nonsense")

    assert due(NOON) == 0

    bad.refresh_from_db()
    assert bad.paused
    assert "is not a cron expression" in bad.error


def test_without_cronsim_intervals_are_still_sent(orders, monkeypatch):
    made("cron", cron="0 4 * * *")
    made("interval", interval=DAY)
    monkeypatch.setattr(cron, "cronsim", None)

    assert due(NOON) == 1
    assert not Schedule.objects.filter(paused=True).exists()


def test_the_message_goes_with_the_tick(orders):
    found = made(interval=DAY)

    with pytest.raises(RuntimeError), transaction.atomic():  # noqa: PT012
        assert due(NOON) == 1
        raise RuntimeError

    found.refresh_from_db()
    assert found.next_run_at == NOON
    assert not LiveMessage.objects.exists()


def test_a_schedule_is_run_beside_its_ticks(orders):
    found = made(interval=DAY, body={"report": "sales"}, priority=7)

    message = Message.objects.get(pk=found.run())

    found.refresh_from_db()
    assert (message.body, message.priority) == ({"report": "sales"}, 7)
    assert message.headers["x-schedule"]["name"] == found.name
    assert (found.next_run_at, found.last_run_at) == (NOON, None)


@pytest.mark.parametrize("until", ["", "started", "done"])
def test_a_tick_is_skipped_while_a_message_holds_the_schedules_key(orders, until):
    found = made(interval=DAY, unique_key="report", until=until, missed="all")

    assert due(NOON + DAY) == 1
    assert due(NOON + 2 * DAY) == 0
    assert found.run() == Message.objects.get().pk
    orders.archive(orders.read())

    assert due(NOON + 3 * DAY) == (0 if until == "" else 1)


def test_the_messages_of_a_schedule_are_in_its_group(orders):
    found = made(interval=DAY, group_key="reports")

    assert due(NOON + DAY) == 1
    found.run()

    assert [message.group_key for message in LiveMessage.objects.all()] == ["reports"] * 2


def test_the_messages_of_a_schedule_expire(orders, declarations):
    schedule(every=DAY, expires=60)(consumer("orders")(report))
    ticker.synchronize("default")
    found = Schedule.objects.get()

    assert due(found.next_run_at) == 1
    found.run()

    for message in Message.objects.all():
        left = message.expires_at - message.enqueued_at
        assert abs(left - dt.timedelta(minutes=1)) < dt.timedelta(seconds=5)
    assert Message.objects.count() == 2
    assert ticker.synchronize("default") == 0


def test_a_schedule_that_another_process_sends_is_skipped(committed_orders, actor):
    found = made(interval=DAY)
    actor.do(begin)
    actor.do(execute, f"SELECT 1 FROM pgqueue_schedule WHERE id = {found.pk} FOR UPDATE")

    assert due(NOON) == 0

    actor.do(commit)
    assert due(NOON) == 1


def test_dropping_a_queue_takes_its_schedules(orders):
    made(interval=DAY)

    Queue.objects.get(name="orders").delete()

    assert not Schedule.objects.exists()


# Declared in code.


def report(message: Any) -> None:
    """A consumer function."""


def report_again(message: Any) -> None:
    """Another one."""


def test_a_declared_schedule_becomes_a_row(orders, declarations):
    options: Any = {"priority": 3, "group": "reports", "unique": "sales", "until": "done"}
    schedule("0 4 * * *", tz="Europe/Berlin", body={"report": "sales"}, **options)(
        consumer("orders")(report)
    )

    assert ticker.synchronize("default") == 1
    assert ticker.synchronize("default") == 0

    found = Schedule.objects.get()
    assert found.name == "tests.schedules.test_schedules.report"
    assert (found.cron, found.time_zone, found.missed) == ("0 4 * * *", "Europe/Berlin", "once")
    assert (found.queue.name, found.body, found.priority) == ("orders", {"report": "sales"}, 3)
    assert (found.group_key, found.unique_key, found.until) == ("reports", "sales", "done")
    assert found.next_run_at > dt.datetime.now(UTC)


def test_the_decorators_stand_in_any_order(orders, declarations):
    consumer("orders")(schedule(every=60)(report))

    ticker.synchronize("default")

    found = Schedule.objects.get()
    assert found.interval == dt.timedelta(minutes=1)
    assert found.time_zone == "UTC"


def test_changes_in_the_admin_stay_until_the_code_changes(orders, declarations):
    body = {"on": dt.date(2026, 1, 1)}
    consumer("orders")(schedule(every=60, body=body)(report))
    ticker.synchronize("default")
    found = Schedule.objects.get()
    found.interval, found.paused = DAY, True
    found.save()

    assert ticker.synchronize("default") == 0
    found.refresh_from_db()
    assert found.interval == DAY

    declarations.clear()
    schedule(every=30, body=body)(report)
    assert ticker.synchronize("default") == 1
    found.refresh_from_db()
    assert (found.interval, found.paused) == (dt.timedelta(seconds=30), True)


def test_two_schedules_of_one_function_need_names(declarations):
    schedule("0 4 * * *")(report)
    schedule("0 4 * * *")(report)

    with pytest.raises(InvalidArgument, match=r'name="tests\..*report\.2"'):
        schedule("0 5 * * *")(report)
    schedule("0 5 * * *", name="at five")(report)
    assert len(declarations) == 2


def test_a_schedule_needs_a_queue(db, declarations, caplog):
    schedule(every=60)(report)

    assert ticker.synchronize("default") == 0
    assert "put @consumer or @task on it too" in caplog.text


def test_a_missing_queue_is_logged_and_keeps_no_other_from_it(orders, declarations, caplog):
    consumer("missing")(schedule(every=60)(report))
    consumer("orders")(schedule(every=60)(report_again))

    assert ticker.synchronize("default") == 1
    assert "There is no queue 'missing'" in caplog.text


def test_only_schedules_in_the_databases_of_the_process_are_declared(orders, declarations):
    consumer("orders")(schedule(every=60)(report))

    assert ticker.synchronize("other") == 0


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        ((), {}, "pass either a cron expression"),
        (("0 4 * * *",), {"every": 5}, "pass either a cron expression"),
        (("0 4 * *",), {}, "is not a cron expression"),
        (("0 4 * * *",), {"tz": "Mars/Olympus"}, "no time zone"),
        ((), {"every": 0.5}, "at least a second"),
        ((), {"every": "often"}, "every must be seconds"),
        ((), {"every": 5, "missed": "never"}, "missed must be one of"),
        ((), {"every": 5, "priority": 101}, "priority must be"),
        ((), {"every": 5, "group": ""}, "group must be"),
        ((), {"every": 5, "unique": ""}, "unique must be"),
        ((), {"every": 5, "until": "done"}, "until needs a unique key"),
        ((), {"every": 5, "unique": "k", "until": "never"}, "until must be"),
        ((), {"every": 5, "expires": 0.5}, "expires must be at least a second"),
        ((), {"every": 5, "body": object()}, "body is not JSON"),
        ((), {"every": 5, "args": [1]}, "args and kwargs are for tasks"),
    ],
)
def test_a_bad_declaration_is_refused_at_once(declarations, args, options, message):
    with pytest.raises(InvalidArgument, match=message):
        schedule(*args, **options)(report)


@needs_tasks
class TestTasks:
    @pytest.fixture
    def backend(self, settings: Any) -> None:
        settings.TASKS = {"default": {"BACKEND": "django_pgqueue.tasks.PgQueueBackend"}}

    def test_a_task_is_scheduled_with_its_arguments(self, db, declarations, backend):
        from tests.tasks.framework import default_task_backend
        from tests.tasks.sample import add

        queue("default").create()
        schedule("0 4 * * *", args=[1], kwargs={"two": 2})(add)
        ticker.synchronize("default")
        found = Schedule.objects.get()

        assert due(found.next_run_at) == 1

        [message] = LiveMessage.objects.all()
        result = default_task_backend.get_result(str(message.pk))
        assert (result.task, result.args, result.kwargs) == (add, [1], {"two": 2})

    @pytest.mark.parametrize(("given", "seconds"), [(None, 60), (30, 30)])
    def test_a_scheduled_task_expires_as_it_or_its_schedule_says(
        self, db, declarations, backend, given, seconds
    ):
        from django_pgqueue.tasks import task
        from tests.tasks.sample import add

        queue("default").create()
        schedule(every=DAY, args=[1], expires=given)(task(expires=60)(add.func))
        ticker.synchronize("default")

        assert Schedule.objects.get().expires == dt.timedelta(seconds=seconds)

    def test_a_scheduled_task_is_in_its_group_and_holds_its_key(self, db, declarations, backend):
        from django_pgqueue.tasks import task
        from tests.tasks.sample import add

        queue("default").create()
        options: Any = {"group": "of {one}", "unique": "{one}", "until": "done"}
        schedule(every=DAY, args=[1, 2])(task(**options)(add.func))
        ticker.synchronize("default")

        found = Schedule.objects.get()
        key = f"{add.module_path}:1"
        assert (found.group_key, found.unique_key, found.until) == ("of 1", key, "done")

    def test_a_task_has_no_body(self, declarations, backend):
        from tests.tasks.sample import add

        with pytest.raises(InvalidArgument, match="a task has no body: pass args and kwargs"):
            schedule(every=5, body={})(add)

    def test_a_backend_without_queues_has_no_schedules(self, db, declarations):
        from tests.tasks.sample import add

        schedule(every=5, args=[1])(add)

        assert ticker.synchronize("default") == 0
        assert not Schedule.objects.exists()


# In a consumer.


def test_a_consumer_sends_and_handles_scheduled_messages(
    committed_orders, declarations, monkeypatch
):
    monkeypatch.setattr(ticker, "_LONGEST", 0.05)
    handled: list[Any] = []

    def note(message: Message) -> None:
        handled.append(message.body)
        if len(handled) == 2:
            running.consumer.stop()

    consumer("orders")(schedule(every=1, body={"n": 1})(note))
    running = InThread(*handlers.handlers())
    running.wait(30)

    assert handled[:2] == [{"n": 1}] * 2
    assert not running.consumer.ticker.is_alive()


def test_a_consumer_that_drains_sends_nothing(committed_orders, declarations):
    consumer("orders")(report)
    made(at=NOON, interval=DAY)

    InThread(*handlers.handlers(), drain=True).wait()

    assert not Message.objects.exists()


def test_a_database_error_is_announced_and_the_ticker_goes_on(
    committed_orders, declarations, monkeypatch
):
    def fail(**kwargs: Any) -> int:
        raise OperationalError("gone")

    loop = ticker.Ticker({"default": []})
    made(at=NOON, interval=DAY)
    with heard(signals.database_failed) as told, monkeypatch.context() as patched:
        patched.setattr(Schedule.objects, "send_due", fail)
        assert loop._look("default") == ticker._LONGEST

    assert [each["operation"] for each in told] == ["schedule"]
    assert loop._look("default") <= ticker._LONGEST
    assert Message.objects.count() == 1
